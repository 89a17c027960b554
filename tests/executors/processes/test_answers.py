"""Simple answers, written and read at once, are what the general path makes of them."""

from __future__ import annotations

import struct
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import HookFailed
from penstock.executors.processes.answers import simple_answer, simple_answers
from penstock.executors.processes.crossing import outcomes_in, outcomes_out
from penstock.executors.processes.frame import LENGTH, FrameError, decode, encode, listed
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


def together(bodies: list[bytes]) -> bytes:
    """The body of a frame with the values of all of these, which have plain parts only."""
    plain = listed(len(bodies), b"".join(body[LENGTH.size :] for body in bodies))
    return LENGTH.pack(len(plain)) + plain


def one_by_one(bodies: list[bytes]) -> list[tuple[float, Any, bool]]:
    read = []
    for body in bodies:
        ran, (outcome,) = outcomes_in(decode(body), 1)
        assert outcome.error is None
        read.append((ran, outcome.value, outcome.jump))
    return read


def at_once(body: bytes) -> list[tuple[float, Any, bool]] | None:
    read = simple_answers(body)
    if read is None:
        return None
    assert all(outcome.error is None for _, outcome in read)
    return [(ran, outcome.value, outcome.jump) for ran, outcome in read]


@given(st.lists(simple, min_size=1, max_size=40).map(lambda values: list(map(body_of, values))))
def test_simple_answers_are_read_at_once(bodies: list[bytes]) -> None:
    assert at_once(together(bodies)) == one_by_one(bodies)


@given(st.lists(st.one_of(simple, others).map(body_of), min_size=1, max_size=6))
def test_what_is_read_at_once_would_have_been_taken_one_by_one(bodies: list[bytes]) -> None:
    read = at_once(together(bodies))
    if read is not None:
        assert read == one_by_one(bodies)


@given(st.binary(max_size=200))
def test_any_bytes_are_answers_or_left_to_others(body: bytes) -> None:
    simple_answers(body)


texts = st.text(st.characters())  # halves of pairs of surrogates among them
odd = st.one_of(
    scalars,
    st.integers(),
    texts,
    st.lists(scalars),
    st.just(np.zeros(2)),
    st.just(np.float64(1.5)),
    st.just(np.str_("a")),
)


@given(
    st.floats(0, 1e9),
    st.one_of(
        st.none(),
        st.dictionaries(texts, scalars),
        st.dictionaries(st.one_of(texts, st.just(np.str_("a")), st.integers(0, 9)), odd),
    ),
    st.booleans(),
)
def test_what_is_written_at_once_is_written_as_by_the_general_path(
    ran: float, value: Any, jump: bool
) -> None:
    outcomes = [Outcome(value, None, jump)]
    plain = simple_answer(ran, outcomes)
    if plain is not None:
        assert LENGTH.pack(len(plain)) + plain == body_of(outcomes_out(ran, outcomes)[0])


def test_simple_answers_are_written_at_once_and_nothing_else() -> None:
    assert simple_answer(0.5, [Outcome({"x": 1, "y": "a", "z": b"", "n": None})]) is not None
    for outcomes in (
        [],
        [Outcome({}), Outcome({})],
        [Outcome(None, HookFailed("no"))],
        [Outcome(None)],
        [Outcome({"x": [1]})],
        [Outcome({"x": np.zeros(2)})],
        [Outcome({np.str_("x"): 1})],
        [Outcome({1: 1})],
        [Outcome({"x": 2**64})],
    ):
        assert simple_answer(0.5, outcomes) is None


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
    assert simple_answers(together([GOOD, GOOD])) is not None
    for bodies in ([GOOD, body_of(value)], [body_of(value), GOOD, GOOD], [body_of(value)]):
        assert simple_answers(together(bodies)) is None


LIST = together([GOOD, GOOD])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0",
        LIST[:-1],
        LIST + b"\0",
        struct.pack("<I", len(LIST) - 3) + LIST[4:],
        struct.pack("<I", len(LIST) - 5) + LIST[4:],
        struct.pack("<I", 1) + b"\xc1",
    ],
    ids=repr,
)
def test_bytes_that_are_no_value_leave_all_to_be_read_one_by_one(body: bytes) -> None:
    assert simple_answers(LIST) is not None
    assert simple_answers(body) is None
    with pytest.raises(FrameError):
        decode(body)


@pytest.mark.parametrize("value", [[], {"a": 1}, 1, "text"], ids=repr)
def test_what_is_no_list_of_answers_is_left_to_others(value: Any) -> None:
    assert simple_answers(body_of(value)) is None
