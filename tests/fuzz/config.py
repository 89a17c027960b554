"""Configurations: texts of YAML down to the checked keys, and values of flags and environment."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from penstock.config.load import load
from penstock.config.overrides import from_environment, parse_override
from penstock.config.schema import ENVIRONMENT
from penstock.config.yaml import MAX_DEPTH, MAX_VALUES, read_text
from penstock.errors import ConfigError
from tests.fuzz.choices import Choices

VARIABLES = sorted(ENVIRONMENT)


def size(value: Any, depth: int = 0) -> int:
    """How many values a value has in it; its kinds and its depth are checked."""
    assert depth <= MAX_DEPTH + 1
    if isinstance(value, Mapping):
        assert all(isinstance(key, str) for key in value)
        return 1 + sum(size(each, depth + 1) for each in value.values())
    if isinstance(value, list):
        return 1 + sum(size(each, depth + 1) for each in value)
    assert value is None or type(value) in (str, int, float, bool)
    return 1


def of_document(choices: Choices) -> Hashable:
    text = choices.rest().decode("utf-8", "surrogateescape")
    document = read_text(text, "fuzz")
    assert size(document.data) <= MAX_VALUES + 1
    assert all(1 <= line <= 1 + len(text) for line in document.lines.values())
    loaded = load(yml_dict=document.data, environ={}, lenient=True)
    return len(document.data), len(loaded.warnings)


def of_override(choices: Choices) -> Hashable:
    key, value = parse_override(choices.rest().decode("utf-8", "surrogateescape"))
    load(yml_dict={}, overrides={key: value}, environ={})
    return type(value).__name__


def of_environment(choices: Choices) -> Hashable:
    variable = choices.of(VARIABLES)
    environ = {variable: choices.rest().decode("utf-8", "surrogateescape")}
    found = from_environment(environ)
    load(yml_dict={}, environ=environ)
    return variable, [type(value).__name__ for _, value in found.values()][:1] != []


PARTS = (of_document, of_override, of_environment)


def run(data: bytes) -> Hashable:
    choices = Choices(data)
    part = choices.of(PARTS)
    try:
        return part.__name__, part(choices)
    except ConfigError as error:
        problems = error.problems
    assert problems
    assert all("\n" not in problem for problem in problems)
    return part.__name__, problems[0].split(": ")[-1].split(",")[0][:12]


SEEDS = [
    b"\x00",
    b"\x00rpc_port: 18090\nhttp_port: 9999\ndag:\n  is_thread_op: true\n  retry: 1\n"
    b"op:\n  uci:\n    concurrency: 2\n    local_service_conf:\n      model_config: m\n",
    b'\x00a: &x [1, 0x2, 3.5e1, .inf, ~, "t\\u00e9"]\nb: *x\n<<: {c: 1}\n',
    b"\x00- 1\n- 2\n",
    b"\x00a: |\n  text\n  more\nb: >-\n  fold\n? c\n: d\n",
    b"\x00%YAML 1.2\n---\na: !!str 1\n...\n---\nb: 2\n",
    b"\x00a: 1\na: 2\n1: b\n",
    b"\x00" + b"[" * 40,
    b"\x00a: !!python/object:x y\n",
    b"\x01op.uci.concurrency=4",
    b"\x01dag.retry=x",
    b"\x01rpc_port=18090",
    b"\x01=",
    b"\x02" + b"18090",
    b"\x05" + b"[a, 'b']",
]
WORDS = (
    b"rpc_port~http_port~worker_num~build_dag_each_worker~dag:\n  ~op:\n  x:\n    ~"
    b"local_service_conf:~&a ~*a~<<: ~!!int ~? ~|\n ~\n---\n~{~[~\xef\xbb\xbf~\\x~="
).split(b"~")
