"""The place of one engine in a service: its processes follow one another, its sockets stay."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from penstock.executors.workers.restarts import WITHIN, Restarts
from penstock.supervisor.engine_id import EngineId
from penstock.supervisor.engine_process import EngineProcess


class EngineSlot:
    """One engine's sockets, processes and restart history.

    Args:
        engine_id: of its first process.
        listeners: its own sockets; a Unix socket belongs to every slot.

    Attributes:
        name: for people.
        processes: its running processes.
        start_at: when the next process is started; None if none is due.
        given_up: it is not restarted any more.
    """

    def __init__(self, engine_id: EngineId, listeners: Sequence[socket.socket]) -> None:
        self.listeners = tuple(listeners)
        self.processes: list[EngineProcess] = []
        self.start_at: float | None = None
        self.given_up = False
        self.name = engine_id.name or "the engine"
        self._next_id = engine_id
        self._restarts = Restarts()

    @property
    def starting(self) -> EngineProcess | None:
        """The process that is not ready yet."""
        return next((each for each in self._own if not each.is_ready), None)

    @property
    def serving(self) -> EngineProcess | None:
        """The process that serves, or could."""
        ready = (each for each in self._own if each.is_ready and not each.is_leaving)
        return next(ready, None)

    @property
    def _own(self) -> list[EngineProcess]:
        """Its processes without those of a reload that is not over, or has failed."""
        return [each for each in self.processes if not each.waits and not each.is_discarded]

    def next_id(self, *, renews: bool = False) -> EngineId:
        """The id of the next process.

        Args:
            renews: whether it is the first one of changed code.
        """
        engine_id = self._next_id
        self._next_id = replace(engine_id, generation=engine_id.generation + 1)
        return replace(engine_id, first=engine_id.generation) if renews else engine_id

    def take_over(self, engine: EngineProcess) -> list[EngineProcess]:
        """Let the process of a reload serve in this slot; returns those in whose place it does."""
        before = self._own
        engine.waits = False
        self.start_at = None
        self._next_id = replace(self._next_id, first=engine.engine_id.first)
        self._restarts = Restarts()
        return before

    def plan_restart(self, died: EngineProcess | None) -> bool:
        """Set ``start_at``; returns False if it is not to be restarted.

        Args:
            died: None if the fork failed.
        """
        now = time.monotonic()
        worked = died is not None and died.has_served(WITHIN)
        wait = self._restarts.died(now, had_worked=worked)
        self.start_at = None if wait is None else now + wait
        return wait is not None

    def give_up(self, others: Collection[EngineSlot]) -> None:
        """Close its sockets, to which the system would otherwise assign connections."""
        self.given_up = True
        shared = {each for other in others for each in other.listeners}
        for listener in self.listeners:
            if listener not in shared:
                listener.close()
