"""Merges a file or dict, the environment and flags to one checked ServiceConfig.

Precedence: flags, environment, the file of ``--config``, op constructors (see also ``resolve``),
YAML, the defaults of the service's class, our defaults. All problems are reported at once, each
with the place where its key was written.

A flag or variable has no quotes to distinguish "0" from 0, so its key's type decides: text stays
text, lists are split at commas, and any other value is read as unquoted YAML.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import ValidationError

from penstock.config.checks import contradictions, unavailable
from penstock.config.op import LocalServiceConfig, OpConfig
from penstock.config.own_keys import Declared, is_of_op, nearest_own, own_values
from penstock.config.problems import (
    AT_KEY,
    KeyPath,
    Problem,
    clipped,
    dotted,
    explain,
    in_words,
    shown,
)
from penstock.config.schema import ENVIRONMENT, ServiceConfig, section_at
from penstock.config.section import keys_of
from penstock.config.yaml import Document, read_file, read_text, resolved
from penstock.errors import ConfigError

Overriding: TypeAlias = Mapping[KeyPath, tuple[Any, str]]
"""Keys of a file that override others: the value of each, and the place where it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A configuration that passed every check.

    Attributes:
        config: the checked values.
        warnings: warnings, to be logged once at the start.
        source: the file's path, or ``dict_name``.
        own: value by key of the keys that ops declare, by the op's name.
        overriding: keys that a flag, the environment or the file of ``--config`` sets.
        place: formats a problem found later, with the place where its key was written.
    """

    config: ServiceConfig
    warnings: list[str]
    source: str
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    overriding: frozenset[KeyPath] = frozenset()
    place: Callable[[Problem], str] = field(default=in_words, compare=False)


def load(
    *,
    yml_file: str | Path | None = None,
    yml_dict: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    over: Overriding | None = None,
    defaults: Mapping[tuple[str, ...], object] | None = None,
    constructors: Mapping[KeyPath, object] | None = None,
    environ: Mapping[str, str],
    lenient: bool = False,
    base_dir: Path | None = None,
    dict_name: str = "yml_dict",
    places: Mapping[KeyPath, str] | None = None,
    declared: Declared | None = None,
    ops_are_known: bool = True,
) -> Loaded:
    """Load and check one configuration.

    Args:
        yml_file: the file; relative to ``base_dir`` when that is given. Or else:
        yml_dict: the same as plain data; it is not modified.
        overrides: dotted key -> value, from flags; a value of None is a flag not given.
        over: a further file, as ``read_overriding`` returns it.
        defaults: path of a key -> value, for keys without another value.
        constructors: the same of keys that ops were given in code; they override YAML.
        environ: has ``PENSTOCK_<KEY>`` for top-level keys, and ``PENSTOCK_SET`` for all. A variable
            with an unknown key is a warning: it may have another purpose.
        lenient: unknown keys are ignored with a warning each, instead of being problems.
        base_dir: a folder; the working directory without it.
        dict_name: the name of ``yml_dict`` in messages.
        places: path of a key of ``yml_dict`` -> what set it, such as a flag; messages name that
            instead of the key.
        declared: the keys that ops declare.
        ops_are_known: whether ``declared`` is complete; otherwise other keys of ops are ignored.

    Raises:
        ConfigError: with every problem found.

    Source: ``docs/compatibility.md``; ``docs/configuration.md`` lists the keys.
    """
    if (yml_file is None) == (yml_dict is None):
        raise ConfigError(["give either yml_file or yml_dict"])
    if yml_file is not None:
        path = (base_dir or Path()) / yml_file
        source = str(path)
        document = read_text(read_file(path), source)
    else:
        source = dict_name
        data = dict(yml_dict) if isinstance(yml_dict, Mapping) else yml_dict
        if not isinstance(data, dict):
            raise ConfigError([f"{source}: must be a mapping, got {shown(data)}"])
        document = Document(data=data, lines={})

    layers = _Layers(document, source, places or {})
    for key_path, value in (defaults or {}).items():
        layers.put_if_absent(key_path, value)
    for path_in_code, value in (constructors or {}).items():
        layers.data = _with(layers.data, path_in_code, value)
    for in_file, (value, place) in (over or {}).items():
        layers.put(in_file, value, place)
    for key, (variable, value) in from_environment(environ).items():
        layers.put(tuple(key.split(".")), value, f"environment {variable}")
    for key, value in (overrides or {}).items():
        if value is not None:
            layers.put(tuple(key.split(".")), value, "flag")

    declared = declared or {}
    own, wrong = layers.take_own(declared)
    config, refused, unknown = _check(layers.data)
    refused = [*refused, *wrong]
    unknown = [
        nearest_own(each, declared) for each in unknown if ops_are_known or not is_of_op(each)
    ]
    problems = [*document.problems, *refused, *([] if lenient else unknown)]
    if problems:
        raise ConfigError([layers.place(each) for each in layers.sorted(problems)])
    warnings = [layers.place(each) for each in layers.sorted(unknown)] + unknown_variables(environ)
    return Loaded(
        config=layers.remember_flags(config),
        warnings=warnings,
        source=source,
        own=own,
        overriding=frozenset(layers.origins),
        place=layers.place,
    )


def read_overriding(file: Path) -> Overriding:
    """Read a configuration file whose keys override those in code, and in another file.

    Raises:
        ConfigError: with every problem of the file.
    """
    document = read_text(read_file(file), str(file))
    if document.problems:
        raise ConfigError([f"{file}:{each.line}: {in_words(each)}" for each in document.problems])

    def leaves(data: Mapping[Any, Any], above: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
        for key, value in data.items():
            if isinstance(value, Mapping) and value:
                yield from leaves(value, (*above, key))
            else:
                yield (*above, key), value

    return {
        path: (value, f"{file}:{document.lines.get(path, 1)}")
        for path, value in leaves(document.data, ())
    }


class _Layers:
    """The data, overridden by environment and flags, and the place where each key was written."""

    def __init__(self, document: Document, source: str, places: Mapping[KeyPath, str]) -> None:
        self.places = places
        self.data = document.data
        self.lines = document.lines
        self.source = source
        self.origins: dict[KeyPath, str] = {}

    def put(self, path: KeyPath, value: Any, origin: str) -> None:
        self.data = _with(self.data, path, value)
        self.origins[path] = origin

    def put_if_absent(self, path: tuple[str, ...], value: Any) -> None:
        found: Any = self.data
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        if found is None:
            self.data = _with(self.data, path, value)

    def take_own(self, declared: Declared) -> tuple[dict[str, Mapping[str, Any]], list[Problem]]:
        """Remove the keys that ops declare from the data; return their values, and problems."""
        values: dict[str, Mapping[str, Any]] = {}
        problems: list[Problem] = []
        ops = self.data.get("op")
        for name, keys in declared.items():
            entry = ops.get(name) if isinstance(ops, Mapping) else None
            given = {key: entry[key] for key in keys if isinstance(entry, Mapping) and key in entry}
            for key in given:
                self.data = _without(self.data, ("op", name, key))
            values[name], found = own_values(name, keys, given)
            problems += found
        return values, problems

    def remember_flags(self, config: ServiceConfig) -> ServiceConfig:
        ops = {
            name: op.forcing(
                frozenset(dotted(path[2:]) for path in self.origins if path[:2] == ("op", name))
            )
            for name, op in config.op.items()
        }
        return config.model_copy(update={"op": ops})

    def line(self, problem: Problem) -> int | None:
        if problem.line is not None:
            return problem.line
        above = (problem.path[:length] for length in range(len(problem.path), 0, -1))
        return next((self.lines[path] for path in above if path in self.lines), None)

    def place(self, problem: Problem) -> str:
        above = [problem.path[:length] for length in range(len(problem.path), 0, -1)]
        where = next((self.origins[path] for path in above if path in self.origins), None)
        if where is None:
            for path in above:
                if path in self.places:
                    within = dotted(problem.path).removeprefix(dotted(path))
                    return f"{self.places[path]}{within}: {problem.text}"
            line = self.line(problem)
            where = self.source if line is None else f"{self.source}:{line}"
        return f"{where}: {in_words(problem)}"

    def sorted(self, problems: Iterable[Problem]) -> list[Problem]:
        return sorted(problems, key=lambda each: self.line(each) or 0)


def _with(data: Mapping[Any, Any], path: KeyPath, value: Any) -> dict[Any, Any]:
    """A copy with one key set; mappings on the path are copied too, never modified.

    A value on the path that is no mapping stays: that is a separate problem.
    """
    copy = dict(data)
    if len(path) == 1:
        copy[path[0]] = value
        return copy
    inner = copy.get(path[0])
    if inner is None or isinstance(inner, Mapping):
        copy[path[0]] = _with(inner or {}, path[1:], value)
    return copy


def _check(data: Mapping[str, Any]) -> tuple[ServiceConfig, list[Problem], list[Problem]]:
    """The checked values, the problems, and the unknown keys."""
    found: list[Problem] = []
    wrong: set[tuple[str | int, ...]] = set()
    while True:
        try:
            config = ServiceConfig.model_validate(data)
            break
        except ValidationError as error:
            # Refused values are removed, so that the checks between keys see the rest; so are
            # sections that lack a key then.
            found = found or explain(error)
            for each in error.errors(include_url=False):
                loc = each["loc"]
                if each["type"] == "missing":
                    loc = loc[:-1]
                elif loc[-1] == AT_KEY:
                    loc = loc[:-2]
                wrong.add(loc)
                data = _without(data, loc)
    problems = [each for each in found if not each.unknown]
    wrong |= {problem.path for problem in problems}
    for problem in [*unavailable(config), *contradictions(config)]:
        if not any(path in wrong for path in (problem.path, *problem.involves)):
            problems.append(problem)
    return config, problems, [each for each in found if each.unknown]


def _without(data: Mapping[Any, Any], path: Sequence[str | int]) -> dict[Any, Any]:
    """A copy without a refused key; for a list, without the whole list."""
    if not path:
        return {}
    copy = dict(data)
    if len(path) > 1 and isinstance(copy.get(path[0]), Mapping):
        copy[path[0]] = _without(copy[path[0]], path[1:])
        return copy
    return {key: value for key, value in data.items() if str(key) != str(path[0])}


# Texts from a command line or the environment

_PREFIX = "PENSTOCK_"
_SET = "PENSTOCK_SET"
_OF_COMMANDS = "PENSTOCK_TOKEN"  # what `penstock client` and others send; no key
_NEAR = 0.8  # the common prefix makes most names similar; a guess

# Set by Kubernetes in every container if there is a Service named penstock, or penstock-http, whose
# PENSTOCK_HTTP_PORT is a URL.
_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_(TCP|UDP|SCTP)(_|$)")
_KUBERNETES_URL = re.compile(r"(tcp|udp|sctp)://")


def parse_override(text: str) -> tuple[str, Any]:
    """``"op.uci.concurrency=4"`` -> ``("op.uci.concurrency", 4)``.

    ``local_service_conf`` may be left out of the key: ``op.det.devices``. The key is not checked
    here; ``load`` names an unknown one like any other.

    Raises:
        ConfigError: there is no ``=``, or a part of the key is empty.

    Source: ``docs/compatibility.md``, the option ``-o`` of services started from YAML.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not all(key.split(".")):
        # Not the value: it may be a secret.
        start = clipped(key.split(maxsplit=1)[0] if key else "")
        raise ConfigError([f"{start}: an override is written key=value or key.inner=value"])
    keys = key.split(".")
    inner = keys[-1]
    of_op = section_at(keys[:-1]) is OpConfig and inner not in keys_of(OpConfig)
    if of_op and inner in keys_of(LocalServiceConfig):
        keys.insert(-1, "local_service_conf")
    return ".".join(keys), typed(keys, value.strip())


def from_environment(environ: Mapping[str, str]) -> dict[str, tuple[str, Any]]:
    """Dotted key -> (variable, value) for every ``PENSTOCK_…`` variable that is not empty.

    ``PENSTOCK_SET`` has any number of overrides, ``key.inner=value;…``. A separate variable for a
    key takes precedence.

    Raises:
        ConfigError: an override in ``PENSTOCK_SET`` is invalid.
    """
    found: dict[str, tuple[str, Any]] = {}
    for text in environ.get(_SET, "").split(";"):
        if text.strip():
            try:
                key, value = parse_override(text.strip())
            except ConfigError as error:
                raise ConfigError(
                    [f"environment {_SET}: {each}" for each in error.problems]
                ) from error
            found[key] = (_SET, value)
    for variable, key in ENVIRONMENT.items():
        value = environ.get(variable)
        if value and not _KUBERNETES_URL.match(value):
            found[key] = (variable, typed([key], value))
    return found


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A text for each ``PENSTOCK_…`` variable that sets nothing."""
    warnings = []
    for variable, value in environ.items():
        if (
            not variable.startswith(_PREFIX)
            or variable in (_SET, _OF_COMMANDS, *ENVIRONMENT)
            or _KUBERNETES.search(variable)
            or _KUBERNETES_URL.match(value)
        ):
            continue
        near = get_close_matches(variable, [_SET, *ENVIRONMENT], n=1, cutoff=_NEAR)
        hint = f"; did you mean {near[0]}?" if near else ""
        warnings.append(
            f"environment {clipped(variable)}: is not a known variable and sets nothing{hint}"
        )
    return warnings


def typed(keys: Sequence[str], text: str) -> Any:
    """Convert the text to a value of the key at this path."""
    *above, key = keys
    section = section_at(above)
    kind = _kind(section and keys_of(section).get(key))
    if kind is str:
        return _unquoted(text)
    if kind in (tuple, list):
        inner = text.removeprefix("[").removesuffix("]")
        read = _unquoted if kind is tuple else resolved
        return [read(part.strip()) for part in inner.split(",") if part.strip()]
    return resolved(text)


def _unquoted(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text


def _kind(annotation: Any) -> type | None:
    """``str``, ``tuple`` of texts, ``list`` of others, or None for types that are read as unquoted
    values.
    """
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kind(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        kinds = [_kind(each) for each in get_args(annotation) if each is not type(None)]
        return kinds[0] if kinds else None
    if annotation is str or origin is Literal:
        return str
    if origin is tuple:
        return tuple if _kind(get_args(annotation)[0]) is str else list
    return None
