"""Generates the documentation and the JSON Schema of the configuration from its schema.

``python -m penstock.config.describe`` writes ``docs/configuration.md`` to standard output,
``python -m penstock.config.describe --json-schema`` the JSON Schema.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from penstock.config.callers import (
    CorsConfig,
    JwtConfig,
    PriorityConfig,
    QueueConfig,
    QuotaConfig,
    SecurityConfig,
    TlsConfig,
)
from penstock.config.machines import ExternalStoreConfig, RayConfig
from penstock.config.op import LocalServiceConfig, OpConfig, PadConfig
from penstock.config.schema import (
    ENVIRONMENT,
    DagConfig,
    DoorConfig,
    RolloutConfig,
    ServiceConfig,
    ShadowConfig,
    TracerConfig,
    UiConfig,
    entries_of,
    section_of,
)
from penstock.config.section import Section, keys_of

_SHOWN_BELOW = 1_000_000
"""Larger upper bounds only prevent overflows; the tables omit them."""

_INTRODUCTION = """\
# Configuration

This page is generated from the schema by `python -m penstock.config.describe`; a test compares
them. `python -m penstock.config.describe --json-schema` writes the same as JSON Schema, for
editors that complete and check YAML.

A service is configured by one YAML file, usually `config.yml`, or by the same data as a dict.

- **Precedence:** a flag, then the environment, then the file of `penstock run FILE --config`, then
  the op's constructor, then YAML, then the keys given to `Service(...)`, then `defaults` of the
  service's class (dotted key to value), then the default below.
- **Flags:** `-o key.inner=value` sets any key. Lists are written `-o op.uci.fetch_list=a,b`, and
  `local_service_conf` may be left out: `-o op.uci.devices=0`.
- **Environment:** `PENSTOCK_<KEY>` sets a key at the top of the file, and
  `PENSTOCK_SET="key.inner=value;op.uci.concurrency=4"` any keys; the former has precedence. A
  value with a `;` cannot be set there. `PENSTOCK_TOKEN` is for commands that call services
  ([security.md](security.md#what-callers-send)); a service does not read it.
- **Types are strict.** A boolean is not an integer, and a text is not a number; an integer is
  accepted as a float. Numbers that are texts, such as card ids, need quotes.
- **Unknown keys** are errors that name the nearest known key; `--lenient` makes them warnings,
  except in `security`. An entry for an op that the graph does not contain is checked and otherwise
  ignored.
- **Own keys of an op** are those of its `config_keys`, such as `{"threshold": 0.5}`: a value must
  have the type of the default, and is in `self.config`.
- **A blank key** has its default. Keys marked † may be left out, but not blank.
- **Not yet available:** such a key, if enabled, is an error, or a warning if the table says so.
- YAML is read by the core schema of YAML 1.2 (`yes` and `on` are text). Duplicate keys, and tags of
  other schemas, are errors.
"""


_SECTIONS: tuple[tuple[type[Section], str, str], ...] = (
    (ServiceConfig, "Top of the file", "The service itself."),
    (DoorConfig, "`door`", "Limits of the connections of all protocols, and TLS."),
    (
        TlsConfig,
        "`door.tls`",
        "Both ports and the Unix socket use TLS (1.2 and later) if a certificate is set.",
    ),
    (
        CorsConfig,
        "`cors`",
        "Which websites' pages may call the service; see deployment.md. Off without `origins`.",
    ),
    (
        QueueConfig,
        "`queue`, `queue.levels.<priority>`",
        "How long requests may wait; see limits.md#time-in-the-queue.",
    ),
    (PriorityConfig, "`priority`", "Which requests go first; see limits.md#priorities."),
    (
        QuotaConfig,
        "`quotas.<name>`",
        "An entry of `quotas`: requests of each caller, in each engine; see limits.md#quotas.",
    ),
    (
        RolloutConfig,
        "`rollout.<model>`",
        "An entry of `rollout`: how new versions of a model get the requests; see"
        " living-models.md#rolling-out.",
    ),
    (ShadowConfig, "`rollout.<model>.shadow`", "Copies of requests, whose answers are compared."),
    (SecurityConfig, "`security`", "Who may call; see security.md."),
    (JwtConfig, "`security.jwt`", "JSON Web Tokens of one issuer."),
    (UiConfig, "`ui`", "The live page; see live-page.md."),
    (DagConfig, "`dag`", "Keys of the whole graph."),
    (
        ExternalStoreConfig,
        "`dag.external_store_options`",
        "How `dag.external_store` is used; see many-machines.md#large-values-between-ops.",
    ),
    (TracerConfig, "`dag.tracer`", "The periodic report."),
    (OpConfig, "`op.<name>`", "One op. An op without an entry has every default and no model."),
    (PadConfig, "`op.<name>.pad`", "Requests of different sizes in one batch."),
    (RayConfig, "`op.<name>.ray`", "What a worker needs, with `executor: ray`."),
    (LocalServiceConfig, "`op.<name>.local_service_conf`", "The op's model, in this process."),
)


def _shape(schema: dict[str, Any]) -> str:
    """Type and range of a key in a few words."""
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " \\| ".join(f"`{each}`" for each in schema["enum"])
    if "anyOf" in schema:
        each = [_shape(one) for one in schema["anyOf"] if one.get("type") != "null"]
        kind = {"integer": "integer, "}.get(schema.get("type", ""), "")
        return kind + " or ".join(one.removeprefix(kind) for one in each)
    words = {
        "array": "list of texts",
        "boolean": "true, false",
        "string": "text",
        "object": "mapping",
    }
    if "integer" in str(schema.get("items")):
        return "list of integers"
    kind = words.get(schema.get("type", ""), schema.get("type", "mapping"))
    low, above, high = (schema.get(k) for k in ("minimum", "exclusiveMinimum", "maximum"))
    if low is not None and high is not None and high < _SHOWN_BELOW:
        return f"{kind}, {low} to {high}"
    if low is not None:
        return f"{kind} ≥ {low:g}"
    return f"{kind} > {above:g}" if above is not None else kind


def _default(value: Any) -> str:
    return "–" if value is None else f"`{json.dumps(value)}`"


def _table(section: type[Section], environment: bool = False) -> str:
    properties = section.model_json_schema(by_alias=True)["properties"]
    variables = {key: variable for variable, key in ENVIRONMENT.items()} if environment else {}
    head = [
        "Key",
        "Type and range",
        "Default",
        *(["Environment"] if environment else []),
        "Meaning",
    ]
    rows = [head, ["---"] * len(head)]
    for key, annotation in keys_of(section).items():
        if section_of(annotation) is not None or entries_of(annotation) is not None:
            continue
        schema = properties[key]
        row = [
            f"`{key}`{' †' if key in section.never_blank else ''}",
            _shape(schema),
            _default(schema.get("default")),
            *([f"`{variables[key]}`"] if environment else []),
            schema["description"],
        ]
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def markdown() -> str:
    """The text of ``docs/configuration.md``."""
    parts = [_INTRODUCTION]
    for section, title, sentence in _SECTIONS:
        parts += [f"## {title}\n\n{sentence}\n", _table(section, section is ServiceConfig)]
    return "\n".join(parts)


def json_schema() -> str:
    """The JSON Schema (2020-12) of ``config.yml``, as text."""
    schema = ServiceConfig.model_json_schema(by_alias=True)
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write one of the two to standard output."""
    if list(arguments) not in ([], ["--json-schema"]):
        sys.stderr.write("usage: python -m penstock.config.describe [--json-schema]\n")
        return 2
    sys.stdout.write(json_schema() if arguments else markdown())
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
