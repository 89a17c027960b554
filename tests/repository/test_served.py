"""The state of a model's name: what may be changed, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import VersionsError
from penstock.repository.rollout import Plan, Shadow, State, Step
from penstock.repository.served import Served, at_start, is_at_start


def about(version: str, **more: object) -> dict[str, object]:
    return {"name": "a", "version": version, **more}


ONE = Served(name="a").with_version(about("1"))
TWO = ONE.with_version(about("2"))
LABELLED = TWO.with_label("stable", "1")


PLAN = Plan(steps=(Step(share=5, hold=1.0), Step(share=50, hold=1.0)), shadow=Shadow(share=10))
ROLLING = TWO.with_rollout(about("2"), PLAN, 7)


def test_the_first_version_becomes_the_default_and_a_further_one_only_if_wanted() -> None:
    assert ONE.default == "1"
    assert TWO.default == "1"
    assert ONE.with_version(about("2"), default=True).default == "2"
    assert TWO.with_default("2").default == "2"


def test_a_version_that_is_there_with_the_same_description_stays() -> None:
    assert TWO.with_version(about("2")) == TWO
    with pytest.raises(VersionsError, match="version 2 of a is there already"):
        TWO.with_version(about("2", path="elsewhere"))
    again = TWO.with_version(about("1", path="elsewhere"), again=True)
    assert (again.versions["1"]["path"], again.default) == ("elsewhere", "1")
    assert [*again.versions] == ["1", "2"]


def test_a_text_names_a_version_or_a_label() -> None:
    assert LABELLED.resolve("2") == "2"
    assert LABELLED.resolve("stable") == "1"
    assert LABELLED.with_label("stable", "2").resolve("stable") == "2"
    assert LABELLED.without_label("stable").resolve("stable") is None


def test_the_share_of_a_removed_version_goes_to_the_others() -> None:
    three = TWO.with_version(about("3")).with_weights({"1": 80, "2": 15, "3": 5})
    assert three.without_version("3").weights == {"1": 80, "2": 15}
    assert TWO.with_weights({"1": 0, "2": 5}).without_version("2").weights == {}


def test_only_one_version_is_left_by_a_swap_and_none_by_an_unload() -> None:
    assert TWO.with_weights({"2": 1}).only(about("3")) == Served(name="a").with_version(about("3"))
    assert LABELLED.without_versions() == Served(name="a")
    assert ONE.without_version("1") == Served(name="a")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda: Served(name="b", versions={"1": about("1")}, default="1"), "described as another"),
        (lambda: Served(name="a", versions={"1": about("1")}), "has versions and no default"),
        (lambda: ONE.with_version(about("")), "a version is a printable text of 1 to 64"),
        (lambda: ONE.with_version({"name": "a", "version": 2}), "a version is a printable text"),
        (lambda: ONE.with_default("2"), "a has no version '2'"),
        (lambda: ONE.with_label("2", "1"), "'2' is a version, or could be one"),
        (lambda: ONE.with_label("stable", "2"), "a has no version '2'"),
        (lambda: ONE.without_label("stable"), "a has no label 'stable'"),
        (lambda: LABELLED.with_version(about("stable")), "'stable' is a version, or could be one"),
        (lambda: LABELLED.with_default("2").without_version("1"), "label 'stable' is on version 1"),
        (lambda: LABELLED.only(about("3")), "label 'stable' is on version 1 of a: move it"),
        (lambda: TWO.without_version("1"), "version 1 is the default of a: make another one"),
        (lambda: TWO.without_version("3"), "a has no version '3'"),
        (lambda: ONE.with_weights({"2": 1}), "a has no version '2'"),
        (lambda: ONE.with_weights({"1": -1}), "the weight of version 1 is -1"),
        (lambda: ONE.with_weights({"1": True}), "the weight of version 1 is True"),
        (lambda: ONE.with_weights({"1": 0}), "all weights of a are 0"),
    ],
)
def test_what_makes_no_sense_is_refused(change: Callable[[], Served], why: str) -> None:
    with pytest.raises(VersionsError, match=why):
        change()


@given(st.lists(st.tuples(st.sampled_from("vdlwr"), st.sampled_from("123")), max_size=12))
def test_no_row_of_changes_makes_a_state_that_json_or_a_caller_cannot_use(
    steps: list[tuple[str, str]],
) -> None:
    state = Served(name="a")
    for kind, version in steps:
        try:
            match kind:
                case "v":
                    state = state.with_version(about(version))
                case "d":
                    state = state.with_default(version)
                case "l":
                    state = state.with_label("canary", version)
                case "w":
                    state = state.with_weights({version: 5})
                case _:
                    state = state.without_version(version)
        except VersionsError:
            continue
        assert (state.default is None) == (not state.versions)
        assert {*state.labels.values(), *state.weights} <= {*state.versions}
        assert Served.of_plain(json.loads(json.dumps(state.plain()))) == state


def test_a_version_of_the_services_own_code_is_told_from_one_that_is_to_be_made() -> None:
    assert is_at_start(at_start("a", "1"))
    assert not is_at_start(about("1"))


def test_a_rollout_has_the_weights_of_its_step() -> None:
    assert (ROLLING.default, ROLLING.weights) == ("1", {"1": 95, "2": 5})
    rollout = ROLLING.rolling
    assert rollout is not None
    further = ROLLING.rolled(rollout.next())
    assert (further.default, further.weights) == ("1", {"1": 50, "2": 50})


def test_a_promoted_version_is_the_default_and_the_old_one_goes() -> None:
    rollout = ROLLING.rolling
    assert rollout is not None
    over = ROLLING.rolled(rollout.promoted())
    assert (over.default, over.weights, [*over.versions]) == ("2", {}, ["2"])
    assert over.rolling is None
    assert over.rollout is not None
    assert over.rollout.state is State.PROMOTED
    labelled = LABELLED.with_rollout(about("2"), PLAN, 7)
    assert [*labelled.rolled(rollout.promoted()).versions] == ["1", "2"]


def test_a_version_that_is_taken_back_goes() -> None:
    rollout = ROLLING.rolling
    assert rollout is not None
    over = ROLLING.rolled(rollout.taken_back("it fails"))
    assert (over.default, over.weights, [*over.versions]) == ("1", {}, ["1"])
    assert over.with_version(about("2")).with_rollout(about("2"), PLAN, 8).rolling is not None


@pytest.mark.parametrize(
    "change",
    [
        lambda served: served.with_weights({"1": 1, "2": 1}),
        lambda served: served.with_default("2"),
        lambda served: served.without_version("2"),
        lambda served: served.only(about("3")),
        lambda served: served.with_version(about("2", path="elsewhere"), again=True),
    ],
)
def test_nothing_else_changes_what_a_rollout_decides(change: Callable[[Served], Served]) -> None:
    with pytest.raises(VersionsError, match="version 2 of a is being rolled out: promote it, or"):
        change(ROLLING)


def test_a_rollout_leaves_labels_and_other_versions_alone() -> None:
    more = ROLLING.with_version(about("3")).with_label("next", "3")
    assert more.rolling == ROLLING.rolling
    assert ROLLING.without_versions() == Served(name="a")


def test_the_default_version_is_not_rolled_out() -> None:
    with pytest.raises(VersionsError, match="the default already"):
        TWO.with_rollout(about("1"), PLAN, 7)


@pytest.mark.parametrize("version", ["2", "3"])
def test_a_further_version_takes_the_place_of_one_that_is_being_rolled_out(version: str) -> None:
    new = about(version, path="elsewhere")
    found = ROLLING.with_rollout(new, PLAN, 8)
    assert found.versions == {"1": about("1"), version: new}
    assert (found.default, found.weights) == ("1", {"1": 95, version: 5})
    assert found.rolling is not None
    assert found.rolling.number == 8


def test_versions_that_are_wanted_stay_but_for_one_that_was_taken_back() -> None:
    third = ROLLING.with_rollout(about("3"), PLAN, 8, keep=("1", "2", "3"))
    assert [*third.versions] == ["1", "2", "3"]
    rollout = third.rolling
    assert rollout is not None
    assert [*third.rolled(rollout.promoted()).versions] == ["1", "2", "3"]
    assert [*third.rolled(rollout.taken_back("it fails")).versions] == ["1", "2"]
    assert Served.of_plain(json.loads(json.dumps(third.plain()))) == third


def test_a_rollout_is_plain_data() -> None:
    assert Served.of_plain(json.loads(json.dumps(ROLLING.plain()))) == ROLLING
