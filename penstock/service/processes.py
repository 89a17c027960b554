"""Entry points of the engine and worker processes of a supervised service, forked or started from
the script.

A fork lacks the threads of its parent, and may deadlock on a lock that one of them held. So if a
script has started threads before its service runs, a child is forked and at once executes the same
program again. It runs the script again, up to its service, and is an engine or a worker from there
on. The script's side effects happen in each child, its threads included.

A reload starts a template in the same way, which forks the engines and workers of the changed
program (see ``supervisor/template.py``). If threads run in it, each of them runs the program.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NoReturn

from penstock.config.schema import ServiceConfig
from penstock.errors import StartupError
from penstock.executors.executor import OpSource
from penstock.executors.processes.child import ProcessChild
from penstock.executors.workers.child import Child
from penstock.observe.logs import LogOptions, logging_to_stderr
from penstock.repository.served import Served
from penstock.service import flags, op_servers
from penstock.service.blueprint import Deployment
from penstock.service.fixed import differences, fixed_settings
from penstock.service.instruments import Process, instruments_in
from penstock.service.lifecycle import SEND_TIMEOUT
from penstock.service.listening import Listeners, raise_descriptor_limit
from penstock.service.program import rerun_problem
from penstock.service.role import COPIES, Role
from penstock.service.worker_process import serve_op
from penstock.supervisor.child_processes import take_over
from penstock.supervisor.client import report_failure
from penstock.supervisor.code import Code, Main, OwnCode, Start
from penstock.supervisor.engine_id import EngineId
from penstock.supervisor.fork_safety import threads_that_prevent_fork
from penstock.supervisor.messages import Loaded
from penstock.supervisor.process_title import engine_title, name_process, worker_title
from penstock.supervisor.reload import Reloading
from penstock.supervisor.signals import Stopped, StopSignals, signals_stop_the_start
from penstock.supervisor.supervisor import Supervisor
from penstock.supervisor.template import Template, TemplateCode, become_template
from penstock.supervisor.version_table import VersionTable
from penstock.version import VERSION

_log = logging.getLogger(__name__)

_OF_FORKS: Final = ".*multi-threaded.*fork"

_LONGEST_ANSWER: Final = 30.0
"""Most seconds in which an engine's loop must answer the supervisor, or the engine is replaced: far
more than anything should block a loop, and less than most callers wait."""

_KILL_TIMEOUT: Final = 5.0
"""Seconds after the end of its drain at which an engine that has not ended is killed."""


def limits_of(config: ServiceConfig) -> tuple[float, float]:
    """The seconds in which an engine that stops must end, and those in which its loop must answer
    the supervisor.
    """
    stop = config.drain_delay + max(config.drain_timeout, SEND_TIMEOUT) + _KILL_TIMEOUT
    return stop, min(config.hang_limit, _LONGEST_ANSWER) if config.hang_limit else math.inf


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

        def main_of(*, spawns: bool, environment: Mapping[str, str] | None) -> Main:
            """What runs an engine or a worker in a fork of this process."""

            def main(start: Start, line: socket.socket) -> int:
                is_engine = start.source is None
                own = engines[start.engine_id.index] if is_engine else {}
                changed = supervisor.changed if is_engine else []
                if spawns:
                    Role(
                        service=self.number,
                        engine_id=start.engine_id,
                        line=line.fileno(),
                        listeners={key: each.fileno() for key, each in own.items()},
                        versions=[each.plain() for each in changed],
                        source=start.source,
                        index=start.index,
                        kept=self.kept,
                    ).run_program(environment)
                return self._run(start, line, own, changed)

            return main

        def template(control: socket.socket, errors: int) -> NoReturn:
            Role(
                service=self.number,
                engine_id=EngineId(),
                line=control.fileno(),
                kept=self.kept,
                template=VERSION,
                errors=errors,
            ).run_program(self._environment())

        fixed = fixed_settings(self.deployment)

        def code(made: Template, loaded: Loaded) -> Code:
            problems = "; ".join(differences(fixed, loaded.fixed))
            if problems:
                raise StartupError(f"this needs a restart: {problems}")
            if loaded.forks:
                return TemplateCode(made, engines, lambda: supervisor.changed)
            warnings.filterwarnings("ignore", _OF_FORKS, DeprecationWarning)
            return OwnCode(main_of(spawns=True, environment=self._environment()), spawns=True)

        limit = self.deployment.config.start_timeout or math.inf
        supervisor = Supervisor(
            main_of(spawns=spawns, environment=None),
            [tuple(each.values()) for each in engines],
            open_ports,
            stop_timeout,
            answer_timeout,
            VersionTable(self.deployment.states),
            spawns=spawns,
            reloading=Reloading(template, code, limit, rerun_problem()),
        )
        return supervisor.run(signals)

    @staticmethod
    def _environment() -> dict[str, str]:
        """The environment in which a changed program runs: that of the start, and what this process
        has added for its children.
        """
        variables = (op_servers.VARIABLE, COPIES)
        own = {key: os.environ[key] for key in variables if key in os.environ}
        return {**flags.STARTED_WITH, **own}

    def run_role(self, role: Role) -> NoReturn:
        """Run this process's role, and exit."""
        role.take()
        line = socket.socket(fileno=role.line)
        if role.template is not None:
            self._be_template(line, role)
        start = Start(role.engine_id, role.source, role.index)
        listeners = {key: socket.socket(fileno=fd) for key, fd in role.listeners.items()}
        versions = [*map(Served.of_plain, role.versions)]
        main = partial(
            self._run,
            *(start, line, listeners, versions),
            elsewhere=role.elsewhere,
            logged=role.logged,
        )
        take_over(start.name, main, stoppable=start.stoppable)

    def _be_template(self, control: socket.socket, role: Role) -> NoReturn:
        """Fork the engines and workers of the program that this process has run; see ``template``.

        Raises:
            StartupError: it cannot.
        """
        if role.template != VERSION:
            text = f"Penstock itself was changed from {role.template} to {VERSION}"
            raise StartupError(f"{text}: this needs a restart")
        config = self.deployment.config
        with logging_to_stderr(log_options(config), at_once=True):
            lines = (*self.deployment.warnings, raise_descriptor_limit(self.deployment.processes))
            for warning in lines:
                if warning is not None:
                    _log.warning("%s", warning)
        name_process("template")
        stop, answer = limits_of(config)
        steps = 1 + 2 * sum(len(graph.options) for graph in self.deployment.graphs)
        loaded = Loaded(
            fixed=fixed_settings(self.deployment),
            states=[each.plain() for each in self.deployment.states.values()],
            start_limit=steps * config.start_timeout or None,
            stop_limit=stop,
            answer_limit=None if math.isinf(answer) else answer,
            forks=not threads_that_prevent_fork(),
            load_limit=config.start_timeout or None,
        )

        become_template(control, loaded, role.errors, self._run)

    def _run(
        self,
        start: Start,
        line: socket.socket,
        listeners: Listeners,
        versions: Sequence[Served],
        *,
        elsewhere: bool = False,
        logged: bool = False,
    ) -> int:
        """Run an engine or a worker; returns the exit status. See ``Role``."""
        if start.source is None:
            return self._engine(start.engine_id, line, listeners, versions)
        return self._worker(
            *(start.engine_id, start.source, start.index, line),
            elsewhere=elsewhere,
            logged=logged,
        )

    def _engine(
        self,
        engine_id: EngineId,
        control: socket.socket,
        listeners: Listeners,
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
        elsewhere: bool,
        logged: bool,
    ) -> int:
        name_process(worker_title(op.label, index, op.version))
        # The engine always reads its output.
        options = log_options(self.deployment.config)
        if logged:  # the engine makes events of the lines, in its own format
            options = replace(options, format="json")
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
        warnings.filterwarnings("ignore", _OF_FORKS, DeprecationWarning)
        return True
