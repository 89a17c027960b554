"""Entry points of the engine and worker processes of a supervised service, forked or started from
the script.

A fork lacks the threads of its parent, and may deadlock on a lock that one of them held. So if a
script has started threads before its service runs, a child is forked and at once executes the same
program again. It runs the script again, up to its service, and is an engine or a worker from there
on. The script's side effects happen in each child, its threads included.
"""

from __future__ import annotations

import logging
import socket
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

from penstock.config.schema import ServiceConfig
from penstock.errors import StartupError
from penstock.executors.executor import OpSource
from penstock.executors.processes.child import ProcessChild
from penstock.executors.workers.child import Child
from penstock.observe.logs import LogOptions, logging_to_stderr
from penstock.repository.served import Served
from penstock.service.blueprint import Deployment
from penstock.service.instruments import Process, instruments_in
from penstock.service.listening import Listeners
from penstock.service.program import rerun_problem
from penstock.service.role import Role
from penstock.service.worker_process import serve_op
from penstock.supervisor.child_processes import take_over
from penstock.supervisor.client import report_failure
from penstock.supervisor.engine_id import EngineId
from penstock.supervisor.fork_safety import threads_that_prevent_fork
from penstock.supervisor.process_title import engine_title, name_process, worker_title
from penstock.supervisor.signals import Stopped, StopSignals, signals_stop_the_start
from penstock.supervisor.supervisor import Supervisor
from penstock.supervisor.version_table import VersionTable

_log = logging.getLogger(__name__)


def log_options(config: ServiceConfig) -> LogOptions:
    """The log options of a service's processes."""
    return LogOptions(level=config.log_level, format=config.log_format)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """The processes of one service.

    Attributes:
        deployment: the deployment of the first engine.
        number: how many services the script ran before this one.
        serve: runs an engine, with its deployment, listeners, signals and socket to the supervisor.
        kept: descriptors that instruments keep open in all processes, by name.
    """

    deployment: Deployment
    number: int
    serve: Callable[[Deployment, Listeners, StopSignals, socket.socket], None]
    kept: dict[str, int] = field(default_factory=dict)

    def supervise(
        self,
        engines: Sequence[Listeners],
        open_ports: Callable[[Sequence[str]], None],
        signals: StopSignals,
        stop_timeout: float,
        answer_timeout: float,
    ) -> int:
        """Run the supervisor; returns the exit status of the service.

        ``engines`` are the listeners of each; the other arguments are the Supervisor's.

        Raises:
            StartupError: the service cannot start.
        """
        spawns = self._cannot_fork()

        def engine(engine_id: EngineId, control: socket.socket) -> int:
            own = engines[engine_id.index]
            if spawns:
                listeners = {key: each.fileno() for key, each in own.items()}
                Role(
                    service=self.number,
                    engine_id=engine_id,
                    line=control.fileno(),
                    listeners=listeners,
                    versions=[each.plain() for each in supervisor.changed],
                    kept=self.kept,
                ).run_program()
            return self._engine(own, engine_id, control, supervisor.changed)

        def worker(engine_id: EngineId, op: OpSource, index: int, channel: socket.socket) -> int:
            if spawns:
                Role(
                    service=self.number,
                    engine_id=engine_id,
                    line=channel.fileno(),
                    source=op,
                    index=index,
                    kept=self.kept,
                ).run_program()
            return self._worker(engine_id, op, index, channel)

        sockets = [tuple(each.values()) for each in engines]
        table = VersionTable(self.deployment.states)
        supervisor = Supervisor(
            engine, worker, sockets, open_ports, stop_timeout, answer_timeout, table, spawns=spawns
        )
        return supervisor.run(signals)

    def run_role(self, role: Role) -> NoReturn:
        """Run this process's role, and exit."""
        role.take()
        line = socket.socket(fileno=role.line)
        if role.source is None:
            listeners = {key: socket.socket(fileno=fd) for key, fd in role.listeners.items()}
            name = role.engine_id.name or "the engine"
            versions = [*map(Served.of_plain, role.versions)]
            engine = partial(self._engine, listeners, role.engine_id, line, versions)
            take_over(name, engine, stoppable=True)
        main = partial(
            self._worker, role.engine_id, role.source, role.index, line, elsewhere=role.elsewhere
        )
        take_over(f"{role.source.label}|{role.index}", main, stoppable=False)

    def _engine(
        self,
        listeners: Listeners,
        engine_id: EngineId,
        control: socket.socket,
        versions: Sequence[Served],
    ) -> int:
        name_process(engine_title(engine_id))
        with (
            self._instruments(),
            logging_to_stderr(log_options(self.deployment.config), writer=engine_id.name),
        ):
            try:
                with signals_stop_the_start() as signals:
                    deployment = self.deployment.at(engine_id).with_states(versions)
                    self.serve(deployment, listeners, signals, control)
            except StartupError as error:
                if not report_failure(control, str(error)):
                    _log.error("%s", error)
                return 1
            except Stopped:
                return 0
        return 0

    def _worker(
        self,
        engine_id: EngineId,
        op: OpSource,
        index: int,
        channel: socket.socket,
        *,
        elsewhere: bool = False,
    ) -> int:
        name_process(worker_title(op.label, index, op.version))
        # The engine always reads its output.
        options = log_options(self.deployment.config)
        make = Child if elsewhere else ProcessChild
        with (
            self._instruments(),
            logging_to_stderr(options, at_once=True, writer=engine_id.name),
        ):
            return serve_op(self.deployment.at(engine_id), op, index, channel, make)

    def _instruments(self) -> AbstractContextManager[None]:
        process = Process(self.deployment.config, False, self.kept)
        return instruments_in(process, self.deployment.instruments)

    @staticmethod
    def _cannot_fork() -> bool:
        """Whether children must run the program again.

        Raises:
            StartupError: they must, and cannot.
        """
        threads = threads_that_prevent_fork()
        if not threads:
            return False
        names = ", ".join(threads)
        if (why := rerun_problem()) is not None:
            raise StartupError(
                f"worker processes cannot be forked while threads run ({names}), and this program"
                f" cannot be run again instead, because {why}; start threads in init_op, or run the"
                f" ops in threads"
            )
        _log.warning(
            "threads run already (%s), which forks would lack: each process of this service runs"
            " the program again instead, up to its service; forks start faster, and are possible if"
            " threads are started, and models trained or loaded, in init_op only",
            names,
        )
        # They are forks nevertheless, until they execute the program.
        warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
        return True
