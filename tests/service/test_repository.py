"""The controller of a service's repositories: what is loaded when, what stays, what is told."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import HttpError, PackageError, RequestError, StartupError, UnknownService
from penstock.repository.served import Served, Update
from penstock.service.catalog import Catalog
from penstock.service.repository import Controller
from penstock.service.repository_access import RepositoryOfService
from penstock.store.cache import Cache
from penstock.store.source import Source
from penstock.supervisor.queries import AllEngines


class Engines:
    """In the place of all engines: a file with the text "broken" is no model."""

    def __init__(self) -> None:
        self.states: dict[str | None, Served] = {}
        self.made: list[tuple[str, str, str]] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.ending: set[tuple[str, str]] = set()
        self.history: defaultdict[str | None, list[list[str]]] = defaultdict(list)

    def names(self) -> list[str | None]:
        return [*self.states]

    def served(self, name: str | None) -> Served | None:
        return self.states.get(name)

    def has(self, name: str, version: str) -> bool:
        return (name, version) in self.ending

    async def swap(self, description: Mapping[str, Any]) -> None:
        raise NotImplementedError

    async def change(self, name: str | None, update: Update, *, ended: bool = False) -> None:
        before = self.states.get(name)
        after = update(before)
        for version, description in after.versions.items():
            if before is None or dict(before.versions.get(version, {})) != dict(description):
                await self.make(description)
        after = self.states[name] = update(self.states.get(name))
        versions = [*after.versions]
        if self.history[name][-1:] != [versions]:
            self.history[name].append(versions)

    async def make(self, description: Mapping[str, Any]) -> None:
        files = [*Path(description["path"]).rglob("*.onnx")] if description["path"] else []
        texts = [file.read_text() for file in files]
        self.made.append((description["name"], description["version"], "".join(texts)))
        await self.may_go_on.wait()
        if "broken" in texts:
            raise StartupError("it is no model")


class Site:
    """A repository in a folder, and its controller."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "models"
        self.folder.mkdir()
        self.engines = Engines()
        self.cache = Cache(folder / "cache")
        self.source = Source(self.folder, settle=0.0)
        self.catalog = Catalog([self.source], self.cache)

    def put(self, path: str, text: str = "good") -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def version(self, name: str, version: str, text: str = "good") -> None:
        self.put(f"{name}/{version}/model.onnx", text)

    @asynccontextmanager
    async def controller(self, mode: Any = "explicit", **more: Any) -> AsyncIterator[Controller]:
        made = Controller(
            self.catalog, self.engines, self.engines.has, mode=mode, poll_seconds=0.01, **more
        )
        made.start()
        try:
            yield made
        finally:
            await made.close()

    def serves(self, name: str) -> list[str]:
        served = self.engines.served(name)
        return [] if served is None else [*served.versions]

    def default(self, name: str) -> str | None:
        served = self.engines.served(name)
        return None if served is None else served.default


@pytest.fixture
async def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def states(controller: Controller, name: str = "m") -> dict[str, tuple[str, str]]:
    rows = await controller.index()
    return {
        each["version"]: (each["state"], each["reason"]) for each in rows if each["name"] == name
    }


# Explicit.


async def test_nothing_is_loaded_until_an_operator_says_so(site: Site) -> None:
    site.version("m", "1")
    async with site.controller() as controller:
        await until(lambda: controller.why_unready() is None)
        assert site.engines.made == []
        assert await states(controller) == {"1": ("UNAVAILABLE", "not loaded")}
        await controller.load("m", {})
        assert site.serves("m") == ["1"]
        assert await states(controller) == {"1": ("READY", "")}
        assert await controller.index(ready=True) == [
            {
                "name": "m",
                "version": "1",
                "state": "READY",
                "reason": "",
                "default": True,
                "labels": [],
                "digest": (await controller.index())[0]["digest"],
            }
        ]


@pytest.mark.parametrize(("load", "loaded"), [(["a"], ["a"]), (["*"], ["a", "b"])])
async def test_named_models_are_loaded_at_the_start(
    site: Site, load: list[str], loaded: list[str]
) -> None:
    site.version("a", "1")
    site.version("b", "1")
    async with site.controller(load=load) as controller:
        assert controller.why_unready() is not None
        await until(lambda: controller.why_unready() is None)
        assert [each for each in "ab" if site.serves(each)] == loaded


async def test_the_service_is_not_ready_while_a_model_of_the_start_is_missing(site: Site) -> None:
    site.version("a", "1", "broken")
    async with site.controller(load=["a", "b"]) as controller:
        await until(lambda: "being" not in str(controller.why_unready()))
        assert controller.why_unready() == "model 'a': it is no model"
        site.version("a", "2")
        site.version("b", "1")
        await controller.load("a", {})
        await controller.load("b", {})
        await until(lambda: controller.why_unready() is None)


async def test_a_model_of_the_start_that_no_repository_has_is_told(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.version("a", "1")
    async with site.controller(load=["models/a"]) as controller:
        await until(lambda: "no repository has it" in str(controller.why_unready()))
        await until(lambda: caplog.messages)
    (text,) = caplog.messages
    assert text == "model models/a cannot be loaded: no repository has it, but a"


@pytest.mark.parametrize("mode", ["poll", "explicit"])
async def test_repositories_without_a_model_are_told_at_the_start(
    site: Site, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    async with site.controller(mode) as controller:
        await until(lambda: controller.why_unready() is None)
    assert caplog.messages == [f"no model in {site.folder} yet"]


async def test_a_load_serves_the_newest_version_and_ends_the_one_before(site: Site) -> None:
    site.version("m", "1")
    async with site.controller() as controller:
        await controller.load("m", {})
        site.version("m", "2")
        site.engines.ending.add(("m", "1"))
        await controller.load("m", {})
        assert (site.serves("m"), site.default("m")) == (["2"], "2")
        found = await states(controller)
        assert found == {"1": ("UNLOADING", "finishing its requests"), "2": ("READY", "")}
        site.engines.ending.clear()
        while (await states(controller))["1"] != ("UNAVAILABLE", "unloaded"):
            await asyncio.sleep(0.01)


async def test_two_loads_at_once_cost_one(site: Site) -> None:
    site.version("m", "1")
    async with site.controller() as controller:
        await asyncio.gather(*(controller.load("m", {}) for _ in range(5)))
        assert site.engines.made == [("m", "1", "good")]


async def test_two_loads_of_a_broken_model_at_once_both_fail_and_try_it_once(site: Site) -> None:
    site.version("m", "1", "broken")
    async with site.controller() as controller:
        both = await asyncio.gather(
            *(controller.load("m", {}) for _ in range(2)), return_exceptions=True
        )
        text = "failed to load 'm': version 1: it is no model"
        assert [str(each) for each in both] == [text] * 2
        assert len(site.engines.made) == 1


async def test_a_load_that_comes_while_one_runs_sees_later_files(site: Site) -> None:
    site.version("m", "1")
    site.engines.may_go_on.clear()
    async with site.controller() as controller:
        first = asyncio.ensure_future(controller.load("m", {}))
        await until(lambda: site.engines.made)
        site.version("m", "2")
        second = asyncio.ensure_future(controller.load("m", {}))
        await asyncio.sleep(0)
        site.engines.may_go_on.set()
        await asyncio.gather(first, second)
        assert site.serves("m") == ["2"]


async def test_an_operators_load_while_a_poll_loads_the_model_tries_again_what_failed(
    site: Site,
) -> None:
    site.version("m", "1", "broken")
    async with site.controller("poll") as controller:
        await until(lambda: "no model" in str(controller.why_unready()))
        tries = len(site.engines.made)
        began, may_go_on = list[str](), asyncio.Event()
        load = controller._load

        async def slow(name: str, parameters: Any, *, look: bool, forgiven: Any) -> None:
            if not look:
                began.append(name)
                await may_go_on.wait()
            await load(name, parameters, look=look, forgiven=forgiven)

        controller._load = slow  # type: ignore[method-assign]
        await until(lambda: began)
        told = asyncio.ensure_future(controller.load("m", {}))
        await asyncio.sleep(0)
        may_go_on.set()
        with pytest.raises(HttpError, match="it is no model"):
            await told
        assert len(site.engines.made) == tries + 1


async def test_each_load_of_a_broken_model_fails(site: Site) -> None:
    site.version("m", "1", "broken")
    async with site.controller() as controller:
        for tries in (1, 2):
            with pytest.raises(HttpError, match="failed to load 'm': version 1: it is no model"):
                await controller.load("m", {})
            assert len(site.engines.made) == tries  # an operator said so
        assert await states(controller) == {"1": ("UNAVAILABLE", "it is no model")}


async def test_a_broken_version_leaves_the_one_before(site: Site) -> None:
    site.version("m", "1")
    async with site.controller() as controller:
        await controller.load("m", {})
        site.version("m", "2", "broken")
        with pytest.raises(HttpError, match="version 2: it is no model"):
            await controller.load("m", {})
        assert (site.serves("m"), site.default("m")) == (["1"], "1")
        assert await states(controller) == {
            "1": ("READY", ""),
            "2": ("UNAVAILABLE", "it is no model"),
        }


async def test_another_content_of_a_version_takes_its_place(site: Site) -> None:
    site.version("m", "1", "old")
    async with site.controller() as controller:
        await controller.load("m", {})
        site.version("m", "1", "new")
        await controller.load("m", {})
        assert [text for _, _, text in site.engines.made] == ["old", "new"]
        site.version("m", "1", "broken")
        with pytest.raises(HttpError):
            await controller.load("m", {})
        assert await states(controller) == {"1": ("READY", "another content: it is no model")}
        site.version("m", "1", "new")
        await controller.load("m", {})
        assert await states(controller) == {"1": ("READY", "")}


async def test_a_load_of_what_serves_does_nothing(site: Site) -> None:
    site.version("m", "1")
    async with site.controller() as controller:
        await controller.load("m", {})
        (site.folder / "m/1/model.onnx").touch()
        await controller.load("m", {})
        assert len(site.engines.made) == 1


async def test_an_unload_ends_all_versions_until_the_next_load(site: Site) -> None:
    for version in "123":
        site.version("m", version)
    site.put("m/config.pbtxt", "version_policy { all {} }")
    async with site.controller() as controller:
        await controller.load("m", {})
        assert (site.serves("m"), site.default("m")) == (["1", "2", "3"], "3")
        await controller.unload("m")
        await controller.unload("m")
        assert site.serves("m") == []
        await until(lambda: not site.engines.ending)
        while {*(await states(controller)).values()} != {("UNAVAILABLE", "unloaded")}:
            await asyncio.sleep(0.01)
        await controller.load("m", {})
        assert site.serves("m") == ["1", "2", "3"]


@pytest.mark.parametrize("name", ["none", "../m", ""])
async def test_models_that_no_repository_has_are_refused(site: Site, name: str) -> None:
    async with site.controller() as controller:
        with pytest.raises(UnknownService, match="failed to load"):
            await controller.load(name, {})
        with pytest.raises(UnknownService, match="failed to unload"):
            await controller.unload(name)
        with pytest.raises(UnknownService, match="there is no model"):
            await controller.update(name, {"rollback": True})
        assert await controller.index() == []


async def test_the_files_in_use_are_kept_and_others_released(site: Site) -> None:
    site.version("m", "1", "one")
    async with site.controller() as controller:
        await controller.load("m", {})
        served = site.engines.served("m")
        assert served is not None
        path = Path(served.versions["1"]["path"])
        shutil.rmtree(site.folder / "m")
        site.cache.limit = 1
        assert (path / "model.onnx").read_text() == "one"
        assert not path.is_relative_to(site.folder)


async def test_an_operator_sends_files_and_a_configuration(site: Site) -> None:
    sent = {"config": json.dumps({"max_batch_size": 8}), "file:7/model.onnx": b"sent"}
    async with site.controller() as controller:
        await controller.load("m", sent)
        assert site.serves("m") == ["7"]
        assert site.engines.made == [("m", "7", "sent")]
        served = site.engines.served("m")
        assert served is not None
        assert served.versions["7"]["config"]["max_batch_size"] == 8


async def test_an_operator_sends_a_configuration_only(site: Site) -> None:
    site.version("m", "1")
    site.put("m/config.pbtxt", "max_batch_size: 4")
    async with site.controller() as controller:
        await controller.load("m", {"config": '{"max_batch_size": 8}'})
        served = site.engines.served("m")
        assert served is not None
        assert served.versions["1"]["config"]["max_batch_size"] == 8
        await controller.load("m", {})
        served = site.engines.served("m")
        assert served is not None
        assert served.versions["1"]["config"]["max_batch_size"] == 4


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ({"config": "{"}, "the config is no JSON"),
        ({"config": "[]"}, "the config is no JSON object"),
        ({"config": '{"sequence_batching": {}}'}, "sequence_batching"),
        ({"config": "{}"}, "no repository has it"),
        ({"file:1/model.onnx": b""}, "files are given without a config"),
        ({"config": "{}", "file:../../x/model.onnx": b""}, "could leave the repository"),
        ({"config": "{}", "file:/etc/passwd": b""}, "the file"),
        ({"config": "{}", "file:1": b""}, "it has no version"),
    ],
)
async def test_what_an_operator_sends_is_checked(
    site: Site, sent: dict[str, Any], text: str
) -> None:
    async with site.controller() as controller:
        with pytest.raises(HttpError, match="failed to load 'm'") as raised:
            await controller.load("m", sent)
        assert text in str(raised.value)
        assert site.engines.made == []
        assert not [*site.folder.parent.glob("x*")]


async def test_files_that_an_operator_sends_are_refused_where_versions_must_be_signed(
    site: Site,
) -> None:
    site.catalog = Catalog([site.source], site.cache, "a key")
    async with site.controller() as controller:
        with pytest.raises(HttpError, match="versions must be signed"):
            await controller.load("m", {"config": "{}", "file:1/model.onnx": b"1"})
        assert site.engines.made == []


# Polls.


async def test_polls_serve_what_comes(site: Site) -> None:
    site.version("m", "1")
    async with site.controller("poll") as controller:
        await until(lambda: controller.why_unready() is None)
        assert site.serves("m") == ["1"]
        site.version("m", "2")
        await until(lambda: site.serves("m") == ["2"])
        site.version("n", "1")
        await until(lambda: site.serves("n") == ["1"])


async def test_a_version_that_is_being_copied_is_told_once_and_is_no_error(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.service.repository")
    site.version("m", "1")
    async with site.controller("poll"):
        await until(lambda: site.serves("m"))
        site.version("m", "2")
        looks = Looks(site)
        for part in ("a", "b", "c"):  # each is another reason
            site.put(f"m/2/{part}.part")
            (site.folder / "m/2" / f"{part}.part").touch()
            await looks.wait(2)
            (site.folder / "m/2" / f"{part}.part").rename(site.folder / "m/2" / part)
            site.put(f"m/2/{part}-00001-of-00002.bin")
            await looks.wait(2)
            (site.folder / "m/2" / f"{part}-00001-of-00002.bin").unlink()
        await until(lambda: site.serves("m") == ["2"])
    told = [each for each in caplog.records if "version 2" in each.getMessage()]
    assert [each.levelno for each in told if "awaited" in each.getMessage()] == [logging.INFO]
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def test_a_broken_content_is_tried_once_and_told_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    site.version("m", "1")
    async with site.controller("poll"):
        await until(lambda: site.serves("m"))
        site.version("m", "2", "broken")
        await until(lambda: len(site.engines.made) > 1)
        looks = Looks(site)
        await looks.wait(5)
        assert len(site.engines.made) == 2
        (site.folder / "m/2/model.onnx").touch()  # the same content again
        await looks.wait(5)
        assert len(site.engines.made) == 2
        site.version("m", "2", "mended")
        await until(lambda: site.serves("m") == ["2"])
    told = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert told == [
        "model m: version 2 cannot be served: it is no model; version 1 serves",
    ]


@pytest.mark.parametrize("step", ["fetched", "opened"])
async def test_an_exception_that_nothing_foresees_fails_the_version_and_does_not_end_the_polls(
    site: Site, step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*arguments: Any) -> Any:
        raise OSError(24, "Too many open files")

    site.version("m", "1")
    async with site.controller("poll"):
        await until(lambda: site.serves("m"))
        with monkeypatch.context() as broken:
            if step == "fetched":
                broken.setattr(site.catalog, "hold", fails)
            else:
                broken.setattr(site.engines, "make", fails)
            site.version("m", "2")
            await until(lambda: caplog.records)
            await Looks(site).wait(3)
        await until(lambda: site.serves("m") == ["2"])
    (told,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    why = "OSError(24, 'Too many open files')"
    text = f"model m: version 2 cannot be served: {why}; version 1 serves"
    assert (told.getMessage(), told.exc_info is not None) == (text, True)


async def test_an_operator_is_told_of_an_exception_that_nothing_foresees(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(site.catalog, "overriding", fails)
    async with site.controller() as controller:
        engine = RepositoryOfService(AllEngines({}), controller)
        answer = await engine.answer("load", "m", {"config": ["", "{}"]})
    assert answer == {"error": [500, "OSError(24, 'Too many open files')"]}


class Looks:
    """Counts the scans of a site's repository."""

    def __init__(self, site: Site) -> None:
        self.count = 0
        scan = site.catalog.scan

        def counted() -> Any:
            self.count += 1
            return scan()

        site.catalog.scan = counted  # type: ignore[method-assign]

    async def wait(self, count: int) -> None:
        goal = self.count + count
        await until(lambda: self.count >= goal)


@pytest.mark.parametrize("what", ["a version", "the model", "everything", "the repository"])
async def test_what_goes_from_a_repository_changes_nothing(
    site: Site, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    for version in ("1", "2"):
        site.version("m", version)
    async with site.controller("poll"):
        await until(lambda: site.serves("m") == ["2"])
        looks = Looks(site)
        match what:
            case "a version":
                shutil.rmtree(site.folder / "m/2")
            case "the model":
                shutil.rmtree(site.folder / "m")
            case "everything":
                shutil.rmtree(site.folder / "m")
            case "the repository":
                shutil.rmtree(site.folder)
        await looks.wait(5)
        assert (site.serves("m"), len(site.engines.made)) == (["2"], 1)
        site.version("m", "3")
        await until(lambda: site.serves("m") == ["3"])
    outages = [each for each in caplog.records if "what serves goes on" in each.getMessage()]
    assert len(outages) == (what != "a version")


async def test_at_the_start_an_older_version_serves_if_the_newest_is_broken(site: Site) -> None:
    site.version("m", "1")
    site.version("m", "2")
    site.version("m", "3", "broken")
    async with site.controller("poll") as controller:
        await until(lambda: controller.why_unready() is None)
        assert (site.serves("m"), site.default("m")) == (["2"], "2")


async def test_an_unloaded_model_stays_so(site: Site) -> None:
    site.version("m", "1")
    async with site.controller("poll") as controller:
        await until(lambda: site.serves("m"))
        await controller.unload("m")
        looks = Looks(site)
        await looks.wait(3)
        assert site.serves("m") == []
        await controller.load("m", {})
        assert site.serves("m") == ["1"]


async def test_the_policy_decides_and_may_change(site: Site) -> None:
    for version in "123":
        site.version("m", version)
    site.put("m/config.pbtxt", "version_policy { latest { num_versions: 2 } }")
    async with site.controller("poll"):
        await until(lambda: site.serves("m") == ["2", "3"])
        site.put("m/config.pbtxt", "version_policy { specific { versions: [ 1, 3 ] } }")
        await until(lambda: sorted(site.serves("m")) == ["1", "3"])
        assert site.default("m") == "3"


@pytest.mark.parametrize(
    "before", ["all {}", "latest { num_versions: 1 }", "specific { versions: 2 }"]
)
async def test_a_policy_that_names_an_older_version_goes_back_to_it(
    site: Site, before: str
) -> None:
    site.version("m", "1")
    site.version("m", "2")
    site.put("m/config.pbtxt", f"version_policy {{ {before} }}")
    async with site.controller("poll") as controller:
        await until(lambda: controller.why_unready() is None)
        assert site.default("m") == "2"
        site.put("m/config.pbtxt", "version_policy { specific { versions: 1 } }")
        await until(lambda: site.serves("m") == ["1"])
        assert site.default("m") == "1"


async def test_a_version_with_a_label_that_was_promoted_stays_the_default_whatever_the_policy_names(
    site: Site,
) -> None:
    site.version("m", "1")
    site.version("m", "2")
    site.put("m/config.pbtxt", "version_policy { all {} }")
    async with site.controller() as controller:
        await controller.load("m", {})
        await controller.update("m", {"labels": {"stable": "2"}})
        site.put("m/config.pbtxt", "version_policy { specific { versions: 1 } }")
        await controller.load("m", {})
        assert (site.serves("m"), site.default("m")) == (["1", "2"], "1")
        await controller.update("m", {"promote": "stable"})
        await controller.load("m", {})
        assert (site.serves("m"), site.default("m")) == (["1", "2"], "2")
        await controller.update("m", {"labels": {"stable": None}})
        await controller.load("m", {})
        assert (site.serves("m"), site.default("m")) == (["1"], "1")


@pytest.mark.parametrize("policy", ["all {}", "latest { num_versions: 1 }"])
async def test_a_load_after_the_newest_version_was_deleted_goes_back_to_the_one_before(
    site: Site, policy: str
) -> None:
    site.version("m", "1")
    site.version("m", "2")
    site.put("m/config.pbtxt", f"version_policy {{ {policy} }}")
    async with site.controller() as controller:
        await controller.load("m", {})
        shutil.rmtree(site.folder / "m/2")
        await controller.load("m", {})
        assert (site.serves("m"), site.default("m")) == (["1"], "1")


async def test_a_policy_that_names_no_version_that_is_there_says_which_are(site: Site) -> None:
    site.version("m", "1")
    site.version("m", "2")
    site.put("m/config.pbtxt", "version_policy { specific { versions: 3 } }")
    async with site.controller() as controller:
        with pytest.raises(HttpError, match="policy wants specific 3, and there is 1, 2"):
            await controller.load("m", {})


async def test_a_model_whose_unload_is_refused_is_followed_as_before(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(name: str | None, update: Any, *, ended: bool = False) -> None:
        raise StartupError("an op needs it")

    site.version("m", "1")
    async with site.controller("poll") as controller:
        await until(lambda: site.serves("m") == ["1"])
        with monkeypatch.context() as now:
            now.setattr(site.engines, "change", refused)
            with pytest.raises(HttpError, match="an op needs it"):
                await controller.unload("m")
        site.version("m", "2")
        await until(lambda: site.serves("m") == ["2"])


async def test_a_model_that_is_unloaded_while_its_load_waits_is_not_loaded(site: Site) -> None:
    site.version("a", "1")
    site.version("b", "1")
    site.engines.may_go_on.clear()
    async with site.controller(at_once=1) as controller:
        first = asyncio.ensure_future(controller.load("a", {}))
        await until(lambda: site.engines.made)
        second = asyncio.ensure_future(controller.load("b", {}))
        looks = Looks(site)
        await looks.wait(1)
        await until(lambda: controller._turns._waiters)
        await controller.unload("b")
        site.engines.may_go_on.set()
        await first
        with pytest.raises(HttpError, match="failed to load 'b': an operator has unloaded it"):
            await second
        assert site.serves("b") == []
        await controller.load("b", {})
        assert site.serves("b") == ["1"]


async def test_the_repositories_are_listed_by_one_scan_at_a_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.version("m", "1")
    async with site.controller() as controller:
        await until(lambda: controller.why_unready() is None)
        aside, began, may_end = controller._aside, list[Any](), asyncio.Event()

        async def slow(function: Callable[..., Any], *arguments: Any) -> Any:
            if function == site.catalog.scan:
                began.append(function)
                found = await aside(function)
                await may_end.wait()
                return found
            return await aside(function, *arguments)

        monkeypatch.setattr(controller, "_aside", slow)
        index = asyncio.ensure_future(controller.index())
        await until(lambda: began)
        site.version("m", "2")
        load = asyncio.ensure_future(controller.load("m", {}))
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(began) == 1
        may_end.set()
        await asyncio.gather(index, load)
        assert (site.serves("m"), len(began)) == (["2"], 2)


async def test_a_model_without_a_valid_configuration_is_told_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.version("m", "1")
    site.put("m/config.pbtxt", "max_batch_size: x")
    async with site.controller("poll") as controller:
        looks = Looks(site)
        await looks.wait(4)
        (row,) = (await states(controller)).values()
        assert row[0] == "UNAVAILABLE"
        assert "config.pbtxt:1" in row[1]
        assert "config.pbtxt:1" in str(controller.why_unready())
    assert len([each for each in caplog.records if "cannot be loaded" in each.getMessage()]) == 1


async def test_what_is_ignored_is_told_once(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.version("m", "1")
    site.version("m", "v2")
    site.put("m/config.pbtxt", "max_batch_size: 1\noptimization {}")
    async with site.controller("poll"):
        await until(lambda: site.serves("m"))
        looks = Looks(site)
        await looks.wait(4)
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(told) == 2
    assert "ignored: v2" in told[0]
    assert "config.pbtxt:2: optimization has no effect" in told[1]


async def test_a_link_that_leaves_the_repository_stands_in_the_way_of_its_version_only(
    site: Site,
) -> None:
    site.version("m", "1")
    (site.folder.parent / "secret.onnx").write_text("secret")
    (site.folder / "m/2").mkdir()
    (site.folder / "m/2/model.onnx").symlink_to(site.folder.parent / "secret.onnx")
    async with site.controller("poll") as controller:
        await until(lambda: site.serves("m") == ["1"])
        assert (await states(controller))["2"] == (
            "UNAVAILABLE",
            "m/2/model.onnx is a link that leaves the repository",
        )
        site.version("m", "3")
        await until(lambda: site.serves("m") == ["3"])
        assert "secret" not in [text for _, _, text in site.engines.made]


async def test_a_model_of_two_repositories_is_served_of_neither(tmp_path: Path) -> None:
    site = Site(tmp_path)
    (tmp_path / "other/m/1").mkdir(parents=True)
    (tmp_path / "other/m/1/model.onnx").write_text("other")
    site.version("m", "1")
    site.catalog = Catalog([site.source, Source(tmp_path / "other", settle=0.0)], site.cache)
    async with site.controller() as controller:
        with pytest.raises(HttpError, match="it is in two repositories"):
            await controller.load("m", {})


# Labels, weights, default version, rollback.


async def test_labels_and_weights_keep_versions(site: Site) -> None:
    site.version("m", "1")
    async with site.controller("poll") as controller:
        await until(lambda: site.serves("m"))
        await controller.update("m", {"labels": {"stable": "1"}})
        site.version("m", "2")
        await until(lambda: site.serves("m") == ["1", "2"])
        assert site.default("m") == "2"
        await controller.update("m", {"weights": {"stable": 90, "2": 10}, "labels": {"new": "2"}})
        served = site.engines.served("m")
        assert served is not None
        assert served.weights == {"1": 90, "2": 10}
        rows = {each["version"]: each for each in await controller.index()}
        assert [rows[each]["weight"] for each in "12"] == [90, 10]
        assert rows["1"]["reason"] == "canary"
        assert rows["2"]["labels"] == ["new"]
        site.version("m", "3")
        await until(lambda: site.serves("m") == ["1", "2", "3"])
        assert site.default("m") == "2"  # somebody divides the requests
        await controller.update("m", {"promote": "3", "labels": {"stable": None}})
        assert (site.default("m"), site.engines.served("m").weights) == ("3", {})  # type: ignore[union-attr]


async def test_a_rollback_bars_the_version_that_is_taken_back(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.version("m", "1", "one")
    async with site.controller("poll") as controller:
        await until(lambda: site.serves("m"))
        with pytest.raises(HttpError, match="no version to which it could go back"):
            await controller.update("m", {"rollback": True})
        site.version("m", "2", "two")
        await until(lambda: site.serves("m") == ["2"])
        shutil.rmtree(site.folder / "m/1")
        await controller.update("m", {"rollback": True})
        assert site.serves("m") == ["1"]
        looks = Looks(site)
        await looks.wait(4)
        assert site.serves("m") == ["1"]
        assert (await states(controller))["2"] == ("UNAVAILABLE", "an operator took it back")
        assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
        await controller.load("m", {})
        assert site.serves("m") == ["2"]


async def test_what_an_operator_goes_back_to_may_have_any_signature_and_is_not_made_twice(
    site: Site,
) -> None:
    site.version("m", "1", "one")
    async with site.controller() as controller:
        await controller.load("m", {})
        site.version("m", "2", "two")
        await controller.load("m", {})
        await controller.update("m", {"rollback": True})
        served = site.engines.served("m")
        assert served is not None
        assert (served.default, served.versions["1"]["signature"]) == ("1", "any")
        shutil.rmtree(site.folder / "m/2")
        await controller.load("m", {})
        assert [each[1] for each in site.engines.made] == ["1", "2", "1"]
        # A version that has stayed goes on as it is.
        site.version("m", "3", "three")
        await controller.update("m", {"labels": {"stable": "1"}})
        await controller.load("m", {})
        await controller.update("m", {"rollback": True})
        assert [each[1] for each in site.engines.made] == ["1", "2", "1", "3"]
        assert site.serves("m") == ["1"]


@pytest.mark.parametrize(
    ("wanted", "error", "text"),
    [
        ({}, PackageError, "an update has one of the members"),
        ({"label": {}}, PackageError, "an update has no member 'label'"),
        ({"labels": {"a": 1}}, PackageError, "labels must be"),
        ({"weights": {"1": 0.5}}, PackageError, "weights must be"),
        ({"weights": {"1": True}}, PackageError, "weights must be"),
        ({"promote": 1}, PackageError, "promote must be a text"),
        ({"rollback": True, "promote": "1"}, PackageError, "an update has one"),
        ({"promote": "9"}, HttpError, "no version '9'"),
        ({"labels": {"canary": "9"}}, HttpError, "no version '9'"),
        ({"labels": {"2": "1"}}, HttpError, "cannot be a label"),
        ({"labels": {"canary": None}}, HttpError, "no label 'canary'"),
        ({"weights": {"9": 1}}, HttpError, "no version '9'"),
        ({"weights": {"1": -1}}, HttpError, "no whole number"),
    ],
)
async def test_wrong_updates_change_nothing(
    site: Site, wanted: dict[str, Any], error: type[RequestError], text: str
) -> None:
    site.version("m", "1")
    async with site.controller() as controller:
        await controller.load("m", {})
        before = site.engines.served("m")
        with pytest.raises(error, match=text):
            await controller.update("m", wanted)
        assert site.engines.served("m") == before


# Without room for two.


@pytest.mark.parametrize("of_the_model", [False, True])
async def test_with_swap_resource_the_version_before_goes_in_the_same_change(
    site: Site, of_the_model: bool
) -> None:
    site.version("m", "1")
    if of_the_model:
        parameter = 'key: "penstock.swap" value { string_value: "resource" }'
        site.put("m/config.pbtxt", f"parameters {{ {parameter} }}")
    swap = {} if of_the_model else {"swap": "resource"}
    async with site.controller(**swap) as controller:
        await controller.load("m", {})
        site.version("m", "2")
        await controller.load("m", {})
        assert site.engines.history["m"] == [["1"], ["2"]]
        await controller.update("m", {"rollback": True})
        await controller.update("m", {"labels": {"stable": "1"}})
        site.version("m", "3")
        await controller.load("m", {})
        assert site.engines.history["m"] == [["1"], ["2"], ["1"], ["1", "3"]]


async def test_a_model_whose_swap_is_no_word_of_it_is_refused(site: Site) -> None:
    site.version("m", "1")
    site.put("m/config.pbtxt", 'parameters { key: "penstock.swap" value { string_value: "no" } }')
    async with site.controller() as controller:
        with pytest.raises(HttpError, match="'no' is neither availability nor resource"):
            await controller.load("m", {})


# Ensembles.

ENSEMBLE = """
max_batch_size: 0
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling {
  step { model_name: "a" model_version: -1
    input_map { key: "x" value: "x" } output_map { key: "y" value: "z" } }
  step { model_name: "b" model_version: -1
    input_map { key: "x" value: "z" } output_map { key: "y" value: "y" } }
}
"""


def with_ensemble(site: Site) -> None:
    site.version("a", "1")
    site.version("b", "1")
    site.put("e/config.pbtxt", ENSEMBLE)


def steps(site: Site) -> list[str]:
    served = site.engines.served("e")
    assert served is not None
    return [each["version"] for each in served.versions["1"]["steps"]]


async def test_an_ensemble_is_loaded_with_the_models_it_runs(site: Site) -> None:
    with_ensemble(site)
    async with site.controller() as controller:
        await controller.load("e", {})
        assert [site.serves(each) for each in "abe"] == [["1"], ["1"], ["1"]]
        site.version("a", "2")
        await controller.load("a", {})
        assert steps(site) == ["2", "1"]


async def test_polls_let_an_ensemble_follow_its_models(site: Site) -> None:
    with_ensemble(site)
    async with site.controller("poll"):
        await until(lambda: site.serves("e"))
        site.version("b", "2")
        await until(lambda: steps(site) == ["1", "2"])
        site.version("b", "3", "broken")
        looks = Looks(site)
        await looks.wait(4)
        assert steps(site) == ["1", "2"]


async def test_a_model_that_an_ensemble_runs_is_not_unloaded_alone(site: Site) -> None:
    with_ensemble(site)
    async with site.controller() as controller:
        await controller.load("e", {})
        with pytest.raises(HttpError, match="failed to unload 'a': e uses it"):
            await controller.unload("a")
        assert site.serves("a")
        await controller.unload("a", unload_dependents=True)
        assert [site.serves(each) for each in "abe"] == [[], ["1"], []]
        await controller.load("e", {})
        await controller.unload("e", unload_dependents=True)
        assert [site.serves(each) for each in "abe"] == [[], [], []]


async def test_what_was_unloaded_with_an_ensemble_is_loaded_with_it_and_followed(
    site: Site,
) -> None:
    with_ensemble(site)
    async with site.controller("poll") as controller:
        await until(lambda: controller.why_unready() is None)
        await controller.unload("e", unload_dependents=True)
        assert [site.serves(each) for each in "abe"] == [[], [], []]
        await controller.load("e", {})
        await controller.unload("e")
        site.version("a", "2")
        await until(lambda: site.serves("a") == ["2"])


async def test_an_ensemble_says_why_a_model_that_it_runs_is_missing_and_its_load_tries_it_again(
    site: Site,
) -> None:
    with_ensemble(site)
    site.version("a", "1", "broken")
    async with site.controller() as controller:
        for tries in (1, 2):
            with pytest.raises(
                HttpError, match="'a', which it runs, is not loaded: it is no model"
            ):
                await controller.load("e", {})
            assert [name for name, _, _ in site.engines.made].count("a") == tries


async def test_an_ensemble_without_a_step_fails_with_its_name(site: Site) -> None:
    with_ensemble(site)
    shutil.rmtree(site.folder / "b")
    async with site.controller() as controller:
        with pytest.raises(HttpError, match="model 'b', which it runs, is not loaded"):
            await controller.load("e", {})


async def test_an_ensemble_that_runs_itself_is_refused(site: Site) -> None:
    with_ensemble(site)
    site.put("b/config.pbtxt", ENSEMBLE.replace('"a"', '"e"').replace('"b"', '"a"'))
    shutil.rmtree(site.folder / "b/1")
    async with site.controller() as controller:
        with pytest.raises(HttpError, match="its steps run itself"):
            await controller.load("e", {})


# The end.


async def test_what_is_loaded_at_the_end_is_given_up(site: Site) -> None:
    site.version("m", "1")
    site.engines.may_go_on.clear()
    async with site.controller() as controller:
        load = asyncio.ensure_future(controller.load("m", {}))
        await until(lambda: site.engines.made)
    with pytest.raises(asyncio.CancelledError):
        await load


async def test_another_controller_takes_over_what_serves(site: Site) -> None:
    site.version("m", "1")
    async with site.controller("poll"):
        await until(lambda: site.serves("m"))
    async with site.controller("poll") as controller:
        await until(lambda: controller.why_unready() is None)
        looks = Looks(site)
        await looks.wait(3)
        assert len(site.engines.made) == 1
        site.version("m", "2")
        await until(lambda: site.serves("m") == ["2"])


async def test_the_service_stays_ready_while_another_version_is_loaded(site: Site) -> None:
    site.version("m", "1")
    async with site.controller("poll") as controller:
        await until(lambda: controller.why_unready() is None)
        site.engines.may_go_on.clear()
        site.version("m", "2")
        site.version("n", "1")
        await until(lambda: len(site.engines.made) == 3)
        assert controller.why_unready() is None
        site.engines.may_go_on.set()
        await until(lambda: site.serves("m") == ["2"] and site.serves("n") == ["1"])
        assert controller.why_unready() is None


async def test_a_start_during_an_outage_serves_what_served_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path)
    site.version("m", "1")
    site.version("n", "1")
    site.version("gone", "1")
    last = tmp_path / "cache/last"
    async with site.controller("explicit", load=["*"]) as controller:
        await until(lambda: len([*last.glob("*.json")]) == 3)
        site.version("m", "2")
        await controller.load("m", {})
        await controller.unload("n")
        gone = site.engines.served("gone")
        assert gone is not None
        await until(lambda: len([*last.glob("*.json")]) == 2)
        await until(lambda: any('"version": "2"' in x.read_text() for x in last.glob("*.json")))
    shutil.rmtree(gone.versions["1"]["path"])  # the cache has made room
    away = site.folder.with_name("away")
    site.folder.rename(away)
    again = Site.__new__(Site)
    again.folder, again.engines, again.cache = site.folder, Engines(), Cache(tmp_path / "cache")
    again.catalog = Catalog([Source(site.folder, settle=0.0)], again.cache)
    async with again.controller("poll") as controller:
        await until(lambda: controller.why_unready() is None)
        assert [again.serves(each) for each in ("m", "n", "gone")] == [["2"], [], []]
        assert again.engines.made == [("m", "2", "good")]
        assert (await states(controller))["2"] == ("READY", "")
        assert len([x for x in caplog.records if "serves from the cache" in x.getMessage()]) == 1
        away.rename(site.folder)
        await until(lambda: again.serves("n") == again.serves("gone") == ["1"])
        assert len([x for x in again.engines.made if x[0] == "m"]) == 1
        again.version("m", "3")
        await until(lambda: again.serves("m") == ["3"])


async def test_what_an_operator_loads_during_an_outage_is_not_replaced_by_what_served_before(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remembered(url: str, read: Any = site.catalog.remembered) -> Any:
        assert begun.wait(20)
        found = read(url)
        known.set()
        return found

    begun, known = threading.Event(), threading.Event()
    site.version("m", "1")
    async with site.controller(load=["m"]):
        await until(lambda: site.serves("m"))
        await until(lambda: site.catalog.remembered(site.source.url).get("m"))
    site.engines.states.clear()
    site.folder.rename(site.folder.with_name("away"))
    site.engines.may_go_on.clear()
    monkeypatch.setattr(site.catalog, "remembered", remembered)
    async with site.controller(load=["m"]) as controller:
        sent = {"config": "{}", "file:7/model.onnx": b"sent"}
        loading = asyncio.create_task(controller.load("m", sent))
        await until(lambda: ("m", "7", "sent") in site.engines.made)
        begun.set()
        await until(known.is_set)
        site.engines.may_go_on.set()
        await loading
        await until(lambda: controller.why_unready() is None)
        assert (site.serves("m"), site.default("m")) == (["7"], "7")


async def test_what_served_without_a_signature_is_not_used_where_one_is_needed(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path)
    site.version("m", "1")
    async with site.controller("poll"):
        await until(lambda: [*(tmp_path / "cache/last").glob("*.json")])
    (url,) = site.catalog.places
    assert [*Catalog([site.source], site.cache).remembered(url)] == ["m"]
    assert Catalog([site.source], site.cache, "a key").remembered(url) == {}


async def test_another_controller_does_not_try_again_what_is_barred(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.version("m", "1")
    site.version("n", "1", "broken")
    async with site.controller("poll"):
        await until(lambda: site.serves("m"))
        site.version("m", "2", "broken")
        await until(lambda: len(caplog.records) == 2)
        await until(lambda: all(each and each.barred for each in site.engines.states.values()))
    tried = [*site.engines.made]
    async with site.controller("poll") as controller:
        looks = Looks(site)
        await looks.wait(4)
        assert site.engines.made == tried
        assert (await states(controller))["2"] == ("UNAVAILABLE", "it is no model")
        assert await states(controller, "n") == {"1": ("UNAVAILABLE", "it is no model")}
        assert len(caplog.records) == 2  # told once
        with pytest.raises(HttpError, match="it is no model"):
            await controller.load("n", {})  # an operator says so
        assert len(site.engines.made) == len(tried) + 1
        site.version("n", "1", "good")
        await until(lambda: site.serves("n") == ["1"])


async def test_another_controller_does_not_load_what_an_operator_has_unloaded(site: Site) -> None:
    for name in "mn":
        site.version(name, "1")
    async with site.controller("poll") as controller:
        await until(lambda: site.serves("m") and site.serves("n"))
        await controller.unload("m")
    async with site.controller("poll") as controller:
        looks = Looks(site)
        await looks.wait(4)
        assert (site.serves("m"), site.serves("n")) == ([], ["1"])
        assert await states(controller) == {"1": ("UNAVAILABLE", "unloaded")}
        assert controller.why_unready() is None
        await controller.load("m", {})
    site.version("m", "2")
    async with site.controller("poll"):
        await until(lambda: site.serves("m") == ["2"])


async def test_another_controller_leaves_what_an_operator_has_sent_until_told_to_load(
    site: Site,
) -> None:
    site.version("m", "1")
    async with site.controller(load=["m"]) as controller:
        await until(lambda: site.serves("m"))
        await controller.load("m", {"config": "{}", "file:1/model.onnx": b"sent"})
    made = site.engines.made[:]
    async with site.controller(load=["m"]) as controller:
        await until(lambda: controller.why_unready() is None)
        assert site.engines.made == made
        await controller.load("m", {})
        assert site.engines.made == [*made, ("m", "1", "good")]
    async with site.controller(load=["m"]) as controller:
        await until(lambda: controller.why_unready() is None)
        site.version("m", "2")
    async with site.controller(load=["m"]):
        await until(lambda: site.serves("m") == ["2"])


async def test_a_content_that_is_taken_back_under_the_same_number_is_not_loaded_again(
    site: Site,
) -> None:
    site.version("m", "1", "old")
    async with site.controller("poll") as controller:
        await until(lambda: site.serves("m"))
        site.version("m", "1", "new")
        await until(lambda: len(site.engines.made) == 2)
        await until(lambda: controller._models["m"].previous is not None)
        await controller.update("m", {"rollback": True})
        assert (await states(controller))["1"] == (
            "READY",
            "another content: an operator took it back",
        )
    made = [text for _, _, text in site.engines.made]
    assert made == ["old", "new", "old"]
    async with site.controller("poll"):
        looks = Looks(site)
        await looks.wait(4)
        assert len(site.engines.made) == 3
        site.version("m", "1", "newer")
        await until(lambda: site.engines.made[-1][2] == "newer")


async def test_the_mode_none_refuses_to_load(site: Site) -> None:
    site.version("m", "1")
    async with site.controller("none") as controller:
        for action in (controller.load("m", {}), controller.unload("m")):
            with pytest.raises(HttpError, match="model control mode is none"):
                await action
