"""Who is remembered for a worker's death, and for how long."""

import numpy as np
import pytest

from penstock.engine.digest import digest_of
from penstock.engine.suspects import LIFE, MOST, Suspects, Verdict

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


def test_inputs_are_found_by_all_of_their_octets() -> None:
    suspects = Suspects()
    large = np.arange(10_000)
    digest = digest_of({"op": {"x": large}})
    assert digest is not None
    suspects.accuse(digest, 0.0)
    assert suspects.find({"op": {"x": large.copy()}}, 1.0) == (digest, Verdict.SUSPECT)
    middle = large.copy()
    middle[5000] = 0
    assert suspects.find({"op": {"x": middle}}, 1.0)[1] is Verdict.UNKNOWN
    assert suspects.find({"op": {"x": object()}}, 1.0) == (None, Verdict.UNKNOWN)


def test_inputs_that_resemble_nobody_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(inputs: object) -> None:
        raise AssertionError("read")

    suspects = Suspects()
    digest = digest_of({"op": {"x": "mine"}})
    assert digest is not None
    suspects.accuse(digest, 0.0)
    suspects.accuse(digest, 1.0)
    monkeypatch.setattr("penstock.engine.suspects.digest_of", read)
    assert suspects.find({"op": {"x": "other"}}, 1.0) == (None, Verdict.UNKNOWN)
    with pytest.raises(AssertionError, match="read"):
        suspects.find({"op": {"x": "mine"}}, 1.0)
    suspects.clear(digest)
    assert suspects.find({"op": {"x": "mine"}}, 1.0) == (None, Verdict.UNKNOWN)
