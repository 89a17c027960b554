"""The supervisor's table of versions: one change at a time, which all engines make or none.

A change has two phases. An engine sends ``Change``; every serving engine gets ``Prepare``, makes
the version ready aside, and answers ``Prepared``. If all are ready, the change is decided: the
table has the version, and they get ``Commit``; when all serve it, they get ``Retire`` and end the
others. If one cannot make it ready, all get ``Abort``::

    preparing ──all Prepared──> committing ──all Committed──> Retire, Changed
        └──a problem──> Abort, Changed

An engine that ends is left out; its successor starts from the table. An engine that started before
the decision and is ready after it does not have the version: the supervisor replaces it.

Pure: events in, messages out. Engines are any hashable objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from penstock.supervisor.messages import Abort, Changed, Commit, Message, Prepare, Retire

Description: TypeAlias = Mapping[str, Any]
"""Plain data, as of JSON."""

Sends: TypeAlias = list[tuple[Any, Message]]
"""Engines, and the messages to send to them."""


class VersionTable:
    """See the module.

    Attributes:
        epoch: changes with each decided change.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self._numbers = 0
        self._current: dict[str | None, Description] = {}  # by the graph's name
        self._change: _Change | None = None

    @property
    def descriptions(self) -> list[Description]:
        """The versions that an engine which starts now is to serve, besides those of graphs that
        were never changed.
        """
        return [*self._current.values()]

    def want(
        self, asker: Any, number: int, description: Description, engines: Iterable[Any]
    ) -> Sends:
        """An engine requests a change; ``engines`` are those that serve."""
        missing = set(engines)
        if self._change is not None:
            why = "another version is being made ready: try again later"
        elif not missing:
            why = "no engine serves yet: try again later"
        else:
            self._numbers += 1
            change = self._change = _Change(self._numbers, asker, number, description, missing)
            return [(each, Prepare(change.id, description)) for each in missing]
        return [(asker, Changed(number, why))]

    def join(self, engine: Any) -> Sends:
        """An engine that started before the decision of the current change serves from now on."""
        change = self._change
        if change is None or change.decided:
            return []
        change.missing.add(engine)
        return [(engine, Prepare(change.id, change.description))]

    def prepared(self, engine: Any, change_id: int, problem: str | None) -> Sends:
        """An engine has made the version ready, or cannot."""
        change = self._change
        if change is None or change.id != change_id or change.decided:
            return []
        if engine not in change.missing:
            return []
        change.missing.discard(engine)
        if problem is not None:
            self._change = None
            others = change.missing | change.ready
            return [
                *((each, Abort(change.id)) for each in others),
                (change.asker, Changed(change.number, problem)),
            ]
        change.ready.add(engine)
        return self._go_on(change)

    def committed(self, engine: Any, change_id: int) -> Sends:
        """An engine serves the version."""
        change = self._change
        if change is None or change.id != change_id or not change.decided:
            return []
        change.missing.discard(engine)
        return self._go_on(change)

    def forget(self, engine: Any) -> Sends:
        """An engine has ended, or serves no more new requests: it is left out."""
        change = self._change
        if change is None or engine not in change.missing | change.ready:
            return []
        change.missing.discard(engine)
        change.ready.discard(engine)
        return self._go_on(change)

    def _go_on(self, change: _Change) -> Sends:
        """The next step, if no engine is missing for it."""
        if change.missing:
            return []
        if not change.decided and change.ready:
            change.decided = True
            self.epoch = change.id
            self._current[change.description["name"]] = change.description
            change.missing = set(change.ready)
            return [(each, Commit(change.id)) for each in change.ready]
        self._change = None
        if not change.decided:
            return [(change.asker, Changed(change.number, "no engine serves any more"))]
        return [
            *((each, Retire(change.id)) for each in change.ready),
            (change.asker, Changed(change.number, None)),
        ]


class _Change:
    """The change in progress.

    Attributes:
        id: tells late answers from those to another change.
        asker: the engine that requested it.
        number: the asker's number of the request.
        missing: engines that have not answered.
        ready: engines that have made the version ready.
        decided: whether it was committed.
    """

    def __init__(
        self, change_id: int, asker: Any, number: int, description: Description, missing: set[Any]
    ) -> None:
        self.id = change_id
        self.asker = asker
        self.number = number
        self.description = description
        self.missing = missing
        self.ready: set[Any] = set()
        self.decided = False
