"""Loads, changes and unloads the models of a service's repositories while it serves.

One engine of a service, the first, has the controller; the others pass on what they are asked. The
controller compares what the repositories have with what is served, fetches what is missing into the
cache, and lets all engines serve it or none (``engine.Versions``). Whatever fails leaves what
serves as it is, is told once, and is not tried again until its content changes or an operator says
so. What has gone from a repository, or a repository that does not answer, changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic, time_ns
from typing import Any, Final, TypeVar

from penstock.config.schema import RolloutConfig
from penstock.engine.engine import Versions
from penstock.errors import (
    ContentRefused,
    HttpError,
    ModelError,
    PackageError,
    RequestError,
    RolloutRuns,
    StartupError,
    StoreError,
    UnknownService,
    VersionsError,
    VersionUnfinished,
)
from penstock.observe.swaps import Swap, Swaps
from penstock.repository.lifecycle import SERVES, State
from penstock.repository.model_update import ModelUpdate
from penstock.repository.next_state import (
    check_number,
    gone_back,
    is_beside,
    paths_of,
    role_of,
    with_loaded,
    with_remembered,
    without_default,
    without_others,
)
from penstock.repository.options import Mode
from penstock.repository.pbtxt import Step
from penstock.repository.rollout import Rollout
from penstock.repository.rollout import State as RolloutState
from penstock.repository.served import Description, Served
from penstock.service.catalog import Entry, Held, Scan, Shelf, digest_of
from penstock.service.daemon_pool import DaemonPool
from penstock.service.known_model import KnownModel, NotServed
from penstock.service.rollout_plan import plan_of

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_JITTER: Final = 0.1
"""Polls come earlier or later by up to this part of their interval, so that many services do not
ask a store at the same time."""

_SHOWN: Final = 8  # names in a message

_LOOK: Final = 0.1  # seconds between two looks for the end of a version, or of the first loads

NO_CONTROL: Final = "explicit model load / unload is not allowed: model control mode is none"


class Controller:
    """See the module. Belongs to the loop of the first engine.

    Args:
        shelf: what the repositories have.
        versions: changes what all engines serve.
        has: whether this engine still has a version, with its workers, by name and version.
        mode: whether repositories are polled, or models loaded and unloaded by operators; none:
            what the service started with stays.
        poll_seconds: the interval of polls.
        load: names of models to load at the start in mode ``explicit``; ``*`` for all.
        at_once: most models that are loaded at the same time.
        swaps: records what it does.
        swap: the key of the service.
        gap: what a version does, by name and version, for which requests wait; see
            ``Lifecycle.rows``.

    Attributes:
        rules: how new versions of a model get the requests; of its name, and of what its own
            configuration says.
    """

    def __init__(
        self,
        shelf: Shelf,
        versions: Versions,
        has: Callable[[str, str], bool],
        *,
        mode: Mode,
        poll_seconds: float = 15.0,
        load: Sequence[str] = (),
        at_once: int = 4,
        swaps: Swaps | None = None,
        swap: str = "availability",
        gap: Callable[[str, str], State | None] = lambda name, version: None,
    ) -> None:
        self._shelf = shelf
        self._versions = versions
        self._has = has
        self._mode = mode
        self._poll_seconds = poll_seconds
        self._first = load
        self._swaps = Swaps() if swaps is None else swaps
        self._swap = swap
        self._gap = gap
        self._models: dict[str, KnownModel] = {}
        self._scan = Scan()
        self._outages: Mapping[str, str] = {}
        self._pool = DaemonPool(at_once + 1, "repository")  # one for scans
        self._turns = asyncio.Semaphore(at_once)
        self._remembering = asyncio.Lock()
        self._looking = asyncio.Lock()  # a scan that began earlier must not replace a later one
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._told: set[asyncio.Task[None] | None] = set()  # those of operators
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self.rules: Callable[[str, RolloutConfig | None], RolloutConfig | None] = _own
        self._waits_for: dict[str, str] | None = None  # why each is not there yet; None: unknown

    def start(self) -> None:
        """Begin to load what is wanted at the start, and to poll."""
        for name in self._versions.names():
            if name is not None:
                self._sync(name)
                self._take_over(name)
        self._begin(self._run())

    async def close(self) -> None:
        """End; what is being loaded is given up."""
        self._closed = True
        tasks = [*self._tasks]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def why_unready(self) -> str | None:
        """Why not all models that are wanted at the start are there; None once they were."""
        if self._waits_for is None:
            return "the repositories are being read"
        for name, why in self._waits_for.items():
            return f"model {name!r}: {why}"
        return None

    # What operators say.

    async def index(self, *, ready: bool = False) -> list[dict[str, Any]]:
        """See ``api.oip_repository.Repository``."""
        if self._mode == "explicit":
            await self._look()
        return [each for each in self.rows() if not ready or each["state"] == "READY"]

    def report(self) -> dict[str, Any]:
        """The part of the engine's report about models and repositories."""
        places = self._shelf.places
        return {
            "models": self.rows(),
            "repositories": [{"name": x, "why": self._outages.get(x, "")} for x in places],
        }

    def rows(self) -> list[dict[str, Any]]:
        """The index, as far as it is known."""
        names = sorted({*self._models, *self._scan.entries})
        return [
            row
            for name in names
            for row in (self._models.get(name) or KnownModel()).rows(
                name,
                self._versions.served(name),
                self._scan.entries.get(name),
                partial(self._gap, name),
            )
        ]

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """See ``api.oip_repository.Repository``."""
        if self._mode == "none":
            raise HttpError(503, NO_CONTROL)
        if parameters and self._mode != "explicit":
            raise PackageError("a load has parameters in the control mode explicit only")
        running = self._loads.get(name)
        told = running in self._told
        if running is not None:
            # It may have begun before the files were there that this one is about. What another
            # operator's barred stays so: two loads at once try a broken content once.
            await asyncio.wait([running])
        known = self._models.get(name)
        forgiven = () if told or known is None else tuple(known.life.bars)
        await self._shared_load(name, parameters, forgiven=forgiven)
        await self._follow(self._users_of(name))

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """See ``api.oip_repository.Repository``."""
        if self._mode == "none":
            raise HttpError(503, NO_CONTROL)
        if self._versions.served(name) is None and name not in self._scan.entries:
            raise UnknownService(f"failed to unload '{name}': {self._shelf.unknown}")
        users = self._users_of(name)
        if users and not unload_dependents:
            text = f"failed to unload '{name}': {', '.join(users)} uses it; unload that first, or"
            raise HttpError(400, f"{text} both: unload_dependents, or --dependents of the command")
        names = [*users, name]
        if unload_dependents:
            names += [each for each in self._steps_of(name) if not self._used_beside(each, names)]
        for each in names:
            await self._unload(each)

    async def update(self, name: str, wanted: Mapping[str, Any]) -> None:
        """See ``api.oip_repository.Repository``."""
        change = ModelUpdate.of(wanted)
        if self._versions.served(name) is None:
            raise UnknownService(f"there is no model {name!r}")
        model = self._model(name)
        async with model.lock:
            if change.rollback:
                await self._roll_back(name, model)
            else:
                rules = self._rules(name)
                sticky = None if rules is None else rules.sticky
                await self._change(name, lambda now: replace(change.applied(now), sticky=sticky))
        _log.info("model %s: %s", name, change)
        if change.rollback or change.promote is not None:
            await self._follow(self._users_of(name))

    # Loading.

    async def _run(self) -> None:
        """Load what is wanted at the start, and poll."""
        scan = await self._look()
        for name in self._loaded():  # what serves from the start, and may never change
            self._begin(self._remember(name))
        for url in scan.outages:
            await self._serve_remembered(url)
        wanted = scan.entries.keys() if self._mode == "poll" or "*" in self._first else ()
        names = [*dict.fromkeys((*wanted, *(each for each in self._first if each != "*")))]
        self._waits_for = dict.fromkeys(names, "it is being loaded")
        await self._follow(names)
        there = ", ".join([*scan.entries][:_SHOWN]) or "no model"
        if not (scan.entries or scan.outages):
            _log.warning("no model in %s yet", " and ".join(self._shelf.places))
        for name in names:
            if name not in self._models and not self._outages:
                _log.error("model %s cannot be loaded: no repository has it, but %s", name, there)
        if self._mode != "poll":
            while self._waits_for:  # an operator may load it
                await asyncio.sleep(_LOOK)
                self._forget_waits()
        while self._mode == "poll":
            late = random.uniform(-_JITTER, _JITTER)  # noqa: S311 - no secret
            await asyncio.sleep(self._poll_seconds * (1 + late))
            scan = await self._look()
            await self._follow([*scan.entries])

    async def _serve_remembered(self, url: str) -> None:
        """Serve what a repository had when it answered last, which is in the cache."""
        everything = self._mode == "poll" or "*" in self._first
        for name, versions in (await self._aside(self._shelf.remembered, url)).items():
            model = self._model(name)
            async with self._turns, model.lock:
                before = self._versions.served(name)  # an operator may have loaded it
                for held in versions:
                    has = (before is not None and before.versions) or model.unloaded
                    if has or not (everything or name in self._first):
                        held.release()
                        continue
                    version = held.description["version"]
                    update = partial(with_remembered, held.description)
                    try:
                        await self._change(name, update)
                    except RequestError as error:
                        _log.error("model %s: version %s: %s", name, version, error)
                        held.release()
                        continue
                    model.life.settle(version, held.digest)
                    model.held[version] = held
                    _log.warning(
                        "model %s: version %s serves from the cache, as %s does not answer",
                        name, version, url,
                    )  # fmt: skip

    async def _remember(self, name: str) -> None:
        """Keep what serves for a start at which its repository does not answer."""
        entry, model = self._scan.entries.get(name), self._model(name)
        if entry is None or entry.source is None or model.sent is not None:
            return
        if self._was_sent_before(name):
            return
        async with self._remembering:  # the last one is the newest
            served = self._versions.served(name) or Served(name=name)
            stable = [served.default] if served.default is not None else []
            others = [] if served.rolling else [x for x in served.versions if x not in stable]
            versions = [served.versions[each] for each in (*others, *stable)]
            try:
                await self._aside(self._shelf.remember, name, entry.source.url, versions)
            except OSError as error:
                _log.warning("model %s: what serves is not kept for an outage: %s", name, error)

    async def _look(self) -> Scan:
        """List the repositories; tells changes of whether they answer."""
        async with self._looking:
            try:
                scan = await self._aside(self._shelf.scan)
            except Exception:  # noqa: BLE001 - our bug must not end the polls
                _log.exception("the repositories cannot be listed")
                return self._scan
            self._take(scan)
            return scan

    def _take(self, scan: Scan) -> None:
        for url, why in scan.outages.items():
            if self._outages.get(url) != why:
                _log.warning("repository %s: %s; what serves goes on", url, why)
        for url in self._outages:
            if url not in scan.outages:
                _log.info("repository %s answers again", url)
        self._outages = scan.outages
        self._scan = scan

    async def _follow(self, names: Sequence[str]) -> None:
        """Serve what the repositories have of these models; failures are told by the index."""

        async def one(name: str) -> None:
            known = self._models.get(name)
            if known is None or not known.unloaded:
                with suppress(RequestError):
                    await self._shared_load(name, {}, look=False)

        await asyncio.gather(*map(one, names))
        self._forget_waits()

    def _forget_waits(self) -> None:
        for name in [*(self._waits_for or {})]:
            assert self._waits_for is not None
            served = self._versions.served(name)
            model = self._models.get(name)
            if (served is not None and served.versions) or (model and model.unloaded):
                del self._waits_for[name]
            elif model is None:
                self._waits_for[name] = "no repository has it"
            else:
                why = next(iter(model.told.values()), "it could not be loaded")
                self._waits_for[name] = model.problem or why

    async def _shared_load(
        self,
        name: str,
        parameters: Mapping[str, Any],
        *,
        look: bool = True,
        forgiven: Sequence[str] = (),
    ) -> None:
        """Load a model, or wait for the load that runs."""
        running = self._loads.get(name)
        if running is None or parameters or (look and running not in self._told):
            running = self._begin(self._load(name, parameters, look=look, forgiven=forgiven))
            self._loads[name] = running
            if look:
                self._told.add(running)
            running.add_done_callback(partial(self._load_ended, name))
        await asyncio.shield(running)

    def _load_ended(self, name: str, task: asyncio.Task[None]) -> None:
        self._told.discard(task)
        if self._loads.get(name) is task:
            del self._loads[name]
        if not task.cancelled():
            task.exception()  # retrieved, though nobody may wait any more

    async def _load(
        self, name: str, parameters: Mapping[str, Any], *, look: bool, forgiven: Sequence[str]
    ) -> None:
        """Serve the wanted versions of a model. Contents that are ``forgiven`` may be tried again,
        unless there is no such model: then they stay barred, as in all engines.

        Raises:
            RequestError: they are not all served.
        """
        told = look  # by an operator
        if not told and self._was_sent_before(name):
            return
        scan = await self._look() if look else self._scan
        entry = scan.entries.get(name)
        known = self._models.get(name)
        try:
            sent = None if told or known is None else known.sent
            if parameters:
                sent = await self._aside(self._shelf.overriding, name, parameters, entry)
            entry = sent or entry
            if entry is None:
                raise UnknownService(f"failed to load '{name}': {self._shelf.unknown}")
            model = self._model(name)
            model.sent = sent
            if told:
                model.unloaded = False
            model.tell_problem(name, entry.problem)
            if entry.problem:
                raise ModelError(entry.problem)
            model.tell_warnings(entry.warnings)
            model.life.forgive(forgiven)
        except (ModelError, StoreError) as error:
            self._swaps.count(name, error.code)
            raise HttpError(400, f"failed to load '{name}': {error}") from error
        for step in dict.fromkeys(entry.steps):
            if step in scan.entries:
                if told and step not in self._loaded():  # it is loaded with the ensemble
                    self._model(step).unloaded = False
                    self._model(step).life.forgive(self._model(step).life.bars)
                with suppress(RequestError):  # it may serve an older version
                    await self._shared_load(step, {}, look=False)
        async with self._turns, model.lock:
            if model.unloaded:
                raise HttpError(400, f"failed to load '{name}': an operator has unloaded it")
            await self._bring(entry, model, told=told)

    async def _bring(self, entry: Entry, model: KnownModel, *, told: bool) -> None:
        """Serve the wanted versions of a model, and no others that nothing needs.

        Args:
            entry: the model as it is now.
            model: what is known of it.
            told: whether by an operator. Else what has gone from the repository counts as there.
        """
        name = entry.name
        served = self._versions.served(name) or Served(name=name)
        kept = [] if told else [each for each in served.versions if each not in entry.versions]
        wanted = entry.wanted(also=kept)
        failed: dict[str, str] = {}
        rolling = served.rolling
        if rolling is not None and rolling.version in entry.versions:
            most = max(map(int, wanted), default=0)
            if rolling.version not in wanted and int(rolling.version) > most:
                await self._end_rollout(name, rolling, "its version_policy does not want it")
        for version in wanted:
            if version in entry.versions:
                await self._try(entry, model, version, failed, wanted, told=told)
        problems = [f"version {version}: {why}" for version, why in failed.items()]
        while failed and not (self._versions.served(name) or served).versions:
            others = entry.wanted(without=failed)
            if not others:
                break
            newest = others[-1:]  # that can be served
            await self._try(entry, model, newest[0], failed, newest, told=told)
        if wanted and not failed:
            await self._trim(entry, wanted, told=told)
        model.life.forget([*entry.versions, *served.versions])
        await self._hand_on(name)
        if not wanted:
            there = ", ".join(entry.versions) or "none"
            problems = [f"its version_policy wants {entry.policy}, and there is {there}"]
            model.tell_problem(name, problems[0])
        if problems:
            raise HttpError(500, f"failed to load '{name}': {'; '.join(problems)}")

    async def _hand_on(self, name: str) -> None:
        """Let the engines know which contents are barred, and whether the model is unloaded, or was
        sent, as another one may load models next.
        """
        model = self._model(name)
        bars, unloaded, sent = model.life.bars, model.unloaded, model.sent is not None
        served = self._versions.served(name) or Served(name=name)

        def update(now: Served | None) -> Served:
            return replace(now or served, barred=bars, unloaded=unloaded, sent=sent)

        if update(served) != served:
            with suppress(StartupError):  # they are all ending
                await self._versions.change(name, update)

    async def _try(
        self,
        entry: Entry,
        model: KnownModel,
        version: str,
        failed: dict[str, str],
        wanted: Sequence[str],
        *,
        told: bool,
    ) -> None:
        """Serve a version, or note in ``failed`` why it cannot be."""
        began = monotonic()
        name = entry.name
        try:
            is_new = await self._serve(entry, model, version, wanted, told=told)
        except NotServed as error:
            failed[version] = str(error)
            if isinstance(error.__cause__, VersionUnfinished):  # as long as it is being copied
                if version not in model.unfinished:
                    _log.info("model %s: version %s is awaited: %s", name, version, error)
                model.unfinished.add(version)
            elif model.told.get(version) != str(error):
                served = self._versions.served(name)
                stays = f"; version {served.default} serves" if served and served.default else ""
                _log.error(
                    "model %s: version %s cannot be served: %s%s", name, version, error, stays,
                    exc_info=error.fault,
                )  # fmt: skip
            model.told[version] = str(error)
        else:
            model.told.pop(version, None)
            model.unfinished.discard(version)
            if is_new:
                took = monotonic() - began
                digest = model.held[version].digest[:12]
                served = self._versions.served(name)
                role = "serves"
                if served is not None and is_beside(served, version):
                    role = "is ready, and serves by its name only while there are weights"
                _log.info(
                    "model %s: version %s %s, after %.1f s (%s)", name, version, role, took, digest
                )
        finally:
            model.fetched.pop(version, None)

    async def _serve(
        self, entry: Entry, model: KnownModel, version: str, wanted: Sequence[str], *, told: bool
    ) -> bool:
        """Serve a version; returns whether it was not served before.

        Args:
            entry: the model as it is now.
            model: what is known of it.
            version: the version.
            wanted: the versions that its policy wants. With ``swap: resource`` others, as far as
                nothing needs them, end before.
            told: whether by an operator.

        Raises:
            NotServed: with the reason.
        """
        name, life = entry.name, model.life
        mark = self._mark(entry, model, version)
        served = self._versions.served(name)
        there = None if served is None else served.versions.get(version)
        if there is not None and model.marks.get(version) == mark:
            return False
        model.check_may_try(version, mark, served)
        life.advance(version, State.FOUND)
        life.advance(version, State.STAGING)
        swap = self._swaps.begin(name, version)
        held = await self._fetch(entry, model, version, mark, swap)
        differs = there is None or digest_of(there) != digest_of(held.description)
        try:
            barred = life.barred(held.digest)
            if barred is not None:
                raise StartupError(barred)
            if differs:
                await self._swap_in(entry, model, held, wanted, told=told)
            else:
                swap.done()
        except (StartupError, RequestError) as error:
            held.release()
            waits = isinstance(error.__cause__, RolloutRuns)
            life.fail(version, str(error), *(() if waits else (mark, held.digest)))
            self._swaps.fail(swap, str(error))
            raise NotServed(str(error)) from error
        except BaseException as error:
            held.release()
            if isinstance(error, Exception):
                raise model.fail_unforeseen(version, error, self._swaps, swap) from error
            raise
        life.settle(version, held.digest)
        old, model.held[version] = model.held.get(version), held
        model.marks[version] = mark
        if old is not None:
            old.release()
        return differs

    def _mark(self, entry: Entry, model: KnownModel, version: str) -> str:
        """See ``Entry.mark``.

        Raises:
            NotServed: a model that it runs is not loaded.
        """
        steps = entry.config.steps if entry.config else ()
        try:
            return entry.mark(version, [*map(self._of_step, steps)])
        except ModelError as error:
            model.life.advance(version, State.FOUND)
            model.life.fail(version, str(error))
            self._swaps.count(entry.name, error.code)
            raise NotServed(str(error)) from error

    async def _fetch(
        self, entry: Entry, model: KnownModel, version: str, mark: str, swap: Swap
    ) -> Held:
        """Fetch a version into the cache.

        Raises:
            NotServed: with the reason.
        """

        def progress(done: int, size: int) -> None:
            if self._closed:
                raise StoreError("the service stops")
            model.fetched[version] = (done, size)
            if done >= size:
                swap.passed("fetched")

        try:
            held = await self._aside(self._shelf.hold, entry, version, self._of_step, progress)
        except (StoreError, ModelError) as error:
            final = isinstance(error, ContentRefused | ModelError)
            model.life.fail(version, str(error), *((mark,) if final else ()))
            self._swaps.fail(swap, str(error))
            self._swaps.count(entry.name, error.code)
            raise NotServed(str(error)) from error
        except Exception as error:
            raise model.fail_unforeseen(version, error, self._swaps, swap) from error
        swap.passed("verified")
        return held

    async def _swap_in(
        self, entry: Entry, model: KnownModel, held: Held, wanted: Sequence[str], *, told: bool
    ) -> None:
        """Let all engines serve a version that was fetched; the arguments are those of ``_serve``.

        Raises:
            StartupError, RequestError: nothing has changed.
        """
        name, description = entry.name, held.description
        served = self._versions.served(name)
        rules = self.rules(name, entry.rollout)
        plan = None if rules is None else plan_of(rules)
        if plan is not None and served is not None and not told:
            check_number(served, description)
        model.life.advance(description["version"], State.VERIFIED, digest=held.digest)
        model.life.advance(description["version"], State.LOADING)
        sticky = None if rules is None else rules.sticky
        first_ends = description.get("swap", self._swap) == "resource"

        def update(now: Served | None) -> Served:
            found = with_loaded(description, plan, time_ns(), wanted, now)
            found = without_others(wanted, found) if first_ends else found
            return replace(found, sticky=sticky)

        await self._change(name, update)

    def _of_step(self, step: Step) -> Description:
        """The description of the version of a model that a step of an ensemble runs."""
        served = self._versions.served(step.model)
        version = step.version
        if served is not None and version is None:
            version = served.default
        if served is None or version is None or version not in served.versions:
            which = "" if step.version is None else f"version {step.version} of "
            text = f"{which}model {step.model!r}, which it runs, is not loaded"
            known = self._models.get(step.model)
            why = "" if known is None else known.problem or next(iter(known.told.values()), "")
            raise ModelError(f"{text}: {why}" if why else text)
        return dict(served.versions[version])

    async def _trim(self, entry: Entry, wanted: Sequence[str], *, told: bool) -> None:
        """End versions that are not wanted, and that no request needs: those that are neither the
        default, nor have a label or a share of the requests. The default version is what it was
        made, unless the policy names others, or an operator loads a model that does not have it any
        more.
        """
        served = self._versions.served(entry.name)
        if served is None:
            return
        named = entry.policy.specific is not None
        leaves = named or (told and served.default not in entry.versions)

        def update(now: Served | None) -> Served:
            found = now or served
            return without_others(wanted, without_default(wanted, found) if leaves else found)

        if update(served) is not served:
            await self._change(entry.name, update)

    async def _change(
        self, name: str, update: Callable[[Served | None], Served], *, ended: bool = False
    ) -> None:
        """Change what is served.

        Raises:
            HttpError: nothing has changed.
        """
        before = self._versions.served(name)
        try:
            await self._versions.change(name, update, ended=ended)
        except StartupError as error:
            raise HttpError(400, str(error)) from error
        after = self._versions.served(name)
        model = self._model(name)
        if before is not None and before.default is not None and after is not None:
            old = before.versions[before.default]
            now = None if after.default is None else after.versions[after.default]
            if now is None or dict(now) != dict(old):
                model.previous = old
        self._sync(name)
        self._begin(self._remember(name))

    def _sync(self, name: str) -> None:
        """Take over what the engines serve."""
        model, served = self._model(name), self._versions.served(name)
        roles = {} if served is None else {each: role_of(served, each) for each in served.versions}
        left = model.life.serve(roles)
        for version in left:
            model.marks.pop(version, None)
        if left:
            self._begin(self._wait_for_end(name, model, left))
        self._release_unused()

    def _take_over(self, name: str) -> None:
        """Know what an earlier engine has loaded, and what it knew of the model."""
        model, served = self._model(name), self._versions.served(name)
        if served is None:
            return
        for version, description in served.versions.items():
            model.life.settle(version, digest_of(description))
        model.life.bar(served.barred)
        model.unloaded = served.unloaded

    async def _wait_for_end(self, name: str, model: KnownModel, left: Sequence[str]) -> None:
        for version in left:
            while self._has(name, version):
                await asyncio.sleep(_LOOK)
            known = model.life.versions.get(version)  # None: it came back, failed, and has gone
            if known is not None and known.state is State.DRAINING:
                model.life.advance(version, State.REMOVED)
                _log.info("model %s: version %s has ended", name, version)

    def _release_unused(self) -> None:
        """Let the cache remove what no description needs any more."""
        needed: set[str] = set()
        for name, model in self._models.items():
            served = self._versions.served(name)
            for each in () if served is None else served.versions.values():
                needed.update(paths_of(each))
            if model.previous is not None:
                needed.update(paths_of(model.previous))
        for name, model in self._models.items():
            served = self._versions.served(name)
            for version, held in [*model.held.items()]:
                serves = served is not None and version in served.versions
                if not serves and needed.isdisjoint(paths_of(held.description)):
                    model.held.pop(version).release()

    # Unloading and rolling back.

    async def _unload(self, name: str) -> None:
        model = self._model(name)
        async with model.lock:
            before = model.unloaded, model.sent
            model.unloaded, model.sent = True, None
            served = self._versions.served(name)
            if served is None or not served.versions:
                await self._hand_on(name)
                return

            def update(now: Served | None) -> Served:
                return replace((now or served).without_versions(), unloaded=True, sent=False)

            try:
                await self._change(name, update, ended=True)
            except RequestError:
                model.unloaded, model.sent = before
                raise
            model.previous = None
            self._release_unused()
        _log.info("model %s is unloaded", name)

    async def _roll_back(self, name: str, model: KnownModel) -> None:
        served, before = self._versions.served(name), model.previous
        if served is not None and served.rolling is not None:
            await self._end_rollout(name, served.rolling, "an operator took it back")
            return
        if served is None or served.default is None or before is None:
            raise HttpError(400, f"model {name!r} has no version to which it could go back")
        taken = served.default
        digests = [model.marks[taken]] if taken in model.marks else []
        await self._change(name, lambda now: gone_back(before, taken, now or served))
        model.previous = None
        why = "an operator took it back"
        if taken == before["version"]:  # another content of it
            model.marks.pop(taken, None)
            model.told[taken] = why
            model.life.go_back(taken, digest_of(before), why, *digests)
        elif model.life.versions[taken].state is State.DRAINING:
            model.told[taken] = why
            model.life.roll_back(taken, why, *digests)
        await self._hand_on(name)

    async def _end_rollout(self, name: str, rollout: Rollout, why: str) -> None:
        """Take back a version that is being rolled out, as an operator says."""
        after = rollout.taken_back(why)
        before = self._versions.served(name)
        assert before is not None

        def update(now: Served | None) -> Served:
            if now is None or now.rolling is None or now.rolling.number != rollout.number:
                raise VersionsError(f"the rollout of version {rollout.version} is over")
            return now.rolled(now.rolling.taken_back(after.why))

        try:
            await self._versions.change(name, update)
        except StartupError as error:
            raise HttpError(400, str(error)) from error
        self.rolled(before, after)

    def rolled(self, before: Served, rollout: Rollout) -> None:
        """The rollout of a version has come to another state: a version that was taken back is not
        tried again.

        Args:
            before: the state before.
            rollout: the present one of the rollout.
        """
        if before.name is None:
            return
        name, version = before.name, rollout.version
        model = self._model(name)
        digests = [model.marks[version]] if version in model.marks else []
        self._sync(name)
        self._begin(self._remember(name))
        if rollout.state is RolloutState.PROMOTED:
            model.previous = before.versions[rollout.stable]
            self._begin(self._follow(self._users_of(name)))
            return
        # A rollback that an operator sent at the same time is done: it must not take back the
        # stable version as well.
        model.previous = None
        model.told[version] = rollout.why
        known = model.life.versions.get(version)
        if known is not None and known.state is State.DRAINING:
            model.life.roll_back(version, rollout.why, *digests)
        elif known is not None and known.state in SERVES:  # a label keeps it
            model.life.take_back(version, rollout.why, *digests)
        self._begin(self._hand_on(name))

    # Small things.

    def _rules(self, name: str) -> RolloutConfig | None:
        """How new versions of a model get the requests."""
        model = self._model(name)
        entry = model.sent or self._scan.entries.get(name)
        return self.rules(name, None if entry is None else entry.rollout)

    def _model(self, name: str) -> KnownModel:
        found = self._models.get(name)
        if found is None:
            found = self._models[name] = KnownModel()
        return found

    def _was_sent_before(self, name: str) -> bool:
        """Whether an operator has sent what serves, to an earlier engine, which alone knew it."""
        served, known = self._versions.served(name), self._models.get(name)
        return served is not None and served.sent and (known is None or known.sent is None)

    def _loaded(self) -> Iterator[str]:
        for name in self._versions.names():
            served = self._versions.served(name)
            if name is not None and served is not None and served.versions:
                yield name

    def _steps_of(self, name: str) -> list[str]:
        """The names of the models that a loaded ensemble runs."""
        served = self._versions.served(name)
        versions = () if served is None else served.versions.values()
        found = (step["name"] for each in versions for step in each.get("steps", ()))
        return [*dict.fromkeys(found)]

    def _users_of(self, name: str) -> list[str]:
        """The loaded ensembles that run a model."""
        return [each for each in self._loaded() if name in self._steps_of(each)]

    def _used_beside(self, name: str, users: Sequence[str]) -> bool:
        """Whether ensembles other than these run a model."""
        return any(name in self._steps_of(each) for each in self._loaded() if each not in users)

    async def _aside(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, function, *arguments)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _own(name: str, own: RolloutConfig | None) -> RolloutConfig | None:
    return own
