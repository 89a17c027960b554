"""Where an engine or a worker gets its code from: this process, or a template."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeAlias

from penstock.executors.executor import OpSource
from penstock.supervisor.child_processes import Child, fork
from penstock.supervisor.engine_id import EngineId

EngineMain: TypeAlias = Callable[[EngineId, socket.socket], int]
WorkerMain: TypeAlias = Callable[[EngineId, OpSource, int, socket.socket], int]
Leave: TypeAlias = Callable[[], None]


class Code(Protocol):
    """Starts the engines and workers of one state of the program's code."""

    def start_engine(
        self, name: str, engine_id: EngineId, control: socket.socket, leave: Leave
    ) -> Child:
        """Start an engine.

        Args:
            name: for logs.
            engine_id: its id.
            control: its end of the socket to the supervisor; the caller closes it.
            leave: closes descriptors of the supervisor and the siblings, in a fork of this process.

        Raises:
            OSError, StartupError: it cannot be started.
        """

    def start_worker(
        self,
        name: str,
        engine_id: EngineId,
        source: OpSource,
        index: int,
        channel: socket.socket,
        leave: Leave,
    ) -> Child:
        """Start worker ``index`` of an op; ``channel`` is its end of the socket to its engine.

        Raises:
            OSError, StartupError: it cannot be started.
        """


class OwnCode:
    """The code of this process, of which engines and workers are forks.

    Args:
        engine_main: see ``Supervisor``.
        worker_main: likewise.
        spawns: both call exec.
    """

    def __init__(
        self, engine_main: EngineMain, worker_main: WorkerMain, *, spawns: bool = False
    ) -> None:
        self._engine_main = engine_main
        self._worker_main = worker_main
        self.spawns = spawns

    def start_engine(
        self, name: str, engine_id: EngineId, control: socket.socket, leave: Leave
    ) -> Child:
        """See Code."""
        main = partial(self._engine_main, engine_id, control)
        return fork(name, main, leave, stoppable=True, spawns=self.spawns)

    def start_worker(
        self,
        name: str,
        engine_id: EngineId,
        source: OpSource,
        index: int,
        channel: socket.socket,
        leave: Leave,
    ) -> Child:
        """See Code."""
        main = partial(self._worker_main, engine_id, source, index, channel)
        return fork(name, main, leave, stoppable=False, spawns=self.spawns)
