"""Where an engine or a worker gets its code from: this process, or a template."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from penstock.executors.executor import OpSource
from penstock.supervisor.child_processes import Child, fork
from penstock.supervisor.engine_id import EngineId


@dataclass(frozen=True, slots=True)
class Start:
    """What a process is started as: an engine, or a worker of an engine.

    Attributes:
        engine_id: of the engine.
        source: the op that the worker opens; None for an engine.
        index: of the worker.
    """

    engine_id: EngineId
    source: OpSource | None = None
    index: int = 0

    @property
    def name(self) -> str:
        """For logs."""
        if self.source is None:
            return self.engine_id.name or "the engine"
        return f"{self.source.label}|{self.index}"

    @property
    def stoppable(self) -> bool:
        """Whether signals to stop reach it: workers are ended by their engine."""
        return self.source is None


Main: TypeAlias = Callable[[Start, socket.socket], int]
Leave: TypeAlias = Callable[[], None]


class Code(Protocol):
    """Starts the engines and workers of one state of the program's code."""

    @property
    def is_lost(self) -> bool:
        """Whether it can start nothing any more."""

    def start(self, start: Start, line: socket.socket, leave: Leave) -> Child:
        """Start a process.

        Args:
            start: an engine or a worker.
            line: its end of the socket to the supervisor, or to its engine; the caller closes it.
            leave: closes descriptors of the supervisor and the siblings, in a fork of this process.

        Raises:
            OSError, StartupError: it cannot be started.
        """


class OwnCode:
    """The code of this process, of which engines and workers are forks.

    Args:
        main: see ``Supervisor``.
        spawns: it calls exec.
    """

    def __init__(self, main: Main, *, spawns: bool = False) -> None:
        self._main = main
        self.spawns = spawns

    @property
    def is_lost(self) -> bool:
        """It never is."""
        return False

    def start(self, start: Start, line: socket.socket, leave: Leave) -> Child:
        """See Code."""
        main = partial(self._main, start, line)
        return fork(start.name, main, leave, stoppable=start.stoppable, spawns=self.spawns)
