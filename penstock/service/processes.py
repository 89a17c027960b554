"""The processes of a service with a supervisor, and what each of them runs."""

from __future__ import annotations

import logging
import socket
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from penstock.config.schema import ServiceConfig
from penstock.errors import StartupError
from penstock.executors.processes.zygote import report_failure
from penstock.observe.logs import LogOptions, logging_to_stderr
from penstock.service import spawning
from penstock.service.blueprint import Deployment
from penstock.service.forking import take_over
from penstock.service.listening import Listeners
from penstock.service.place import Place
from penstock.service.signals import Stopped, StopSignals, signals_stop_the_start
from penstock.service.spawning import Role
from penstock.service.supervisor import Supervisor
from penstock.service.titles import engine_title, name_process, worker_title
from penstock.service.worker import serve_op

_log = logging.getLogger(__name__)


def log_options(config: ServiceConfig) -> LogOptions:
    """How a service's processes log."""
    return LogOptions(level=config.log_level, format=config.log_format)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """One service's.

    Attributes:
        deployment: what is served; that of the first engine.
        number: how many services the script ran before this one.
        serve: an engine's part, with its own deployment, its listeners, its signals and its end of
            the line to the supervisor.
    """

    deployment: Deployment
    number: int
    serve: Callable[[Deployment, Listeners, StopSignals, socket.socket], None]

    def supervise(
        self,
        engines: Sequence[Listeners],
        open_ports: Callable[[], None],
        signals: StopSignals,
        patience: float,
    ) -> int:
        """Be the supervisor; the exit status of the service.

        Args:
            engines: each one's listeners.
            open_ports: makes them listen.
            signals: what stops the service.
            patience: seconds that an engine may take to end.

        Raises:
            StartupError: the service cannot start.
        """
        spawns = self._cannot_fork()

        def engine(place: Place, control: socket.socket) -> int:
            own = engines[place.index]
            if spawns:
                listeners = {key: each.fileno() for key, each in own.items()}
                self._spawn(Role(service=self.number, place=place, line=control.fileno(),
                                 listeners=listeners))  # fmt: skip
            return self._engine(own, place, control)

        def worker(place: Place, op: str, index: int, channel: socket.socket) -> int:
            if spawns:
                self._spawn(Role(service=self.number, place=place, line=channel.fileno(),
                                 op=op, index=index))  # fmt: skip
            return self._worker(place, op, index, channel)

        sockets = [tuple(each.values()) for each in engines]
        supervisor = Supervisor(engine, worker, sockets, open_ports, patience, spawns=spawns)
        return supervisor.run(signals)

    def be(self, role: Role) -> NoReturn:
        """Be what this process was spawned for, and end with it."""
        spawning.own(role)
        line = socket.socket(fileno=role.line)
        if role.op is None:
            listeners = {key: socket.socket(fileno=fd) for key, fd in role.listeners.items()}
            name = role.place.name or "the engine"
            take_over(name, partial(self._engine, listeners, role.place, line), stoppable=True)
        main = partial(self._worker, role.place, role.op, role.index, line)
        take_over(f"{role.op}|{role.index}", main, stoppable=False)

    def _engine(self, listeners: Listeners, place: Place, control: socket.socket) -> int:
        name_process(engine_title(place))
        with logging_to_stderr(log_options(self.deployment.config), writer=place.name):
            try:
                with signals_stop_the_start() as signals:
                    self.serve(self.deployment.at(place), listeners, signals, control)
            except StartupError as error:
                if not report_failure(control, str(error)):
                    _log.error("%s", error)
                return 1
            except Stopped:
                return 0
        return 0

    def _worker(self, place: Place, op: str, index: int, channel: socket.socket) -> int:
        name_process(worker_title(op, index))
        # The engine always reads what it writes.
        options = log_options(self.deployment.config)
        with logging_to_stderr(options, at_once=True, writer=place.name):
            return serve_op(self.deployment.at(place), op, index, channel)

    @staticmethod
    def _spawn(role: Role) -> NoReturn:
        try:
            spawning.become(role)
        except OSError as error:
            raise StartupError(f"the program cannot be run again: {error}") from error

    @staticmethod
    def _cannot_fork() -> bool:
        """Whether children have to run the program anew.

        Raises:
            StartupError: they have to, and cannot.
        """
        threads = spawning.threads_in_the_way()
        if not threads:
            return False
        names = ", ".join(threads)
        if (why := spawning.why_not_again()) is not None:
            raise StartupError(
                f"worker processes cannot be forked while threads run ({names}), and this program"
                f" cannot be run again instead, because {why}; start threads in init_op, or run the"
                f" ops in threads"
            )
        _log.warning(
            "threads run already (%s), which forks would lack: each process of this service runs"
            " the script again instead, up to its service; to have them forked, which is quicker,"
            " start threads, or train and load models, in init_op",
            names,
        )
        # Forks they are all the same, for as long as it takes to become another program.
        warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
        return True
