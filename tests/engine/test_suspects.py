"""Who is remembered for a worker's death, and for how long."""

from typing import Any

import numpy as np
import pytest

from penstock.engine.suspects import LIFE, MOST, Suspects, Verdict, digest_of

MINE, OTHER = b"mine", b"other"


def test_nobody_is_known_at_first() -> None:
    suspects = Suspects()
    assert not suspects
    assert suspects.verdict(MINE, 0.0) is Verdict.UNKNOWN
    assert suspects.verdict(None, 0.0) is Verdict.UNKNOWN


def test_a_death_makes_a_suspect_and_only_a_conviction_makes_a_culprit() -> None:
    suspects = Suspects()
    for n in range(5):
        suspects.accuse(MINE, float(n))
        assert suspects.verdict(MINE, float(n)) is Verdict.SUSPECT
    suspects.convict(MINE, 5.0)
    assert suspects.verdict(MINE, 5.0) is Verdict.CULPRIT
    assert suspects.verdict(OTHER, 5.0) is Verdict.UNKNOWN


def test_a_culprit_that_is_accused_again_stays_one() -> None:
    suspects = Suspects()
    suspects.convict(MINE, 0.0)
    suspects.accuse(MINE, 1.0)
    assert suspects.verdict(MINE, 1.0) is Verdict.CULPRIT


def test_who_is_cleared_is_unknown() -> None:
    suspects = Suspects()
    suspects.accuse(MINE, 0.0)
    suspects.clear(MINE)
    suspects.clear(OTHER)
    assert suspects.verdict(MINE, 0.0) is Verdict.UNKNOWN
    assert not suspects


def test_everybody_is_forgotten_after_a_while_counted_from_the_last_death() -> None:
    suspects = Suspects()
    suspects.convict(MINE, 0.0)
    suspects.accuse(OTHER, 1.0)
    suspects.accuse(MINE, 2.0)
    assert suspects.verdict(OTHER, LIFE + 0.5) is Verdict.SUSPECT
    assert suspects.verdict(OTHER, LIFE + 1.0) is Verdict.UNKNOWN
    assert suspects.verdict(MINE, LIFE + 1.0) is Verdict.CULPRIT
    assert suspects.verdict(MINE, LIFE + 2.0) is Verdict.UNKNOWN
    assert not suspects


def test_the_oldest_go_when_there_are_too_many() -> None:
    suspects = Suspects()
    digests = [str(n).encode() for n in range(MOST + 3)]
    for digest in digests:
        suspects.accuse(digest, 1.0)
    assert len(suspects) == MOST
    known = [suspects.verdict(digest, 1.0) is Verdict.SUSPECT for digest in digests]
    assert known == [False] * 3 + [True] * MOST


def test_it_tells_when_something_was_remembered_last() -> None:
    suspects = Suspects()
    assert suspects.latest < 0.0
    suspects.accuse(MINE, 3.0)
    suspects.convict(MINE, 4.0)
    suspects.clear(MINE)
    assert suspects.latest == 4.0


ALIKE: list[tuple[Any, Any]] = [
    ("text", "te" + "xt"),
    (b"bytes", b"bytes"),
    ([1, 2.0, None, True], [1, 2.0, None, True]),
    (np.arange(6).reshape(2, 3)[:, ::2], np.array([[0, 2], [3, 5]])),
    (np.float32(1.5), np.float32(1.5)),
    ("\udc80", "\udc80"),
    (np.array(["a", "bc"], object), np.array(["a", "b" + "c"], object)),
]
UNLIKE: list[tuple[Any, Any]] = [
    ("text", "texts"),
    ("1", b"1"),
    ("1", 1),
    (1, 1.0),
    (1, True),
    ([1, 2], (1, 2)),
    ([1, 2], [2, 1]),
    (["ab", "c"], ["a", "bc"]),
    ([["a"], "b"], [["a", "b"]]),
    ({"a": "b"}, ["a", "b"]),
    (np.zeros(4), np.zeros((2, 2))),
    (np.zeros(2, "i4"), np.zeros(2, "f4")),
    (np.zeros(2, "i4"), np.zeros(1, "i8")),
    (np.array(5), np.int64(5)),
    (np.array(["a"]), np.array([b"a"])),
    (0.0, -0.0),
    (np.array(["a", "b"], object), np.array(["b", "a"], object)),
    (np.array(["a", "b"], object), np.array([["a", "b"]], object)),
    (np.zeros(1, [("a", "i4")]), np.zeros(1, [("b", "i4")])),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_like_inputs_have_one_digest(one: Any, other: Any) -> None:
    assert digest_of({"op": {"x": one}}) == digest_of({"op": {"x": other}}) is not None


@pytest.mark.parametrize(("one", "other"), UNLIKE)
def test_unlike_inputs_have_several(one: Any, other: Any) -> None:
    assert digest_of({"op": {"x": one}}) != digest_of({"op": {"x": other}})


def test_names_and_predecessors_count() -> None:
    assert digest_of({"op": {"x": 1}}) != digest_of({"op": {"y": 1}})
    assert digest_of({"op": {"x": 1}}) != digest_of({"po": {"x": 1}})


@pytest.mark.parametrize("odd", [object(), {1, 2}, np.array([{1}]), lambda: None])
def test_objects_have_no_digest(odd: Any) -> None:
    assert digest_of({"op": {"x": [odd]}}) is None


def test_what_contains_itself_has_no_digest() -> None:
    knot: list[Any] = []
    knot.append(knot)
    assert digest_of({"op": {"x": knot}}) is None
