"""Answers that are read at once are what they would have been one by one."""

from __future__ import annotations

import struct
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import HookFailed
from penstock.executors.processes.answers import simple_answers
from penstock.executors.processes.crossing import outcomes_in, outcomes_out
from penstock.executors.processes.frame import FrameError, decode, encode
from penstock.request import Outcome

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(max_size=40),
)
simple = st.tuples(
    st.floats(0, 1e9), st.dictionaries(st.text(), scalars), st.none(), st.booleans()
).map(list)
others = st.one_of(
    st.none(),
    st.lists(st.one_of(scalars, st.just([]), st.just({})), min_size=3, max_size=5),
    st.tuples(st.floats(), st.dictionaries(st.text(), st.lists(scalars)), st.none()).map(list),
)


def body_of(value: object) -> bytes:
    return b"".join(encode(value))


def one_by_one(bodies: list[bytes]) -> list[tuple[float, Any, bool]]:
    read = []
    for body in bodies:
        ran, (outcome,) = outcomes_in(decode(body), 1)
        assert outcome.error is None
        read.append((ran, outcome.value, outcome.jump))
    return read


def at_once(bodies: list[bytes]) -> list[tuple[float, Any, bool]] | None:
    read = simple_answers(bodies)
    if read is None:
        return None
    assert all(outcome.error is None for _, outcome in read)
    return [(ran, outcome.value, outcome.jump) for ran, outcome in read]


@given(st.lists(simple, min_size=1, max_size=40).map(lambda values: list(map(body_of, values))))
def test_simple_answers_are_read_at_once(bodies: list[bytes]) -> None:
    assert at_once(bodies) == one_by_one(bodies)


@given(st.lists(st.one_of(simple, others).map(body_of), min_size=1, max_size=6))
def test_what_is_read_at_once_would_have_been_taken_one_by_one(bodies: list[bytes]) -> None:
    read = at_once(bodies)
    if read is not None:
        assert read == one_by_one(bodies)


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=6))
def test_any_bytes_are_answers_or_left_to_others(bodies: list[bytes]) -> None:
    simple_answers(bodies)


GOOD = body_of([0.5, {"x": 1}, None, False])


@pytest.mark.parametrize(
    "value",
    [
        outcomes_out(0.5, [Outcome(None, HookFailed("no"))])[0],
        outcomes_out(0.5, [Outcome({"x": np.zeros(2)})])[0],
        outcomes_out(0.5, [Outcome({"x": np.zeros(100_000)})])[0],
        outcomes_out(0.5, [Outcome({"x": [1]})])[0],
        [0.5, {"x": 1}, None],
        [0.5, {"x": 1}, None, False, 1],
        [1, {"x": 1}, None, False],
        [-0.5, {"x": 1}, None, False],
        [inf, {"x": 1}, None, False],
        [nan, {"x": 1}, None, False],
        [0.5, [1], None, False],
        [0.5, {"x": 1}, [], False],
        [0.5, {"x": 1}, None, 1],
        {"a": 1, "b": 2, "c": 3, "d": 4},
        "text",
        None,
    ],
    ids=repr,
)
def test_an_answer_that_is_not_simple_leaves_all_to_be_read_one_by_one(value: Any) -> None:
    assert simple_answers([GOOD, GOOD]) is not None
    for bodies in ([GOOD, body_of(value)], [body_of(value), GOOD, GOOD], [body_of(value)]):
        assert simple_answers(bodies) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0",
        GOOD[:-1],
        GOOD + b"\0",
        struct.pack("<I", len(GOOD) - 3) + GOOD[4:],
        struct.pack("<I", len(GOOD) - 5) + GOOD[4:],
        struct.pack("<I", 1) + b"\xc1",
    ],
    ids=repr,
)
def test_bytes_that_are_no_value_leave_all_to_be_read_one_by_one(body: bytes) -> None:
    assert simple_answers([GOOD, body, GOOD]) is None
    with pytest.raises(FrameError):
        decode(body)
