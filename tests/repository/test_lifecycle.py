"""The states of a model's versions, the index, and what is barred."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.repository.lifecycle import SERVES, Lifecycle, State

STEPS = (State.FOUND, State.STAGING, State.VERIFIED, State.LOADING)


def loaded(life: Lifecycle, version: str, digest: str = "d") -> None:
    for state in STEPS:
        life.advance(version, state, digest=digest if state is State.VERIFIED else "")


def shown(life: Lifecycle) -> list[tuple[str, str, str]]:
    return [(each.version, each.state, each.reason) for each in life.rows("m")]


def test_a_version_passes_through_triton_s_states() -> None:
    life = Lifecycle()
    seen = []
    for state in STEPS:
        life.advance("1", state)
        seen.append(shown(life)[0][1])
    life.serve({"1": State.SERVING})
    assert shown(life) == [("1", "READY", "")]
    assert life.serve({}) == ["1"]
    seen.append(shown(life)[0][1])
    life.advance("1", State.REMOVED)
    assert seen == ["UNAVAILABLE", "LOADING", "LOADING", "LOADING", "UNLOADING"]
    assert shown(life) == [("1", "UNAVAILABLE", "unloaded")]


def test_a_failed_content_is_barred_until_it_is_forgiven() -> None:
    life = Lifecycle()
    loaded(life, "1", "one")
    life.fail("1", "it is truncated", "one", "its listing")
    assert shown(life) == [("1", "UNAVAILABLE", "it is truncated")]
    assert (life.barred("one"), life.barred("other")) == ("it is truncated", None)
    life.forgive(["one", "other"])
    assert life.bars == {"its listing": "it is truncated"}


def test_a_failure_without_a_digest_bars_nothing() -> None:
    life = Lifecycle()
    life.advance("1", State.FOUND)
    life.fail("1", "the store is down")
    assert life.barred("") is None


def test_what_is_barred_is_bounded() -> None:
    life = Lifecycle()
    for number in range(300):
        life.advance("1", State.FOUND)
        life.fail("1", "no", f"digest {number}")
    assert (life.barred("digest 0"), life.barred("digest 299")) == (None, "no")


def test_a_version_that_serves_goes_on_while_another_content_of_it_fails() -> None:
    life = Lifecycle()
    loaded(life, "1", "old")
    life.serve({"1": State.SERVING})
    life.advance("1", State.STAGING)
    assert shown(life) == [("1", "READY", "another content: being fetched")]
    life.fail("1", "it is no model", "new")
    assert shown(life) == [("1", "READY", "another content: it is no model")]
    assert life.barred("new") == "it is no model"
    assert life.versions["1"].digest == "old"


def test_a_version_that_ends_before_its_successor_is_there_is_not_ready() -> None:
    life = Lifecycle()
    life.serve(dict.fromkeys("12", State.SERVING))

    def rows(gap: State | None) -> list[tuple[str, str]]:
        return [
            each[2:] for each in life.rows("m", lambda version: gap if version == "1" else None)
        ]

    assert rows(None) == [("READY", ""), ("READY", "")]
    assert rows(State.DRAINING)[0] == (
        "UNLOADING",
        "finishing its requests, to make room; others wait",
    )
    gone = ("UNAVAILABLE", "it has made room for another version; requests wait")
    assert rows(State.REMOVED) == [gone, ("READY", "")]
    assert rows(State.LOADING)[0] == ("LOADING", "being opened again; requests wait")
    life.advance("1", State.LOADING)
    assert rows(State.REMOVED)[0] == ("LOADING", "another content: being made ready")
    life.serve({"2": State.SERVING})
    assert rows(State.REMOVED)[0] == ("UNLOADING", "finishing its requests")


def test_a_version_taken_back_is_barred_and_says_why() -> None:
    life = Lifecycle()
    loaded(life, "2", "two")
    life.serve({"1": State.SERVING, "2": State.CANARY})
    assert shown(life) == [("1", "READY", ""), ("2", "READY", "canary")]
    life.roll_back("2", "it errs")
    assert life.serve({"1": State.SERVING}) == []
    assert shown(life)[1] == ("2", "UNAVAILABLE", "it errs")
    assert life.barred("two") == "it errs"


def test_the_index_is_in_the_order_of_numbers() -> None:
    life = Lifecycle()
    for version in ("10", "9", "b", "a"):
        life.advance(version, State.FOUND)
    assert [each.version for each in life.rows("m")] == ["9", "10", "a", "b"]


def test_versions_that_left_the_repository_are_dropped_unless_they_serve() -> None:
    life = Lifecycle()
    life.serve({"1": State.SERVING})
    for version in ("2", "3"):
        life.advance(version, State.FOUND)
    life.forget(["3"])
    assert [*life.versions] == ["1", "3"]


def test_a_state_that_cannot_follow_is_refused() -> None:
    life = Lifecycle()
    life.advance("1", State.FOUND)
    with pytest.raises(ValueError, match="version 1 is found, not serving"):
        life.serve({"1": State.SERVING})


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("12"), st.sampled_from(State))))
def test_no_step_ends_what_serves_but_the_engines_or_a_rollback(
    steps: list[tuple[str, State]],
) -> None:
    life = Lifecycle()
    for version, state in steps:
        before = life.versions.get(version)
        try:
            life.advance(version, state, "why", f"{version} {state}")
        except ValueError:
            assert life.versions.get(version) == before
            continue
        after = life.versions[version]
        if before is not None and before.state in SERVES and after.state not in SERVES:
            assert state in (State.DRAINING, State.REMOVED, State.ROLLED_BACK)
        rows = {each.version: each.state for each in life.rows("m")}
        assert (rows[version] == "READY") == (after.state in SERVES)
