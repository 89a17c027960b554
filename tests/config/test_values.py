"""Kinds of values that keys take."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.config.load import load
from penstock.config.schema import MAX_CPU, parse_cpus
from penstock.errors import ConfigError


def cpus(value: Any) -> tuple[set[int], ...]:
    config = load(yml_dict={"rpc_port": 0, "op": {"a": {"cpu_affinity": value}}}, environ={})
    return tuple(map(set, config.config.op["a"].cpus))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", {0}),
        ("0-1,3", {0, 1, 3}),
        (" 2 , 2-2 ", {2}),
        (f"{MAX_CPU}", {MAX_CPU}),
        ("3,1-2,2", {1, 2, 3}),
    ],
)
def test_cpus_are_numbers_and_ranges(text: str, expected: set[int]) -> None:
    assert parse_cpus(text) == expected
    assert cpus(text) == (expected,)


def test_in_a_list_each_worker_has_its_own() -> None:
    assert cpus(["0-1", "2-3"]) == ({0, 1}, {2, 3})
    assert cpus([0, 1]) == ({0}, {1})
    assert cpus(5) == ({5},)


def test_a_flag_gives_one_text() -> None:
    loaded = load(yml_dict={"rpc_port": 0}, overrides={"op.a.cpu_affinity": "0-1,3"}, environ={})
    assert loaded.config.op["a"].cpus == (frozenset({0, 1, 3}),)


@pytest.mark.parametrize(
    "value",
    [
        *("", " ", "a", "-1", "1-", "2-1", "0,,1", "0-1-2", f"{MAX_CPU + 1}", "0-99999", "٣"),
        *([], [""], [[0]], ["0", None], {"0": 1}, 0.5, True, -1),
    ],
    ids=repr,
)
def test_anything_else_is_refused_with_its_key(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"op\.a\.cpu_affinity: must be .*0-1,3"):
        cpus(value)
