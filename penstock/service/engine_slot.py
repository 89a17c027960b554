"""One of a service's engines, whichever process it is at the moment.

    start ──> starting ──Ready──> ready ──> serving ──Leave──> leaving ──> end
                 │                             │
                 └────────── death ────────────┴──> start, after a while

While one process serves another may start to take its place; both have the same sockets, so no
connection notices.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Sequence

from penstock.executors.processes.restarts import WITHIN, Restarts
from penstock.service.engine_process import EngineProcess
from penstock.service.place import Place


class EngineSlot:
    """One engine's sockets, its processes, and what became of those before.

    Args:
        place: of its first process.
        listeners: its own; a Unix socket is every slot's.

    Attributes:
        processes: those that live.
        start_at: when the next is to be started; None when nobody waits for that.
        given_up: it has no process, and will not have one.
    """

    def __init__(self, place: Place, listeners: Sequence[socket.socket]) -> None:
        self.listeners = tuple(listeners)
        self.processes: list[EngineProcess] = []
        self.start_at: float | None = None
        self.given_up = False
        self._index = place.index
        self._engines = place.engines
        self._name = place.name
        self._started = 0
        self._restarts = Restarts()

    def __repr__(self) -> str:
        return f"<EngineSlot {self._index} {self.processes} start_at={self.start_at}>"

    @property
    def name(self) -> str:
        """For people."""
        return self._name or "the engine"

    @property
    def starting(self) -> EngineProcess | None:
        """The process that cannot serve yet."""
        return next((each for each in self.processes if not each.is_ready), None)

    @property
    def serving(self) -> EngineProcess | None:
        """The process that serves, or could."""
        ready = (each for each in self.processes if each.is_ready and not each.is_leaving)
        return next(ready, None)

    def next_place(self) -> Place:
        """That of the process to be started now."""
        place = Place(index=self._index, engines=self._engines, generation=self._started)
        self._started += 1
        return place

    def plan_restart(self, died: EngineProcess | None) -> bool:
        """Set ``start_at``; False when it is to be given up.

        Args:
            died: None when it could not even be forked.
        """
        now = time.monotonic()
        worked = died is not None and died.has_served(WITHIN)
        wait = self._restarts.died(now, had_worked=worked)
        self.start_at = None if wait is None else now + wait
        return wait is not None

    def give_up(self, others: Collection[EngineSlot]) -> None:
        """Close its sockets, or the system would go on dealing connections to it."""
        self.given_up = True
        shared = {each for other in others for each in other.listeners}
        for listener in self.listeners:
            if listener not in shared:
                listener.close()
