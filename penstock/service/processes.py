"""Entry points of the engine and worker processes of a supervised service, forked or started from
the script.

A fork lacks the threads of its parent, and may deadlock on a lock that one of them held. So if a
script has started threads before its service runs, a child is forked and at once executes the same
program again. It runs the script again, up to its service, and is an engine or a worker from there
on. The script's side effects happen in each child, its threads included.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import socket
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NoReturn

from penstock.batching.decision import Batching
from penstock.config.resolve import OpOptions
from penstock.config.schema import ServiceConfig
from penstock.errors import ModelError, StartupError
from penstock.executors.elsewhere.opening import VARIABLE
from penstock.executors.executor import OpSource
from penstock.executors.processes.child import ProcessChild
from penstock.executors.work import BoundOp
from penstock.executors.workers.child import Child
from penstock.executors.workers.watchdog import resident_bytes
from penstock.executors.workers.worker import ANSWER_BYTES
from penstock.observe.logs import LogOptions, logging_to_stderr
from penstock.service.affinity import stay_on_cpus
from penstock.service.batches import batched
from penstock.service.blueprint import Blueprint, Deployment
from penstock.service.build import bound_op
from penstock.service.door import most_in_flight
from penstock.service.instruments import Process, instruments_in
from penstock.service.listening import Listeners
from penstock.service.models import card_of, model_report
from penstock.service.program import rerun_problem, this_program
from penstock.supervisor.child_processes import take_over
from penstock.supervisor.client import report_failure
from penstock.supervisor.engine_id import EngineId
from penstock.supervisor.fork_safety import threads_that_prevent_fork
from penstock.supervisor.process_title import engine_title, name_process, worker_title
from penstock.supervisor.signals import Stopped, StopSignals, signals_stop_the_start
from penstock.supervisor.supervisor import Supervisor
from penstock.supervisor.version_table import Description
from penstock.typed.decoded import DECODED

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """The role of a spawned process.

    Attributes:
        service: the number of services that the script ran before it.
        engine_id: its engine, or the engine that it works for.
        line: descriptor of its socket to the supervisor, or to its engine.
        listeners: descriptors of an engine's listening sockets, by configuration key.
        versions: descriptions of versions that an engine serves.
        source: the op of a worker; None for an engine.
        index: the worker's number.
        elsewhere: whether the worker was not started by the supervisor.
        pid: its process id, which distinguishes it from programs that it starts.
        kept: descriptors that instruments keep open, by name.
    """

    service: int
    engine_id: EngineId
    line: int
    listeners: Mapping[str, int] = field(default_factory=dict)
    versions: Sequence[Description] = ()
    source: OpSource | None = None
    index: int = 0
    elsewhere: bool = False
    pid: int = 0
    kept: Mapping[str, int] = field(default_factory=dict)


def _become(role: Role) -> NoReturn:
    """In a fork: execute this program again, with that role.

    Raises:
        StartupError: it cannot be started.
    """
    for fd in (role.line, *role.listeners.values(), *role.kept.values()):
        os.set_inheritable(fd, True)
    try:
        this_program().run_again(asdict(role))
    except OSError as error:
        raise StartupError(f"the program cannot be run again: {error}") from error


def spawned_role() -> Role | None:
    """The role of this process; None if it was not spawned by a supervisor.

    Raises:
        StartupError: the role cannot be read.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return None
    try:
        given: dict[str, Any] = json.loads(text)
        source = given["source"]
        found = Role(
            **{
                **given,
                "engine_id": EngineId(**given["engine_id"]),
                "source": None if source is None else OpSource(**source),
            }
        )
    except (ValueError, TypeError, KeyError) as error:
        raise StartupError(f"{VARIABLE} is set by the service itself, not to {text!r}") from error
    return found if found.pid == os.getpid() else None


def _own(found: Role) -> None:
    """Take the role, so that programs started by this process do not inherit it."""
    os.environ.pop(VARIABLE, None)
    for fd in (found.line, *found.listeners.values(), *found.kept.values()):
        os.set_inheritable(fd, False)


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
                _become(Role(service=self.number, engine_id=engine_id, line=control.fileno(),
                                 listeners=listeners, versions=supervisor.descriptions,
                                 kept=self.kept))  # fmt: skip
            return self._engine(own, engine_id, control, supervisor.descriptions)

        def worker(engine_id: EngineId, op: OpSource, index: int, channel: socket.socket) -> int:
            if spawns:
                _become(Role(service=self.number, engine_id=engine_id, line=channel.fileno(),
                                 source=op, index=index, kept=self.kept))  # fmt: skip
            return self._worker(engine_id, op, index, channel)

        sockets = [tuple(each.values()) for each in engines]
        supervisor = Supervisor(
            engine, worker, sockets, open_ports, stop_timeout, answer_timeout, spawns=spawns
        )
        return supervisor.run(signals)

    def run_role(self, role: Role) -> NoReturn:
        """Run this process's role, and exit."""
        _own(role)
        line = socket.socket(fileno=role.line)
        if role.source is None:
            listeners = {key: socket.socket(fileno=fd) for key, fd in role.listeners.items()}
            name = role.engine_id.name or "the engine"
            engine = partial(self._engine, listeners, role.engine_id, line, role.versions)
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
        versions: Sequence[Description],
    ) -> int:
        name_process(engine_title(engine_id))
        with (
            self._instruments(),
            logging_to_stderr(log_options(self.deployment.config), writer=engine_id.name),
        ):
            try:
                with signals_stop_the_start() as signals:
                    deployment = self.deployment.at(engine_id).with_versions(versions)
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


def serve_op(
    deployment: Deployment,
    op: OpSource,
    index: int,
    channel: socket.socket,
    make: Callable[[socket.socket, int], Child] = ProcessChild,
) -> int:
    """Run worker ``index`` of an op until the engine stops it or ends.

    Args:
        deployment: has the op.
        op: as of ``Deployment.source_of``.
        index: the worker's number.
        channel: its link to the engine.
        make: makes its end of the link.

    Returns:
        The process's exit status.
    """
    _disable_core_files()
    channel.setblocking(True)
    try:
        return _serve(make(channel, ANSWER_BYTES), deployment, op, index)
    except ConnectionError:  # the engine has ended: the error cannot be reported
        return 0


def _serve(child: Child, deployment: Deployment, source: OpSource, index: int) -> int:
    op = source.label
    try:
        blueprint, at = deployment.find_op(source)
        options = blueprint.options[at]
        DECODED.share(most_in_flight(deployment.config) // options.concurrency)
        if options.executor.own_processes:
            stay_on_cpus(options, index)
        turn = deployment.engine_id.card(options.concurrency, index)
        bound, batching, notes = bound_op(
            blueprint, at, index, turn, child.step, label=op, decides=child.decides
        )
    except BaseException as error:  # noqa: BLE001 - the service gets any error
        # A model's error says all there is; the frames of a hook are the author's.
        shown = None if isinstance(error, ModelError) else error
        text = "" if shown else f": {error}"
        _log.error("op %s: worker %s cannot start%s", op, index, text, exc_info=shown)
        lines = traceback.format_exception_only(error)
        # Our own errors are complete, and are raised again with their class.
        child.failed(str(error) if isinstance(error, StartupError) else "".join(lines).strip())
        return 1
    fallback = None if bound.model is None else bound.model.fallback
    if index == 0:
        for note in notes:
            _log.warning("op %s: %s", op, note)
    elif fallback is not None:  # its GPU may differ from that of worker 0
        _log.warning("op %s: worker %s %s", op, index, fallback)
    child.ready(_loaded(bound, _card(blueprint, at, turn), batching))

    def decided(plain: dict[str, Any]) -> None:
        options = bound.options
        assert isinstance(options, OpOptions)
        padding = None if options.joining is None else options.joining.padding
        bound.run_by(batched(options, Batching.of_plain(plain, padding)))

    child.serve(bound, blueprint.outside_reader(at), decided)
    bound.close()
    return 0


def _loaded(op: BoundOp, card: str | None, batching: Batching | None) -> dict[str, Any]:
    """A report of what this worker has loaded, for the engine and the status."""
    model = op.model
    return {
        "pid": os.getpid(),
        "model": model and model_report(model),
        "device": None if model is None or model.fallback else card and f"gpu {card}",
        "memory": resident_bytes(os.getpid()) or 0,
        **({} if batching is None else {"batching": batching.plain()}),
    }


def _card(blueprint: Blueprint, at: int, turn: int) -> str | None:
    """The GPU of the worker with this turn, if any."""
    op, options = blueprint.graph.ops[at], blueprint.options[at]
    return card_of(op, options, blueprint.config.op.get(op.name), turn)


def _disable_core_files() -> None:
    """Disable core files, which would contain users' data; crash reports have the Python stacks."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    # One byte is too small for a core file; core handlers only obey a limit above zero.
    resource.setrlimit(resource.RLIMIT_CORE, (1 if most else 0, most))
