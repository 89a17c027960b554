"""The supervisor's table of versions: each change is made by all engines or by none.

A change is of one name, from one state of it to the next (see ``repository/served.py``), in two
phases. An engine sends ``Change``; every serving engine gets ``Prepare``, makes the versions that
it lacks ready aside, and answers ``Prepared``. If all are ready, the change is decided: the table
has the new state, and they get ``Commit``; when all serve it, they get ``Retire`` and end the
versions that are in no state any more. If one cannot make a version ready, all get ``Abort``::

    preparing ──all Prepared──> committing ──all Committed──> Retire, Changed
        └──a problem──> Abort, Changed

Where memory has no room for two versions, the ones that the new state has no more end first, and
requests for them wait. If the new ones cannot be served, the old ones are opened again::

    Hold ──all Held──> preparing ──all Prepared──> committing ──all Committed──> Retire, Changed
                           └──a problem──> Restore ──all Restored──> Changed

Changes of different names run side by side. Of one name there is one at a time: others wait, and
are then told the present state (``Stale``), from which their engine computes the wanted one again.
So is a change whose engine computed it from an older state: no change is lost.

An engine that ends is left out; its successor starts from the table. An engine that started before
a decision and is ready after it lacks that state: it makes it ready, alone, before it may serve. An
engine that starts while versions are held starts without them, and makes ready then what it lacks.

Pure: events in, messages out. Engines are any hashable objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from penstock.repository.served import Served
from penstock.supervisor.messages import (
    Abort,
    Change,
    Changed,
    Commit,
    Hold,
    Message,
    Prepare,
    Restore,
    Retire,
    Stale,
)

Sends: TypeAlias = list[tuple[Any, Message]]
"""Engines, and the messages to send to them."""

_NONE: Final[Mapping[str | None, Served]] = MappingProxyType({})


class VersionTable:
    """See the module.

    Args:
        states: of the names at the service's start.

    Attributes:
        epoch: grows with each decided change.
        unfit: engines that cannot make ready what the others serve, with the reason.
    """

    def __init__(self, states: Mapping[str | None, Served] = _NONE) -> None:
        self.epoch = 0
        self.unfit: dict[Any, str] = {}
        self._ids = 0
        self._names = {name: _Name(state) for name, state in states.items()}
        self._steps: dict[int, _Step] = {}
        self._late: dict[Any, _Late] = {}

    @property
    def changed(self) -> list[Served]:
        """The states that an engine which starts now is to serve, besides those of the start; empty
        ones of names whose versions are held.
        """
        held = {step.state.name for step in self._steps.values() if step.holds}
        found = [each.state for each in self._names.values() if each.number]
        states = [each for each in found if each is not None and each.name not in held]
        return [*states, *(Served(name=name) for name in held)]

    @property
    def is_changing(self) -> bool:
        """Whether a change is under way. One that only waits for the end of removed versions is
        none: their requests may take long.
        """
        return any(step.phase is not _Phase.RETIRING for step in self._steps.values())

    def start_again(self, states: Iterable[Served]) -> None:
        """Other code serves, with these states of the names that were never changed. No change is
        under way.
        """
        changed = {name: each for name, each in self._names.items() if each.number}
        self._names = {each.name: _Name(each) for each in states} | changed

    def want(self, asker: Any, wanted: Change, engines: Iterable[Any]) -> Sends:
        """An engine requests a change; ``engines`` are those that serve."""
        state = Served.of_plain(wanted.state)
        known = self._names.setdefault(state.name, _Name(None))
        if known.busy:
            known.waiting.append((asker, wanted.number))
            return []
        if wanted.base != known.number:
            return [(asker, known.stale(wanted.number))]
        if state == known.state:
            return [(asker, Changed(wanted.number, None))]
        missing = set(engines)
        if not missing:
            return [(asker, Changed(wanted.number, "no engine serves yet: try again later"))]
        known.busy = True
        step = self._begin(state, missing)
        step.asker, step.number, step.until_ended = asker, wanted.number, wanted.ended
        if wanted.held:
            step.phase, step.held = _Phase.HOLDING, True
            return [(each, Hold(step.id, state.name, wanted.held)) for each in missing]
        return [(each, Prepare(step.id, wanted.state)) for each in missing]

    def join(self, engine: Any, epoch: int) -> Sends:
        """An engine is ready that started when the table had this epoch."""
        self._late[engine] = _Late(epoch)
        return self._catch_up(engine)

    def is_current(self, engine: Any) -> bool:
        """Whether an engine that has joined has all that was decided, and may serve."""
        return engine not in self._late

    def prepared(self, engine: Any, change: int, problem: str | None) -> Sends:
        """An engine has made the versions of a change ready, or cannot."""
        step = self._answered(engine, change, _Phase.PREPARING)
        if step is None:
            return []
        if problem is None:
            step.ready.add(engine)
            return self._go_on(step)
        if step.late:
            del self._steps[change]
            self.unfit[engine] = problem
            return []
        others = step.missing | step.ready
        if step.held:
            step.phase, step.problem = _Phase.RESTORING, problem
            step.missing, step.ready = {engine, *others}, set()
            return [(each, Restore(change)) for each in step.missing]
        return [*((each, Abort(change)) for each in others), *self._end(step, problem)]

    def held(self, engine: Any, change: int) -> Sends:
        """An engine has ended the held versions of a change."""
        step = self._answered(engine, change, _Phase.HOLDING)
        if step is None:
            return []
        step.ready.add(engine)
        return self._go_on(step)

    def restored(self, engine: Any, change: int, problem: str | None) -> Sends:
        """An engine serves the held versions of a change again, or cannot."""
        step = self._answered(engine, change, _Phase.RESTORING)
        if step is None:
            return []
        step.ready.add(engine)
        step.lost = problem or step.lost
        return self._go_on(step)

    def committed(self, engine: Any, change: int) -> Sends:
        """An engine serves the state of a change."""
        step = self._answered(engine, change, _Phase.COMMITTING)
        return [] if step is None else self._go_on(step)

    def retired(self, engine: Any, change: int) -> Sends:
        """An engine has ended the versions that a change has removed."""
        step = self._answered(engine, change, _Phase.RETIRING)
        return [] if step is None else self._go_on(step)

    def forget(self, engine: Any) -> Sends:
        """An engine has ended, or serves no more new requests: it is left out."""
        self._late.pop(engine, None)
        self.unfit.pop(engine, None)
        for known in self._names.values():
            known.waiting = [each for each in known.waiting if each[0] is not engine]
        sends: Sends = []
        for step in [*self._steps.values()]:
            if engine in step.missing | step.ready:
                step.missing.discard(engine)
                step.ready.discard(engine)
                sends += self._go_on(step)
        return sends

    def _begin(self, state: Served, missing: set[Any]) -> _Step:
        self._ids += 1
        step = self._steps[self._ids] = _Step(self._ids, state, missing)
        return step

    def _answered(self, engine: Any, change: int, phase: _Phase) -> _Step | None:
        """The step that an engine's answer belongs to; None if it is late, or of another phase."""
        step = self._steps.get(change)
        if step is None or step.phase is not phase or engine not in step.missing:
            return None
        step.missing.discard(engine)
        return step

    def _go_on(self, step: _Step) -> Sends:
        """The next phase, if no engine is missing for it."""
        if step.missing:
            return []
        if step.late:
            return self._go_on_late(step)
        if not step.ready:  # all engines have ended
            decided = step.phase in (_Phase.COMMITTING, _Phase.RETIRING)
            return self._end(step, None if decided else "no engine serves any more")
        match step.phase:
            case _Phase.HOLDING:
                step.phase, step.missing, step.ready = _Phase.PREPARING, {*step.ready}, set()
                return [(each, Prepare(step.id, step.state.plain())) for each in step.missing]
            case _Phase.RESTORING:
                again = "the version before serves again"
                if step.lost is not None:
                    again = f"the version before cannot be served any more, either: {step.lost}"
                return self._end(step, f"{step.problem}; {again}")
            case _Phase.PREPARING:
                known = self._names[step.state.name]
                known.state, known.number = step.state, step.id
                self._decide(known)
                step.phase, step.missing = _Phase.COMMITTING, {*step.ready}
                return [(each, Commit(step.id)) for each in step.ready]
            case _Phase.COMMITTING:
                retire: Sends = [(each, Retire(step.id)) for each in step.ready]
                if step.until_ended:
                    step.phase, step.missing = _Phase.RETIRING, {*step.ready}
                    return [*retire, *self._free(step)]
                return [*retire, *self._end(step, None)]
            case _Phase.RETIRING:
                return self._end(step, None)

    def _go_on_late(self, step: _Step) -> Sends:
        """The next phase of an engine that catches up; none if it has ended."""
        if not step.ready:
            del self._steps[step.id]
            return []
        (engine,) = step.ready
        if step.phase is _Phase.PREPARING:
            step.phase, step.missing = _Phase.COMMITTING, {engine}
            return [(engine, Commit(step.id))]
        del self._steps[step.id]
        self._late[engine].has[step.state.name] = step.number
        return [(engine, Retire(step.id)), *self._catch_up(engine)]

    def _catch_up(self, engine: Any) -> Sends:
        """Let an engine make ready the first state that it lacks; if it lacks none, let it take
        part in the changes that are not decided. It waits while versions are held.
        """
        if any(step.holds for step in self._steps.values()):
            return []  # what is held would be opened
        late = self._late[engine]
        for name, known in self._names.items():
            if known.decided > late.has.get(name, late.epoch) and known.state is not None:
                step = self._begin(known.state, {engine})
                step.late, step.number = True, known.decided
                return [(engine, Prepare(step.id, known.state.plain()))]
        del self._late[engine]
        sends: Sends = []
        for step in self._steps.values():
            if step.phase is _Phase.PREPARING and not step.late:
                step.missing.add(engine)
                sends.append((engine, Prepare(step.id, step.state.plain())))
        return sends

    def _end(self, step: _Step, problem: str | None) -> Sends:
        """A change is over."""
        del self._steps[step.id]
        sends: Sends = [(step.asker, Changed(step.number, problem))]
        if step.phase is not _Phase.RETIRING:
            sends += self._free(step)
        if step.held:
            if problem is not None:  # who has started since lacks what was held
                self._decide(self._names[step.state.name])
            busy = {each for x in self._steps.values() if x.late for each in x.missing | x.ready}
            for engine in [each for each in self._late if each not in busy]:
                sends += self._catch_up(engine)
        return sends

    def _decide(self, known: _Name) -> None:
        """Engines that are not ready yet have to make the state of a name ready."""
        self.epoch += 1
        known.decided = self.epoch

    def _free(self, step: _Step) -> Sends:
        """The next change of the name may begin."""
        known = self._names[step.state.name]
        waiting, known.waiting, known.busy = known.waiting, [], False
        return [(asker, known.stale(number)) for asker, number in waiting]


class _Phase(Enum):
    HOLDING = "holding"
    RESTORING = "restoring"
    PREPARING = "preparing"
    COMMITTING = "committing"
    RETIRING = "retiring"


@dataclass(slots=True)
class _Name:
    """A name.

    Attributes:
        state: as decided last; None if nobody has decided any.
        number: of the change that has decided it; 0 for the state at the start.
        decided: the table's epoch since which engines have it.
        busy: whether a change of it is in progress.
        waiting: askers of further changes, with their numbers.
    """

    state: Served | None
    number: int = 0
    decided: int = 0
    busy: bool = False
    waiting: list[tuple[Any, int]] = field(default_factory=list)

    def stale(self, number: int) -> Stale:
        """What to tell an engine whose change is of another state than the present one."""
        return Stale(number, self.number, None if self.state is None else self.state.plain())


@dataclass(slots=True)
class _Late:
    """What an engine has that does not serve yet.

    Attributes:
        epoch: the table's when it started.
        has: the epochs of the states that it has made ready since, by name.
    """

    epoch: int
    has: dict[str | None, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Step:
    """A change in progress, or what one engine does to catch up.

    Attributes:
        id: tells late answers from those to another one.
        state: the wanted one.
        missing: engines that have not answered.
        ready: engines that have made the versions ready.
        asker: the engine that requested it.
        number: the asker's number of the request; of a late one the epoch of the name's state.
        until_ended: whether the asker waits for the end of removed versions.
        late: whether it was decided before; of one engine.
        held: whether versions end before the new ones are made ready.
        problem: why the new ones cannot be served.
        lost: why the held ones cannot be served again.
    """

    id: int
    state: Served
    missing: set[Any]
    ready: set[Any] = field(default_factory=set)
    phase: _Phase = _Phase.PREPARING
    asker: Any = None
    number: int = 0
    until_ended: bool = False
    late: bool = False
    held: bool = False
    problem: str | None = None
    lost: str | None = None

    @property
    def holds(self) -> bool:
        """Whether versions are held now."""
        return self.held and self.phase not in (_Phase.COMMITTING, _Phase.RETIRING)
