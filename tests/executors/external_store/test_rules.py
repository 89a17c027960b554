"""Addresses, keys, chunks, times, and which ops' outputs go to the external store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.executors.external_store.rules import (
    CHUNK_BYTES,
    MARGIN,
    Address,
    changed,
    chunks_of,
    kept_away,
    key_of,
    parse_address,
    seconds_to_live,
)
from tests.graph.test_dag import plan_of


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://store.example", Address(scheme="redis", host="store.example")),
        (
            "rediss://us%65r:p%40ss@10.0.0.7:6380/3",
            Address(
                scheme="rediss", host="10.0.0.7", port=6380, user="user", password="p@ss", path="3"
            ),
        ),
        (
            "valkey://:secret@[::1]:1",
            Address(scheme="valkey", host="::1", port=1, password="secret"),
        ),
        ("memo://here/any/path", Address(scheme="memo", host="here", path="any/path")),
    ],
)
def test_addresses_are_read(url: str, address: Address) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "store.example:6379",
        "redis://",
        "redis://:hush@/0",
        "redis://h:port/0",
        "redis://h:99999",
        "redis://h/db",
        "redis://h/0?password=hush",
        "redis://h/0#hush",
        "redis://[::1/hush",
    ],
)
def test_other_urls_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="must be a URL such as") as caught:
        parse_address(url)
    assert "hush" not in str(caught.value)


def test_an_address_is_shown_without_user_and_password() -> None:
    address = parse_address("rediss://user:hush@[::1]:7/1")
    assert str(address) == "rediss://[::1]:7/1"
    assert "hush" not in repr(address)


def test_no_part_of_a_key_can_be_taken_for_another() -> None:
    assert key_of("shop", 7, "det", "ab") == "penstock:shop:7:det:ab"
    assert key_of("a:7", 1, "x", "n") != key_of("a", 7, "1:x", "n")
    assert key_of("größe", 1, "a/b", "n").isascii()


@pytest.mark.parametrize("nbytes", [1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_chunks_cover_a_value_without_overlap(nbytes: int) -> None:
    chunks = [*chunks_of(4, nbytes)]
    assert [start for _, start, _ in chunks] == [0, *(end for _, _, end in chunks[:-1])]
    assert chunks[-1][2] == nbytes
    assert all(0 < end - start <= CHUNK_BYTES for _, start, end in chunks)
    assert [name for name, _, _ in chunks] == [f"4.{at}" for at in range(len(chunks))]


def test_a_key_lives_until_its_deadline_and_a_margin() -> None:
    assert seconds_to_live(deadline=107.0, now=100.0) == 7.0 + MARGIN
    assert seconds_to_live(deadline=90.0, now=100.0) == MARGIN


@pytest.mark.parametrize(
    ("far", "kept"),
    [
        ("abc", "ab"),  # the output of c is the reply
        ("ac", ""),  # b needs the output of a on this machine
        ("bc", "b"),
        ("ab", ""),
        ("", ""),
    ],
)
def test_only_what_ops_elsewhere_read_alone_is_stored(far: str, kept: str) -> None:
    plan = plan_of({"a": ["@"], "b": ["a"], "c": ["a", "b"]}, "c")
    at = plan.names.index
    assert kept_away(plan, [*map(at, far)]) == {*map(at, kept)}


def test_an_op_that_jumps_sends_its_output_through_the_engine() -> None:
    plan = plan_of({"a": ["@"], "b": ["a"], "c": ["b"]}, "c")
    jumping = replace(plan, jump_to=((1,), (), ()))
    assert kept_away(plan, [0, 1, 2]) == {0, 1}
    assert kept_away(jumping, [0, 1, 2]) == {1}


def test_what_is_changed_is_a_copy_and_what_is_not_the_same_object() -> None:
    array = np.ones(3)
    value: dict[str, Any] = {"a": [1, (array, 2)], "b": {"c": [3]}}

    def change(each: Any) -> Any:
        return "there" if each is array else each

    found = changed(value, change)
    assert found == {"a": [1, ("there", 2)], "b": {"c": [3]}}
    assert found["b"] is value["b"]
    assert value["a"][1][0] is array
    assert changed(value, lambda each: each) is value
