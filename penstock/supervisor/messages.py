"""The protocol between an engine and its supervisor.

One JSON message per packet (SOCK_SEQPACKET); a long one is in a file in memory (memfd), whose
descriptor the packet carries. The engine sends ``Spawn`` for each worker, and then
``Ready`` or ``Failed``. It accepts connections after ``Serve``, until ``Leave`` or ``Stop``; an
engine that got SIGTERM itself sends ``Leaving`` and serves on until then. The supervisor answers
each ``Spawn`` with ``Forked`` or ``Refused`` of the same number, and sends ``Exited`` when a worker
has ended. ``Forked`` carries two descriptors: the engine's end of the worker's socket pair, and a
pidfd of the worker. A ready engine answers each ``Ping`` with a ``Pong``. An engine that sends
``SumWanted``, with its own report, gets a ``Sum`` of the same number: the supervisor sends
``ReportWanted`` to the others, and each answers with ``Report``. In the same way an engine that
sends ``Ask`` gets the ``Answers`` of the others, whatever their size: the supervisor sends
``Asked``, and each answers with ``Answer``.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Final, TypeAlias, get_args

from penstock.executors.processes.channel import receive as receive_packet
from penstock.executors.processes.spawner import Exited

_log = logging.getLogger(__name__)

MOST_BYTES: Final = 16_384
"""Of one packet: a socket's buffer has room for several."""

MOST_FDS: Final = 253
"""Most descriptors of one packet: Linux's limit."""

_IN_FILE: Final = b"in the file"
"""The packet of a long message. Its file is the first of the descriptors."""

_MOST_REASON: Final = 1_000  # characters; JSON may write each as twelve bytes


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine's workers are ready; ``models`` has a line of text for each model."""

    models: list[str] = field(default_factory=list)


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
    """Start a worker."""

    number: int
    op: str
    index: int


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
class SumWanted:
    """The engine requests the sum of all engines' reports; this is its own."""

    number: int
    report: str


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum over the engines that answered in time."""

    number: int
    report: str


@dataclass(frozen=True, slots=True)
class ReportWanted:
    """Requests the engine's report."""

    number: int


@dataclass(frozen=True, slots=True)
class Report:
    """The engine's report, in JSON."""

    number: int
    report: str


@dataclass(frozen=True, slots=True)
class Ask:
    """The engine asks all others; each may take ``seconds`` for its answer."""

    number: int
    question: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Asked:
    """Another engine asks."""

    number: int
    question: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The engine's answer. The packet carries the descriptor of a file with its text."""

    number: int


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers that came in time. The packet carries a descriptor for each."""

    number: int


Order: TypeAlias = Serve | Leave | Stop | ReportWanted | Asked
Message: TypeAlias = (
    Ready | Failed | Leaving | Ping | Pong | Spawn | Forked | Refused | Exited
    | SumWanted | Sum | Report | Ask | Answer | Answers | Order
)  # fmt: skip

_KINDS: Final = {cls.__name__: cls for cls in get_args(Message)}


def encode(message: Message) -> bytes:
    """Encode a message."""
    if isinstance(message, Refused | Failed):
        message = replace(message, reason=message.reason[:_MOST_REASON])
    return json.dumps([type(message).__name__, *astuple(message)]).encode()


def decode(data: bytes) -> Message:
    """Decode a message. Not validated: both ends are trusted."""
    name, *values = json.loads(data)
    message: Message = _KINDS[name](*values)
    return message


def send(control: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send a message. The caller keeps the descriptors.

    Raises:
        OSError: the socket is closed or full, or there is no memory for a long message.
    """
    data = encode(message)
    if len(data) <= MOST_BYTES:
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
    data, fds, lost = receive_packet(control, MOST_BYTES, MOST_FDS)
    if not data:
        return None
    if data == _IN_FILE:
        if not fds:
            _log.error("a message was lost: this process has no descriptor left")
            return Received(None, [], lost)
        data = read_file(fds.pop(0)).encode()
    return Received(decode(data), fds, lost)


def read_file(file: int) -> str:
    """Read the text of a memfd, and close it."""
    with open(file) as text:
        text.seek(0)
        return text.read()
