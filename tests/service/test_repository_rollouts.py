"""Rollouts of the versions that repositories have: what begins, goes on, comes after, is barred."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.config.schema import RolloutConfig
from penstock.errors import HttpError
from penstock.repository.rollout import Rollout, State
from penstock.repository.served import Served
from penstock.service.repository import Controller
from penstock.service.rollout_plan import entry_for
from tests.service.test_repository import Looks, Site, states, steps, until, with_ensemble

RULES = RolloutConfig(steps=(10, 50), sticky="x-user")


class Rolls(Site):
    """A repository whose models are rolled out, unless their own configurations say otherwise."""

    @asynccontextmanager
    async def controller(self, mode: Any = "poll", **more: Any) -> AsyncIterator[Controller]:
        async with super().controller(mode, **more) as made:
            made.rules = lambda name, own: entry_for(name, {"*": RULES}, own)
            yield made

    def served(self, name: str = "m") -> Served:
        found = self.engines.served(name)
        assert found is not None
        return found

    def rolling(self, name: str = "m") -> str | None:
        """The version that is being rolled out."""
        served = self.engines.served(name)
        return None if served is None or served.rolling is None else served.rolling.version

    async def end(self, controller: Controller, state: State, name: str = "m") -> None:
        """The rollout ends, as ``service/rollout.py`` does it."""
        before = self.served(name)
        rollout = before.rolling
        assert rollout is not None
        good = state is State.PROMOTED
        after: Rollout = rollout.promoted() if good else rollout.taken_back("it fails")
        await self.engines.change(name, lambda now: before.rolled(after))
        controller.rolled(before, after)


@pytest.fixture
async def site(tmp_path: Path) -> Rolls:
    made = Rolls(tmp_path)
    made.version("m", "1", "one")
    return made


async def test_a_further_version_is_rolled_out_and_the_first_one_is_not(site: Rolls) -> None:
    async with site.controller() as controller:
        await until(lambda: site.serves("m") == ["1"])
        assert site.served().rollout is None
        site.version("m", "2")
        await until(lambda: site.rolling() == "2")
        served = site.served()
        assert (served.default, served.weights, served.sticky) == (
            "1",
            {"1": 90, "2": 10},
            "x-user",
        )
        found = await states(controller)
        assert found == {"1": ("READY", ""), "2": ("READY", "canary")}
        await site.end(controller, State.PROMOTED)
        assert (site.default("m"), site.serves("m")) == ("2", ["2"])
        await controller.update("m", {"rollback": True})
        assert site.serves("m") == ["1"]


async def test_a_model_says_itself_how_its_versions_are_rolled_out(site: Rolls) -> None:
    def config(steps: str) -> None:
        site.put(
            "m/config.pbtxt",
            f'parameters {{ key: "penstock.rollout.steps" value {{ string_value: "{steps}" }} }}',
        )

    config("[30]")
    async with site.controller():
        await until(lambda: site.serves("m") == ["1"])
        config("[20]")  # which changes no version
        looks = Looks(site)
        await looks.wait(4)
        assert len(site.engines.made) == 1
        site.version("m", "2")
        await until(lambda: site.rolling() == "2")
        assert site.served().weights == {"1": 80, "2": 20}
        assert "parameters" not in site.served().versions["2"]["config"]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("steps", "[50, 5]", "penstock.rollout.steps: must be ascending"),
        ("stepz", "[5]", "penstock.rollout.stepz: is not a known key; did you mean steps?"),
        ("hold", "long", "penstock.rollout.hold: must be"),
        ("steps.first", "5", "rollout.m.steps: must be a list"),
    ],
)
async def test_a_model_whose_rollout_is_wrong_is_not_loaded(
    site: Rolls, key: str, value: str, text: str
) -> None:
    line = f'key: "penstock.rollout.{key}" value {{ string_value: "{value}" }}'
    site.put("m/config.pbtxt", f"parameters {{ {line} }}")
    async with site.controller("explicit") as controller:
        with pytest.raises(HttpError, match=r"m/config.pbtxt: ") as error:
            await controller.load("m", {})
        assert text in str(error.value)


async def test_a_version_that_was_taken_back_stays_so_until_an_operator_loads_it(
    site: Rolls, caplog: pytest.LogCaptureFixture
) -> None:
    async with site.controller() as controller:
        await until(lambda: site.serves("m") == ["1"])
        site.version("m", "2")
        await until(lambda: site.rolling() == "2")
        await site.end(controller, State.TAKEN_BACK)
        looks = Looks(site)
        await looks.wait(4)
        assert site.serves("m") == ["1"]
        assert (await states(controller))["2"] == ("UNAVAILABLE", "it fails")
        assert "cannot be served" not in caplog.text  # the rollout has told why
        await controller.load("m", {})
        assert site.rolling() == "2"


async def test_a_version_is_taken_back_that_an_earlier_controller_has_loaded(site: Rolls) -> None:
    async with site.controller():
        await until(lambda: site.serves("m") == ["1"])
        site.version("m", "2")
        await until(lambda: site.rolling() == "2")
    async with site.controller() as controller:
        looks = Looks(site)
        await looks.wait(3)
        assert (await states(controller))["2"] == ("READY", "canary")
        assert len(site.engines.made) == 2
    async with site.controller("explicit") as controller:
        await controller.index()  # which looks
        await site.end(controller, State.TAKEN_BACK)
        with pytest.raises(HttpError, match="version 2: it fails"):
            await controller._shared_load("m", {}, look=False)  # what a poll does
        assert site.serves("m") == ["1"]


async def test_a_newer_version_takes_the_place_of_the_one_that_is_being_rolled_out(
    site: Rolls,
) -> None:
    async with site.controller() as controller:
        await until(lambda: site.serves("m") == ["1"])
        site.version("m", "2")
        await until(lambda: site.rolling() == "2")
        site.version("m", "3", "broken")
        looks = Looks(site)
        await looks.wait(4)
        assert site.rolling() == "2"
        site.version("m", "4")
        await until(lambda: site.rolling() == "4")
        assert (site.default("m"), site.serves("m")) == ("1", ["1", "4"])
        site.version("m", "4", "mended")
        await until(lambda: site.engines.made[-1][2] == "mended")
        await until(lambda: site.rolling() == "4")
        assert site.served().weights == {"1": 90, "4": 10}
        await site.end(controller, State.PROMOTED)
        assert site.serves("m") == ["4"]


async def test_versions_that_the_policy_wants_stay(site: Rolls) -> None:
    site.put("m/config.pbtxt", "version_policy { all {} }")
    async with site.controller() as controller:
        await until(lambda: site.serves("m") == ["1"])
        site.version("m", "2")
        await until(lambda: site.rolling() == "2")
        site.version("m", "3")
        await until(lambda: site.rolling() == "3")
        made = len(site.engines.made)
        await site.end(controller, State.PROMOTED)
        looks = Looks(site)
        await looks.wait(4)
        assert (site.default("m"), site.serves("m")) == ("3", ["1", "2", "3"])
        assert len(site.engines.made) == made


async def test_a_policy_that_does_not_want_the_new_version_takes_it_back(site: Rolls) -> None:
    async with site.controller():
        await until(lambda: site.serves("m") == ["1"])
        site.version("m", "2")
        await until(lambda: site.rolling() == "2")
        site.put("m/config.pbtxt", "version_policy { specific { versions: 1 } }")
        await until(lambda: site.rolling() is None and site.serves("m") == ["1"])


async def test_a_policy_goes_back_to_an_older_version_at_once(site: Rolls) -> None:
    async with site.controller() as controller:
        await until(lambda: site.serves("m") == ["1"])
        site.version("m", "2")
        await until(lambda: site.rolling() == "2")
        await site.end(controller, State.PROMOTED)
        site.put("m/config.pbtxt", "version_policy { specific { versions: 1 } }")
        await until(lambda: (site.default("m"), site.serves("m")) == ("1", ["1"]))


async def test_other_files_of_the_version_that_serves_are_taken_by_an_operator_only(
    site: Rolls, caplog: pytest.LogCaptureFixture
) -> None:
    async with site.controller() as controller:
        await until(lambda: site.serves("m") == ["1"])
        site.version("m", "1", "other")
        looks = Looks(site)
        await looks.wait(6)
        assert [text for _, _, text in site.engines.made] == ["one"]
        text = "its files have changed, which cannot be rolled out under the same number"
        assert text in (await states(controller))["1"][1]
        assert caplog.text.count(text) == 1
        site.put("m/config.pbtxt", "max_batch_size: 8")  # is no other file
        await controller.load("m", {})
        assert [text for _, _, text in site.engines.made] == ["one", "other"]
        assert (await states(controller))["1"] == ("READY", "")


async def test_weights_of_an_operator_keep_requests_from_a_newer_version(
    site: Rolls, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with site.controller() as controller:
        await until(lambda: site.serves("m") == ["1"])
        await controller.update("m", {"weights": {"1": 1}})
        assert site.served().sticky == "x-user"
        site.version("m", "2")
        await until(lambda: site.serves("m") == ["1", "2"])
        assert (site.rolling(), site.default("m")) == (None, "1")
        found = (await states(controller))["2"]
        assert found == ("READY", "standby: it has no weight")
        await until(lambda: "version 2 is ready, and serves by its name only while" in caplog.text)


async def test_two_operators_who_take_a_version_back_take_no_other_one_back(site: Rolls) -> None:
    async with site.controller() as controller:
        await until(lambda: site.serves("m") == ["1"])
        site.version("m", "2")
        await until(lambda: site.rolling() == "2")
        await site.end(controller, State.PROMOTED)
        site.version("m", "3")
        await until(lambda: site.rolling() == "3")
        await controller.update("m", {"rollback": True})
        with pytest.raises(HttpError, match="no version to which it could go back"):
            await controller.update("m", {"rollback": True})
        assert site.serves("m") == ["2"]


async def test_an_operator_promotes_a_version_before_its_time(site: Rolls) -> None:
    async with site.controller() as controller:
        await until(lambda: site.serves("m") == ["1"])
        site.version("m", "2")
        await until(lambda: site.rolling() == "2")
        with pytest.raises(HttpError, match="version 2 of m is being rolled out"):
            await controller.update("m", {"weights": {"1": 50, "2": 50}})
        await controller.update("m", {"promote": "2"})
        assert site.serves("m") == ["2"]


async def test_an_unload_ends_a_rollout(site: Rolls) -> None:
    async with site.controller() as controller:
        await until(lambda: site.serves("m") == ["1"])
        site.version("m", "2")
        await until(lambda: site.rolling() == "2")
        await controller.unload("m")
        assert (site.serves("m"), site.rolling()) == ([], None)
        await controller.load("m", {})
        assert (site.serves("m"), site.rolling()) == (["2"], None)


async def test_a_label_keeps_a_version_that_was_taken_back_and_the_index_tells_why(
    site: Rolls,
) -> None:
    async with site.controller() as controller:
        await until(lambda: site.serves("m") == ["1"])
        site.version("m", "2")
        await until(lambda: site.rolling() == "2")
        await controller.update("m", {"labels": {"canary": "2"}})
        await site.end(controller, State.TAKEN_BACK)
        assert (site.default("m"), site.serves("m")) == ("1", ["1", "2"])
        assert (await states(controller))["2"] == ("READY", "taken back: it fails")


@pytest.mark.parametrize("mode", ["poll", "explicit"])
async def test_an_ensemble_follows_a_model_when_its_rollout_has_ended_well(
    site: Rolls, mode: str
) -> None:
    with_ensemble(site)
    shutil.rmtree(site.folder / "m")
    async with site.controller(mode) as controller:
        if mode == "explicit":
            await controller.load("e", {})
        await until(lambda: site.serves("e"))
        site.version("a", "2")
        if mode == "explicit":
            await controller.load("a", {})
        await until(lambda: site.rolling("a") == "2")
        assert steps(site) == ["1", "1"]
        await site.end(controller, State.PROMOTED, "a")
        await until(lambda: steps(site) == ["2", "1"])
