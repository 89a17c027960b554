"""The draw of a version by shares: in proportion, sticky by key, and stable as shares grow."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.repository.shares import Shares

KEYS = [f"caller {number}".encode() for number in range(4000)]


def test_a_draw_without_a_key_follows_the_weights() -> None:
    shares = Shares("m", {"1": 90, "2": 10, "3": 0})
    points = [number / 1000 for number in range(1000)]
    assert Counter(map(shares.drawn, points)) == {"1": 900, "2": 100}


def test_keys_are_drawn_in_proportion_to_the_weights() -> None:
    counts = Counter(map(Shares("m", {"1": 70, "2": 20, "3": 10}).drawn_by, KEYS))
    for version, share in (("1", 0.7), ("2", 0.2), ("3", 0.1)):
        assert counts[version] / len(KEYS) == pytest.approx(share, abs=0.03)


def test_a_key_has_the_same_version_in_every_process() -> None:
    shares = Shares("m", {"1": 50, "2": 50})
    found = "".join(map(shares.drawn_by, KEYS[:16]))
    assert found == "2212222121212122"


@given(
    key=st.binary(max_size=40),
    stable=st.integers(1, 100),
    share=st.integers(0, 100),
    more=st.integers(0, 100),
)
def test_who_is_in_a_new_version_stays_in_it_as_its_share_grows(
    key: bytes, stable: int, share: int, more: int
) -> None:
    before = Shares("m", {"1": stable, "2": share}).drawn_by(key)
    after = Shares("m", {"1": stable, "2": share + more}).drawn_by(key)
    assert (before, after) != ("2", "1")


@given(
    key=st.binary(max_size=40),
    weights=st.lists(st.integers(1, 100), min_size=3, max_size=3),
    more=st.integers(1, 100),
)
def test_a_growing_share_moves_no_key_between_the_others(
    key: bytes, weights: list[int], more: int
) -> None:
    before = dict(zip("123", weights, strict=True))
    found = Shares("m", before).drawn_by(key)
    assert Shares("m", before | {"3": before["3"] + more}).drawn_by(key) in (found, "3")


def test_each_version_is_drawn_by_other_callers() -> None:
    second = {key for key in KEYS if Shares("m", {"1": 95, "2": 5}).drawn_by(key) == "2"}
    third = {key for key in KEYS if Shares("m", {"2": 95, "3": 5}).drawn_by(key) == "3"}
    assert second
    assert third
    assert len(second & third) < len(second) / 4


@pytest.mark.parametrize("weights", [{}, {"1": 0}, {"1": 5, "2": -1}])
def test_impossible_shares_are_refused(weights: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="shares are not negative"):
        Shares("m", weights)
