"""Kinds of executors, with the properties that the rest of the service needs.

Other packages add kinds by ``register``, or by entry points in the group ``penstock.executors``.
The name is then a value of an op's key ``executor``.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Final

from penstock.errors import ConfigError
from penstock.executors.elsewhere.opening import Opening
from penstock.executors.executor import Executor, OpSource
from penstock.executors.external.executor import ExternalExecutor
from penstock.executors.external_store.rules import StoreOptions
from penstock.executors.local import CoroutineExecutor, InlineExecutor, ThreadExecutor
from penstock.executors.outgoing import Outgoing, passed_on
from penstock.executors.processes.executor import ProcessExecutor
from penstock.executors.processes.spawner import Spawner
from penstock.executors.ray.options import USUAL, RayOptions
from penstock.executors.seats.processes import SeatedProcesses
from penstock.executors.seats.threads import SeatedThreads
from penstock.executors.work import BoundOp
from penstock.executors.workers.watchdog import Supervision
from penstock.protocols import media
from penstock.runtimes.prototxt import ModelConf

ENTRY_POINTS: Final = "penstock.executors"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSpec:
    """The arguments of ``ExecutorKind.make``.

    Attributes:
        op: the op's label, unique in its engine: for logs and instruments.
        source: which op its workers open, if they do so elsewhere.
        ops: a copy of the op for each worker; empty if the kind opens none here.
        spawner: starts worker processes; None if no op of the service needs any.
        opening: how a worker elsewhere opens the op; None if the kind is not ``elsewhere``, or the
            op cannot be opened again.
        supervision: limits of workers behind a link.
        listener: bound to the op's socket, to which workers connect; None if it has none.
        media: the media type of bodies on that socket.
        conf: the contents of a remote op's ``client_config``.
        outgoing: makes further header fields of a remote op's calls.
        streams: whether the op's answers come in pieces.
        seats: the most requests that a worker runs at once, if the op has seats; else None.
        ray: the op's keys ``ray``.
        store: the external store, if the op's large values may go there.
    """

    op: str
    workers: int
    loop: asyncio.AbstractEventLoop
    ops: Sequence[BoundOp]
    source: OpSource = field(default_factory=OpSource)
    spawner: Spawner | None = None
    opening: Opening | None = None
    supervision: Supervision = field(default_factory=Supervision)
    listener: socket.socket | None = None
    media: str = media.JSON
    conf: ModelConf | None = None
    outgoing: Outgoing = passed_on
    streams: bool = False
    seats: int | None = None
    ray: RayOptions = USUAL
    store: StoreOptions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorKind:
    """One way to run an op's batches.

    Attributes:
        name: its value of the key ``executor``.
        make: makes an executor for an op.
        own_processes: its workers are processes on this machine, which may die, be killed, and have
            their own limits, CPUs and GPUs; each opens the op itself.
        elsewhere: its workers are not started by the supervisor; each opens the op itself.
        needs_socket: its workers connect to the op's ``socket``.
        on_loop: it runs on the engine's loop, so that a call blocks everything else.
        one_worker: it has one worker, whatever the op's concurrency.
        streams: it runs ops whose answers come in pieces.
        seats: it runs ops with seats.
    """

    name: str
    make: Callable[[ExecutorSpec], Executor]
    own_processes: bool = False
    elsewhere: bool = False
    needs_socket: bool = False
    on_loop: bool = False
    one_worker: bool = False
    streams: bool = False
    seats: bool = False

    def __repr__(self) -> str:
        return f"<ExecutorKind {self.name}>"

    @property
    def opens_here(self) -> bool:
        """Whether the op's model is opened, and its ``init_op`` run, in the engine's process."""
        return not (self.own_processes or self.elsewhere)

    @property
    def opens_again(self) -> bool:
        """Whether each worker opens the op by running the user's program again, or as a fork."""
        return not (self.opens_here or self.needs_socket)


def _thread(spec: ExecutorSpec) -> Executor:
    if spec.seats is not None:
        return SeatedThreads(spec.ops, spec.seats, spec.loop)
    return ThreadExecutor(spec.ops, spec.loop)


def _process(spec: ExecutorSpec) -> Executor:
    assert spec.spawner is not None
    if spec.seats is not None:
        return SeatedProcesses(
            spec.op,
            spec.workers,
            spec.spawner,
            spec.loop,
            source=spec.source,
            supervision=spec.supervision,
            seats=spec.seats,
        )
    return ProcessExecutor(
        spec.op,
        spec.workers,
        spec.spawner,
        spec.loop,
        source=spec.source,
        supervision=spec.supervision,
        streams=spec.streams,
    )


def _remote(spec: ExecutorSpec) -> Executor:
    options = spec.ops[0].options.remote
    assert options is not None
    from penstock.executors.remote import RemoteExecutor

    return RemoteExecutor(spec.ops, spec.loop, options, spec.conf, spec.outgoing, spec.store)


def _external(spec: ExecutorSpec) -> Executor:
    assert spec.listener is not None
    return ExternalExecutor(spec.op, spec.listener, spec.media, spec.loop, streams=spec.streams)


INLINE: Final = ExecutorKind(
    name="inline",
    make=lambda spec: InlineExecutor(spec.ops[0]),
    on_loop=True,
    one_worker=True,
)
THREAD: Final = ExecutorKind(name="thread", make=_thread, streams=True, seats=True)
COROUTINE: Final = ExecutorKind(
    name="coroutine",
    make=lambda spec: CoroutineExecutor(spec.ops, spec.loop),
    on_loop=True,
    streams=True,
)
"""The kind of every op whose ``process`` is a coroutine, whatever its configuration."""
REMOTE: Final = ExecutorKind(name="coroutine", make=_remote, on_loop=True)
"""The kind of remote ops; their ``process`` is a coroutine of ours."""
PROCESS: Final = ExecutorKind(
    name="process", make=_process, own_processes=True, streams=True, seats=True
)
EXTERNAL: Final = ExecutorKind(
    name="external", make=_external, elsewhere=True, needs_socket=True, streams=True
)

BUILT_IN: Final = (INLINE, THREAD, PROCESS, EXTERNAL)
_ON_DEMAND: Final = (
    metadata.EntryPoint("ray", "penstock.executors.ray.executor:RAY", ENTRY_POINTS),
)
"""Kinds of ours whose modules are imported when they are named."""
_registered: dict[str, ExecutorKind] = {kind.name: kind for kind in BUILT_IN}


def register(kind: ExecutorKind) -> None:
    """Add a kind; it replaces another one of the same name."""
    _registered[kind.name] = kind


def kind_named(name: str) -> ExecutorKind:
    """The kind with that name.

    Raises:
        ConfigError: it does not exist, or its package cannot be imported.
    """
    found = _registered.get(name)
    if found is not None:
        return found
    ours = [each for each in _ON_DEMAND if each.name == name]
    for entry in (*ours, *metadata.entry_points(group=ENTRY_POINTS, name=name)):
        try:
            kind: ExecutorKind = entry.load()
        except (ImportError, AttributeError) as error:
            text = f"must be importable, and {entry.value} is not: {error}"
            raise ConfigError([text]) from error
        register(kind)
        return kind
    entries = (*_ON_DEMAND, *metadata.entry_points(group=ENTRY_POINTS))
    known = {*_registered, *(each.name for each in entries)}
    raise ConfigError([f"must be one of {', '.join(sorted(known))}"])
