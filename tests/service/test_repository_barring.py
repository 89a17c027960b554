"""What has failed is tried again when that may succeed, and not before: a repository that changes
and fails, operators, and engines that end in every step of a load, in any order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.errors import RequestError, StartupError, StoreUnavailable
from penstock.repository.layout import read
from penstock.repository.lifecycle import Lifecycle, State
from penstock.repository.manifest import File
from penstock.repository.served import Description, Served, Update
from penstock.service.catalog import Entry, Held, Progress, Scan
from penstock.service.repository import Controller

URL: Final = "memory"
ENDS: Final = st.sampled_from((None, None, None, "scan", "hold", "change", "changed"))
"""Where an engine ends in the middle of a load: at a step, before a change is decided, or after."""


class Repository:
    """A model's versions: each a content, such as "good 3", and a revision."""

    unknown = "no repository has it"

    def __init__(self) -> None:
        self.contents: dict[str, tuple[str, int]] = {}
        self.count = 0
        self.is_down = False  # it lists what it has, and gives no files

    def put(self, version: str, content: str) -> None:
        self.count += 1
        self.contents[version] = content, self.count

    @property
    def places(self) -> Sequence[str]:
        return [URL]

    def scan(self) -> Scan:
        files = {
            f"m/{version}/model.onnx": File(
                path=f"m/{version}/model.onnx", size=1, revision=str(at)
            )
            for version, (_, at) in self.contents.items()
        }
        found = read([*files]).models.get("m")
        return Scan(entries={"m": Entry(name="m", model=found, files=files)} if found else {})

    def hold(
        self, entry: Entry, version: str, of_step: Any, progress: Progress | None = None
    ) -> Held:
        if self.is_down:
            raise StoreUnavailable("it does not answer")
        content, _ = self.contents[version]
        about = {"name": "m", "version": version, "path": f"{content} of {version}"}
        return Held(description=about, digest=about["path"])

    def overriding(self, name: str, parameters: Mapping[str, Any], there: Entry | None) -> Entry:
        raise NotImplementedError

    def remember(self, name: str, url: str, versions: Sequence[Description]) -> None:
        """Nothing is kept."""

    def remembered(self, url: str) -> dict[str, list[Held]]:
        return {}


class Loads(Controller):
    """A controller that looks when it is told to, and whose engine ends at a step of the test."""

    step: Callable[[str], Any]

    async def _run(self) -> None:
        """No polls of its own."""

    async def _aside(self, function: Callable[..., Any], *arguments: Any) -> Any:
        await self.step(function.__name__)
        return function(*arguments)

    async def poll(self) -> None:
        scan = await self._look()
        await self._follow([*scan.entries])

    @property
    def life(self) -> Lifecycle:
        return self._model("m").life

    @property
    def has_previous(self) -> bool:
        return self._model("m").previous is not None


class Service(RuleBasedStateMachine):
    """The engines of a service, of which one after the other loads models."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.repository = Repository()
        self.states: dict[str | None, Served] = {}
        self.ends_at: str | None = None
        self.has_ended = asyncio.Event()
        self.has_failed: set[str] = set()  # contents that have failed, or were taken back, ever
        self.barred: set[str] = set()  # those that must not be tried until an operator says so
        self.tried: list[str] = []
        self.unloaded = False
        self.wrong = ""
        self.controller = self.successor()

    def teardown(self) -> None:
        try:
            if not self.wrong:
                self.comes_to_rest()
        finally:
            self.loop.run_until_complete(self.controller.close())
            self.loop.close()

    def successor(self) -> Loads:
        """The next engine loads models."""
        made = Loads(self.repository, self, lambda name, version: False, mode="poll")
        made.step = self.step

        async def start() -> None:
            made.start()

        self.loop.run_until_complete(start())
        return made

    # The engines.

    def names(self) -> list[str | None]:
        return [*self.states]

    def served(self, name: str | None) -> Served | None:
        return self.states.get(name)

    async def swap(self, description: Mapping[str, Any]) -> None:
        raise NotImplementedError

    async def change(self, name: str | None, update: Update, *, ended: bool = False) -> None:
        before = self.states.get(name) or Served(name=name)
        after = update(self.states.get(name))
        for version, about in after.versions.items():
            if before.versions.get(version) != about:
                content = about["path"]
                if content in self.barred:
                    self.wrong = f"{content} is tried again"
                self.tried.append(content)
                if content.startswith("bad"):
                    self.has_failed.add(content)
                    raise StartupError(f"{content} is no model")
        await self.step("change")
        self.states[name] = after
        await self.step("changed")

    async def step(self, name: str) -> None:
        """The engine that loads models ends here, if it is to."""
        if name == self.ends_at:
            self.has_ended.set()
            await asyncio.Event().wait()

    def run(self, work: Any, ends_at: str | None) -> bool:
        """Run what the controller does, until it is done, or its engine ends; returns whether it
        is done."""
        self.ends_at = ends_at
        self.has_ended.clear()

        async def until() -> bool:
            done = asyncio.ensure_future(work)
            ended = asyncio.ensure_future(self.has_ended.wait())
            await asyncio.wait([done, ended], return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if not self.has_ended.is_set():
                with suppress(RequestError):
                    await done
                return True
            await self.controller.close()
            done.cancel()
            await asyncio.gather(done, return_exceptions=True)
            return False

        found = self.loop.run_until_complete(until())
        self.ends_at = None
        assert not self.wrong, self.wrong
        if found:
            self.knows_what_has_failed()
        else:
            self.tried.clear()  # maybe no other engine knows it
            self.controller = self.successor()
        return found

    def knows_what_has_failed(self) -> None:
        """All engines know what is barred, also if a load was refused."""
        self.barred |= {each for each in self.tried if each.startswith("bad")}
        self.tried.clear()
        served = self.states.get("m")
        assert self.controller.life.bars == ({} if served is None else served.barred)

    # What happens.

    @initialize()
    def a_version_is_there(self) -> None:
        self.repository.put("1", "good 0")

    @rule(version=st.sampled_from("123"), kind=st.sampled_from(("good", "bad")), ends_at=ENDS)
    def a_version_comes(self, version: str, kind: str, ends_at: str | None) -> None:
        self.repository.put(version, f"{kind} {self.repository.count}")
        self.it_looks_until(ends_at)

    @rule(version=st.sampled_from("123"), data=st.data())
    def a_content_comes_again(self, version: str, data: st.DataObject) -> None:
        """Under the same number, or another one."""
        if known := sorted({content for content, _ in self.repository.contents.values()}):
            self.repository.put(version, data.draw(st.sampled_from(known)))

    @rule(version=st.sampled_from("123"))
    def a_version_is_copied_again(self, version: str) -> None:
        if version in self.repository.contents:
            self.repository.put(version, self.repository.contents[version][0])
            self.it_looks_until(None)

    @rule(version=st.sampled_from("123"))
    def a_version_goes(self, version: str) -> None:
        self.repository.contents.pop(version, None)

    @rule(is_down=st.booleans())
    def the_store_fails_or_answers_again(self, is_down: bool) -> None:
        self.repository.is_down = is_down

    @rule(ends_at=ENDS)
    def it_looks(self, ends_at: str | None) -> None:
        self.it_looks_until(ends_at)

    def it_looks_until(self, ends_at: str | None) -> None:
        before = self.states.get("m")
        if self.run(self.controller.poll(), ends_at) and not self.repository.is_down:
            self.serves_what_it_should(before)

    @rule(ends_at=ENDS)
    def an_operator_loads(self, ends_at: str | None) -> None:
        if self.repository.contents:  # else it is refused, and changes nothing
            self.barred.clear()
        before = {*self.has_failed}
        self.has_failed.clear()
        done = self.run(self.controller.load("m", {}), ends_at)
        if done and self.repository.contents:
            self.unloaded = False
            contents = {each for each in self.controller.life.bars if " " in each}
            assert contents <= self.has_failed, "an operator's load does not try it again"
        elif not done:
            served = self.states.get("m")
            self.unloaded = served is not None and served.unloaded
        self.has_failed |= before

    @precondition(lambda self: not self.unloaded)
    @rule()
    def an_operator_unloads(self) -> None:
        if self.run(self.controller.unload("m"), None) and "m" in self.states:
            self.unloaded = True

    @precondition(lambda self: self.controller.has_previous)
    @rule(ends_at=ENDS)
    def an_operator_goes_back(self, ends_at: str | None) -> None:
        before = self.states.get("m")
        self.run(self.controller.update("m", {"rollback": True}), ends_at)
        after = self.states.get("m")
        if before is not None and after is not None and before.default is not None:
            content = before.versions[before.default]["path"]
            if after.default is not None and after.versions[after.default]["path"] != content:
                self.has_failed.add(content)
                if ends_at is None:
                    self.barred.add(content)

    @rule()
    def another_engine_loads_models(self) -> None:
        self.loop.run_until_complete(self.controller.close())
        self.controller = self.successor()

    @invariant()
    def only_what_has_failed_is_barred(self) -> None:
        contents = {each for each in self.controller.life.bars if " " in each}
        assert contents <= self.has_failed

    @rule()
    def comes_to_rest(self) -> None:
        """The store answers, and no engine ends."""
        self.repository.is_down = False
        self.it_looks_until(None)

    def serves_what_it_should(self, before: Served | None) -> None:
        """The newest version that is not barred serves, or what did before."""
        served = self.states.get("m")
        if self.unloaded:
            assert served is not None
            assert not served.versions
            return
        there = self.repository.contents
        known = {version: f"{content} of {version}" for version, (content, _) in there.items()}
        if before is not None:  # what has gone counts as there
            known = {x: about["path"] for x, about in before.versions.items()} | known
        serves = (
            None
            if served is None or served.default is None
            else served.versions[served.default]["path"]
        )
        newest = known[max(known)] if known else None
        if before is not None and newest in [each["path"] for each in before.versions.values()]:
            newest = None  # the default version is what it was made
        bars = self.controller.life.bars
        if newest is not None and newest.startswith("good") and newest not in bars:
            assert serves == newest
        elif before is not None and before.versions:
            assert serves == before.versions[before.default or ""]["path"]
        else:
            good = [known[x] for x in sorted(known) if known[x].startswith("good")]
            good = [each for each in good if each not in bars]
            assert serves == (good[-1] if good else None)


TestService = Service.TestCase
TestService.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.fixture
def taken_back() -> Iterator[Service]:
    """A service whose operator took version 1's content "good 2" back: it serves "good 0"."""
    service = Service()
    service.a_version_is_there()
    service.a_version_is_copied_again(version="1")
    service.a_version_comes(version="1", kind="good", ends_at=None)
    service.an_operator_goes_back(ends_at=None)
    assert "good 2 of 1" in service.controller.life.bars
    yield service
    service.teardown()


def test_a_refused_load_of_an_unloaded_model_forgets_nothing(taken_back: Service) -> None:
    taken_back.an_operator_unloads()
    taken_back.a_version_goes(version="1")
    taken_back.an_operator_loads(ends_at=None)
    taken_back.a_version_comes(version="1", kind="good", ends_at=None)
    assert "good 2 of 1" in taken_back.controller.life.bars
    taken_back.an_operator_loads(ends_at=None)
    assert not taken_back.controller.life.bars


@pytest.mark.parametrize("is_replaced", [False, True])
def test_after_a_refused_load_what_was_taken_back_does_not_come_back(
    is_replaced: bool, taken_back: Service
) -> None:
    """Whether or not the same engine still loads models."""
    taken_back.a_version_goes(version="1")
    taken_back.an_operator_loads(ends_at=None)
    if is_replaced:
        taken_back.another_engine_loads_models()
    taken_back.repository.put("1", "good 2")
    taken_back.it_looks(ends_at=None)
    assert taken_back.states["m"].versions["1"]["path"] == "good 0 of 1"
    taken_back.an_operator_loads(ends_at=None)
    assert taken_back.states["m"].versions["1"]["path"] == "good 2 of 1"


Patch: TypeAlias = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Patch] = {}


def bug(name: str) -> Callable[[Patch], Patch]:
    """A deliberate bug, which the engines above must find."""

    def add(patch: Patch) -> Patch:
        BUGS[name] = patch
        return patch

    return add


@bug("what has failed is not kept")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lifecycle, "_bar", lambda self, digest, reason: None)


@bug("the engines are not told what has failed")
def _(patch: pytest.MonkeyPatch) -> None:
    async def hand_on(self: Controller, name: str) -> None: ...

    patch.setattr(Controller, "_hand_on", hand_on)


@bug("an engine does not take over that a model is unloaded")
def _(patch: pytest.MonkeyPatch) -> None:
    take_over = Controller._take_over

    def wrong(self: Controller, name: str) -> None:
        take_over(self, name)
        self._model(name).unloaded = False

    patch.setattr(Controller, "_take_over", wrong)


@bug("an engine does not take over what has failed")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lifecycle, "bar", lambda self, reasons: None)


@bug("an unload forgets what has failed")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Served, "without_versions", lambda self: Served(name=self.name))


@bug("an operator's load does not try again")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lifecycle, "forgive", lambda self, digests: None)


@bug("a load that is refused tries again what comes later")
def _(patch: pytest.MonkeyPatch) -> None:
    load = Controller.load

    async def wrong(self: Controller, name: str, parameters: Mapping[str, Any]) -> None:
        life = self._model(name).life
        life.forgive(life.bars)
        await load(self, name, parameters)

    patch.setattr(Controller, "load", wrong)


@bug("an outage of the store is taken for a broken content")
def _(patch: pytest.MonkeyPatch) -> None:
    fail = Lifecycle.fail

    def wrong(self: Lifecycle, version: str, reason: str, *digests: str) -> None:
        fail(self, version, reason, *(digests or self.tried))  # type: ignore[attr-defined]

    advance = Lifecycle.barred

    def seen(self: Lifecycle, digest: str) -> str | None:
        self.tried = [digest]  # type: ignore[attr-defined]
        return advance(self, digest)

    patch.setattr(Lifecycle, "barred", seen)
    patch.setattr(Lifecycle, "fail", wrong)


@bug("a version is barred, and not its content")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Entry, "mark", lambda self, version, steps: version)


@bug("a version that was taken back is not barred")
def _(patch: pytest.MonkeyPatch) -> None:
    def roll_back(self: Lifecycle, version: str, reason: str, *digests: str) -> None:
        self.advance(version, State.ROLLED_BACK, reason)

    patch.setattr(Lifecycle, "roll_back", roll_back)


@bug("only the listing of a broken content is barred")
def _(patch: pytest.MonkeyPatch) -> None:
    fail = Lifecycle.fail

    def wrong(self: Lifecycle, version: str, reason: str, *digests: str) -> None:
        fail(self, version, reason, *digests[:1])

    patch.setattr(Lifecycle, "fail", wrong)


@bug("what has gone from the repository ends")
def _(patch: pytest.MonkeyPatch) -> None:
    wanted = Entry.wanted

    def of_those_there(self: Entry, **more: Any) -> list[str]:
        return wanted(self, without=more.get("without", ()))

    patch.setattr(Entry, "wanted", of_those_there)


@pytest.mark.long
@pytest.mark.parametrize("name", BUGS)
def test_a_deliberate_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)
    quick = settings(
        max_examples=500,
        stateful_step_count=30,
        deadline=None,
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Service, settings=quick)
