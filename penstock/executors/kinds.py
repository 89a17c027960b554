"""Kinds of executors, as values: what the rest of the service has to know of each.

A further kind is added from outside: ``register`` it, or name it in a package's entry points, group
``penstock.executors``. Then the key ``executor`` of an op takes its name.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Final

from penstock.errors import ConfigError
from penstock.executors.executor import Executor
from penstock.executors.external.executor import ExternalExecutor
from penstock.executors.local import CoroutineExecutor, InlineExecutor, ThreadExecutor
from penstock.executors.processes.control import Spawner
from penstock.executors.processes.executor import ProcessExecutor
from penstock.executors.processes.watchdog import Supervision
from penstock.executors.remote import Outgoing, RemoteExecutor, passed_on
from penstock.executors.work import BoundOp
from penstock.protocols import media
from penstock.runtimes.prototxt import ModelConf

ENTRY_POINTS: Final = "penstock.executors"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSpec:
    """What an executor is made of.

    Attributes:
        ops: a copy of the op for each worker; none where the kind opens none here.
        spawner: starts worker processes; None where no op of the service needs any.
        supervision: how worker processes are looked after.
        listener: bound to the op's socket, which workers connect to; None where it has none.
        media: the type of bodies on that socket.
        conf: what the ``client_config`` of a remote op says.
        outgoing: what a remote op sends with a call, beside the request.
    """

    op: str
    workers: int
    loop: asyncio.AbstractEventLoop
    ops: Sequence[BoundOp]
    spawner: Spawner | None = None
    supervision: Supervision = field(default_factory=Supervision)
    listener: socket.socket | None = None
    media: str = media.JSON
    conf: ModelConf | None = None
    outgoing: Outgoing = passed_on


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorKind:
    """One way to run an op's batches.

    Attributes:
        name: as the key ``executor`` has it.
        make: an executor for an op.
        own_processes: its workers are processes of this machine, which may die, be killed and have
            limits, CPUs and cards of their own; each opens the op for itself.
        elsewhere: its workers are started by others, here or on other machines; each opens the op
            for itself.
        needs_socket: its workers connect to the op's ``socket``.
        on_loop: it runs on the engine's loop, so that a call of it holds up everything else.
        one_worker: there is one, whatever the op's concurrency.
    """

    name: str
    make: Callable[[ExecutorSpec], Executor]
    own_processes: bool = False
    elsewhere: bool = False
    needs_socket: bool = False
    on_loop: bool = False
    one_worker: bool = False

    def __repr__(self) -> str:
        return f"<ExecutorKind {self.name}>"

    @property
    def opens_here(self) -> bool:
        """Whether the op's model is opened, and its ``init_op`` run, in the engine's process."""
        return not (self.own_processes or self.elsewhere)


def _process(spec: ExecutorSpec) -> Executor:
    assert spec.spawner is not None
    return ProcessExecutor(
        spec.op,
        spec.workers,
        spec.spawner,
        spec.loop,
        supervision=spec.supervision,
    )


def _remote(spec: ExecutorSpec) -> Executor:
    options = spec.ops[0].options.remote
    assert options is not None
    return RemoteExecutor(spec.ops, spec.loop, options, spec.conf, spec.outgoing)


def _external(spec: ExecutorSpec) -> Executor:
    assert spec.listener is not None
    return ExternalExecutor(spec.op, spec.listener, spec.media, spec.loop)


INLINE: Final = ExecutorKind(
    name="inline",
    make=lambda spec: InlineExecutor(spec.ops[0]),
    on_loop=True,
    one_worker=True,
)
THREAD: Final = ExecutorKind(name="thread", make=lambda spec: ThreadExecutor(spec.ops, spec.loop))
COROUTINE: Final = ExecutorKind(
    name="coroutine", make=lambda spec: CoroutineExecutor(spec.ops, spec.loop), on_loop=True
)
"""What an op runs by whose ``process`` is a coroutine, whatever its configuration says."""
REMOTE: Final = ExecutorKind(name="coroutine", make=_remote, on_loop=True)
"""What an op runs by whose model is in another server; its ``process`` is a coroutine of ours."""
PROCESS: Final = ExecutorKind(name="process", make=_process, own_processes=True)
EXTERNAL: Final = ExecutorKind(name="external", make=_external, elsewhere=True, needs_socket=True)

BUILT_IN: Final = (INLINE, THREAD, PROCESS, EXTERNAL)
_registered: dict[str, ExecutorKind] = {kind.name: kind for kind in BUILT_IN}


def register(kind: ExecutorKind) -> None:
    """Let configurations name this kind; in place of another one of its name, if there is one."""
    _registered[kind.name] = kind


def kind_named(name: str) -> ExecutorKind:
    """The kind of that name.

    Raises:
        ConfigError: there is none, or its package cannot be imported.
    """
    found = _registered.get(name)
    if found is not None:
        return found
    for entry in metadata.entry_points(group=ENTRY_POINTS, name=name):
        try:
            kind: ExecutorKind = entry.load()
        except (ImportError, AttributeError) as error:
            text = f"must be importable, and {entry.value} is not: {error}"
            raise ConfigError([text]) from error
        register(kind)
        return kind
    known = {*_registered, *(each.name for each in metadata.entry_points(group=ENTRY_POINTS))}
    raise ConfigError([f"must be one of {', '.join(sorted(known))}"])
