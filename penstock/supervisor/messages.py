"""The protocol between an engine and its supervisor.

One message per packet (SOCK_SEQPACKET): a line of JSON, after which answers have their text. A long
message is in a file in memory (memfd), whose descriptor the packet carries.

The engine sends ``Spawn`` for each worker, and then ``Ready`` or ``Failed``. It accepts connections
after ``Serve``, until ``Leave`` or ``Stop``; an engine that got SIGTERM itself sends ``Leaving``
and serves on until then. The supervisor answers each ``Spawn`` with ``Forked`` or ``Refused`` of
the same number, and sends ``Exited`` when a worker has ended. ``Forked`` carries two descriptors:
the engine's end of the worker's socket pair, and a pidfd of the worker. A ready engine answers each
``Ping`` with a ``Pong``. An engine that sends ``Ask`` gets the ``Answers`` of the others, with the
same number: the supervisor sends them ``Asked``, and each answers with ``Answer``. An engine that
sends ``Change`` gets ``Changed`` when all engines serve the new state of a name, or none does, or
``Stale`` if it knew an older state: see ``version_table.py``. An engine that sends ``Reload`` gets
``Reloaded`` when the changed program serves, or does not.

A template (see ``template.py``) sends ``Loaded``, and answers each ``Fork`` with ``Forked`` or
``Refused`` of the same number.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Final, TypeAlias, get_args

from penstock.executors.executor import OpSource
from penstock.executors.processes.channel import receive as receive_packet
from penstock.executors.processes.spawner import Exited

_log = logging.getLogger(__name__)

MOST_BYTES: Final = 16_384
"""Of one packet: a socket's buffer has room for several."""

_MOST_FDS: Final = 200
"""Most descriptors of one packet: those of ``Fork`` are a few and an engine's listening sockets.
Source: ``SCM_MAX_FD`` of Linux, 253."""

_IN_FILE: Final = b"in the file"
"""The packet of a long message. Its file is the first of the descriptors."""

_MOST_REASON: Final = 1_000  # characters; JSON may write each as twelve bytes


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine's workers are ready; ``lines`` are texts about its ops and models."""

    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine cannot start, and ends."""

    reason: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """The engine got a signal to stop, maybe the service did not: replace the engine."""


@dataclass(frozen=True, slots=True)
class Serve:
    """Accept connections."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Another engine accepts connections from now on: finish the open ones, and end."""


@dataclass(frozen=True, slots=True)
class Switched:
    """The engine accepts connections, after ``Serve``; or no more, after ``Leave``."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The service stops; at once after a second signal."""

    hurry: bool


@dataclass(frozen=True, slots=True)
class Ping:
    """The supervisor checks whether the engine's loop runs."""


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to ``Ping``."""


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a worker: the fields of ``OpSource``, and its index."""

    number: int
    graph: str | None
    version: str
    op: str
    label: str
    description: Mapping[str, Any] | None
    index: int

    @classmethod
    def of(cls, number: int, source: OpSource, index: int) -> Spawn:
        """The message for worker ``index`` of an op."""
        of = source
        return cls(number, of.graph, of.version, of.op, of.label, of.description, index)

    @property
    def source(self) -> OpSource:
        """The op that it opens."""
        return OpSource(
            graph=self.graph,
            version=self.version,
            op=self.op,
            label=self.label,
            description=self.description,
        )


@dataclass(frozen=True, slots=True)
class Change:
    """The engine requests a new state of a name in every engine; see ``version_table``.

    Attributes:
        base: the number of the state from which it was computed.
        state: the wanted one, plain.
        ended: whether to answer only when removed versions have ended.
        held: versions of the present state that end before the new ones are made ready; requests
            for them wait.
    """

    number: int
    base: int
    state: Mapping[str, Any]
    ended: bool = False
    held: Sequence[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Changed:
    """The answer to ``Change``: None, or why no engine has changed."""

    number: int
    problem: str | None


@dataclass(frozen=True, slots=True)
class Stale:
    """Another answer to ``Change``: the name has another state by now, with the number ``base``."""

    number: int
    base: int
    state: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Hold:
    """End these versions of a name, whose requests wait for what comes; answered with ``Held``."""

    change: int
    name: str | None
    versions: Sequence[str]


@dataclass(frozen=True, slots=True)
class Held:
    """They have ended."""

    change: int


@dataclass(frozen=True, slots=True)
class Restore:
    """End what was made ready, and serve the held versions again: the new ones cannot be served;
    answered with ``Restored``.
    """

    change: int


@dataclass(frozen=True, slots=True)
class Restored:
    """They serve; or why one cannot."""

    change: int
    problem: str | None


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make the versions of a state ready, aside; answered with ``Prepared``."""

    change: int
    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prepared:
    """The versions are ready; or why one cannot be."""

    change: int
    problem: str | None


@dataclass(frozen=True, slots=True)
class Commit:
    """Serve the state; answered with ``Committed``."""

    change: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The engine serves the state."""

    change: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Remove what was made ready: another engine cannot."""

    change: int


@dataclass(frozen=True, slots=True)
class Retire:
    """Every engine serves the new state: drain the versions that are not in it, and end their
    workers; answered with ``Retired``.
    """

    change: int


@dataclass(frozen=True, slots=True)
class Retired:
    """They have ended."""

    change: int


@dataclass(frozen=True, slots=True)
class Forked:
    """The worker runs. The packet carries two descriptors."""

    number: int
    pid: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The worker could not be started."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ask:
    """The engine asks all others; each may take ``seconds`` for its answer. If ``kept``, it gets
    the kept answers of all.
    """

    number: int
    query: str
    seconds: float
    kept: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """Another engine asks."""

    number: int
    query: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The engine's answer, in JSON; the number is 0 if nobody asked. If ``kept``, the supervisor
    keeps it.
    """

    number: int
    kept: bool
    answer: bytes


@dataclass(frozen=True, slots=True)
class Keep:
    """A numbered point of the engine's history, in JSON, to be kept for the time after its end."""

    number: int
    point: bytes


@dataclass(frozen=True, slots=True)
class AskPast:
    """The engine asks for the points of engines that have ended whose numbers are larger than
    ``after``; answered with ``Answers``.
    """

    number: int
    after: int


@dataclass(frozen=True, slots=True)
class Answers:
    """A JSON array of answers."""

    number: int
    answers: bytes


@dataclass(frozen=True, slots=True)
class Reload:
    """The engine requests that the program is run again, and serves in place of this one."""

    number: int


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The answer to ``Reload``: None, or why nothing has changed."""

    number: int
    problem: str | None


@dataclass(frozen=True, slots=True)
class Loaded:
    """The template has run the program up to its service.

    ``fixed`` has the settings that cannot change while the service runs, by name; ``states`` are
    those of the program's names (see ``repository/served.py``), plain; the limits are the
    supervisor's, in seconds, None for none: for an engine to become ready, to end, and to answer,
    and for the next program to be loaded. If ``forks`` is false, threads run already, and each
    engine and worker has to run the program itself.
    """

    fixed: Mapping[str, Any]
    states: Sequence[Mapping[str, Any]]
    start_limit: float | None
    stop_limit: float | None
    answer_limit: float | None
    forks: bool
    load_limit: float | None = None


@dataclass(frozen=True, slots=True)
class Fork:
    """Start a process: ``start`` has the fields of ``supervisor.code.Start``. The packet carries
    the descriptors of its socket, of the pipe that ends it with the supervisor, and of an engine's
    sockets, whose keys are ``listeners``; ``versions`` are the states that the engine serves.
    """

    number: int
    start: Mapping[str, Any]
    versions: Sequence[Mapping[str, Any]] = ()
    listeners: Sequence[str] = ()


OfChange: TypeAlias = Hold | Prepare | Commit | Abort | Restore | Retire
Order: TypeAlias = Serve | Leave | Stop | Asked | OfChange
Message: TypeAlias = (
    Ready | Failed | Leaving | Ping | Pong | Spawn | Forked | Refused | Exited
    | Ask | Answer | Answers | Keep | AskPast | Change | Changed | Stale | Held | Prepared
    | Switched | Committed | Restored | Retired | Reload | Reloaded | Loaded | Fork | Order
)  # fmt: skip

_KINDS: Final = {cls.__name__: cls for cls in get_args(Message)}


def encode(message: Message) -> bytes:
    """Encode a message."""
    if isinstance(message, Refused | Failed):
        message = replace(message, reason=message.reason[:_MOST_REASON])
    elif isinstance(message, Prepared | Restored | Reloaded) and message.problem is not None:
        message = replace(message, problem=message.problem[:_MOST_REASON])
    values = [type(message).__name__, *astuple(message)]
    text: bytes = values.pop() if isinstance(message, Answer | Answers | Keep) else b""
    return b"%s\n%s" % (json.dumps(values).encode(), text)


def decode(data: bytes) -> Message:
    """Decode a message. Not validated: both ends are trusted."""
    head, _, text = data.partition(b"\n")
    name, *values = json.loads(head)
    message: Message = _KINDS[name](*values, *([text] if text else []))
    return message


def send(
    control: socket.socket, message: Message, fds: Sequence[int] = (), most: int = MOST_BYTES
) -> None:
    """Send a message. The caller keeps the descriptors.

    Args:
        control: the socket.
        message: what to send.
        fds: descriptors that go with it.
        most: bytes of the packet; a longer message goes in a file.

    Raises:
        OSError: the socket is closed or full, or there is no memory for a long message.
    """
    data = encode(message)
    if len(data) <= most:
        socket.send_fds(control, [data], fds)
        return
    with open(os.memfd_create("penstock-message", os.MFD_CLOEXEC), "wb", buffering=0) as file:
        file.write(data)
        socket.send_fds(control, [_IN_FILE], (file.fileno(), *fds))


@dataclass(frozen=True, slots=True)
class Received:
    """A packet.

    Attributes:
        message: None if its file was lost, because this process has no descriptor left.
        fds: its descriptors, which the receiver closes.
        lost: whether some of them were lost.
    """

    message: Message | None
    fds: list[int]
    lost: bool = False


def receive(control: socket.socket) -> Received | None:
    """Receive a message; None if the other end is closed.

    Raises:
        OSError: as ``recvmsg``.
    """
    data, fds, lost = receive_packet(control, MOST_BYTES, _MOST_FDS)
    if not data:
        return None
    if data == _IN_FILE:
        if not fds:
            _log.error("a message was lost: this process has no descriptor left")
            return Received(None, [], lost)
        with open(fds.pop(0), "rb", buffering=0) as file:
            file.seek(0)
            data = file.readall()
    return Received(decode(data), fds, lost)
