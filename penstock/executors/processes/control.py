"""What an engine and its supervisor say to each other: one message a packet, in JSON.

The engine says ``Spawn`` for each worker that it wants, and then ``Ready`` or ``Failed``. It
accepts connections from ``Serve`` on, until it hears ``Leave`` or ``Stop``; who was told by
somebody else to stop says ``Leaving`` and serves on until then. The supervisor answers each
``Spawn`` with ``Forked`` or ``Refused`` of the same number, and says ``Exited`` when a worker has
ended. With ``Forked`` come two descriptors: the engine's end of the worker's socket pair, and a
pidfd of the worker. A ready engine answers each ``Ping`` with a ``Pong``. An engine that says
``SumWanted``, with its own report, is given a ``Sum`` of the same number: the supervisor says
``ReportWanted`` to the others, and each says ``Report``. The socket keeps the bounds of packets
(SOCK_SEQPACKET).
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, replace
from typing import Any, Final, TypeAlias

MOST_BYTES: Final = 131_072
"""Of one message."""

MOST_TEXT: Final = 60_000
"""Characters of a report, all of them ASCII, of which JSON may write each in two bytes."""

_MOST_REASON: Final = 1_000  # characters, each of which JSON may write in twelve bytes


class ControlError(Exception):
    """A packet that is no message; who sent it is to be killed."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine's workers can work: it could serve."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine cannot start, and ends."""

    reason: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """The engine is to stop, though perhaps not the service: another should take its place."""


@dataclass(frozen=True, slots=True)
class Serve:
    """Accept connections."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Another engine accepts the connections from now on: finish those that are open, and end."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The service stops; in a hurry when it was told so a second time."""

    hurry: bool


@dataclass(frozen=True, slots=True)
class Ping:
    """The supervisor asks whether the engine's loop runs."""


@dataclass(frozen=True, slots=True)
class Pong:
    """It does."""


@dataclass(frozen=True, slots=True)
class Spawn:
    """A worker is wanted."""

    number: int
    op: str
    index: int


@dataclass(frozen=True, slots=True)
class Forked:
    """It runs. The two descriptors come with this."""

    number: int
    pid: int


@dataclass(frozen=True, slots=True)
class Refused:
    """It could not be started."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker has ended, with this wait status; ``peak`` is the most memory it ever had, bytes."""

    pid: int
    status: int
    peak: int


@dataclass(frozen=True, slots=True)
class SumWanted:
    """The engine wants the sum of all engines' reports; this is its own."""

    number: int
    report: str


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum that was wanted, or that of those who have answered in time."""

    number: int
    report: str


@dataclass(frozen=True, slots=True)
class ReportWanted:
    """The engine is to give its report."""

    number: int


@dataclass(frozen=True, slots=True)
class Report:
    """The engine's report, in JSON."""

    number: int
    report: str


Order: TypeAlias = Serve | Leave | Stop | ReportWanted
Message: TypeAlias = (
    Ready
    | Failed
    | Leaving
    | Ping
    | Pong
    | Spawn
    | Forked
    | Refused
    | Exited
    | SumWanted
    | Sum
    | Report
    | Order
)

_KINDS: dict[str, tuple[type[Message], tuple[type, ...]]] = {
    "ready": (Ready, ()),
    "failed": (Failed, (str,)),
    "leaving": (Leaving, ()),
    "ping": (Ping, ()),
    "pong": (Pong, ()),
    "serve": (Serve, ()),
    "leave": (Leave, ()),
    "stop": (Stop, (bool,)),
    "spawn": (Spawn, (int, str, int)),
    "forked": (Forked, (int, int)),
    "refused": (Refused, (int, str)),
    "exited": (Exited, (int, int, int)),
    "sum_wanted": (SumWanted, (int, str)),
    "sum": (Sum, (int, str)),
    "report_wanted": (ReportWanted, (int,)),
    "report": (Report, (int, str)),
}
_NAMES = {cls: name for name, (cls, _) in _KINDS.items()}


def encode(message: Message) -> bytes:
    """One packet.

    Raises:
        ControlError: it would be too long, which only an op's name can make it.
    """
    if isinstance(message, Refused | Failed):
        message = replace(message, reason=message.reason[:_MOST_REASON])
    data = json.dumps([_NAMES[type(message)], *astuple(message)]).encode()
    if len(data) > MOST_BYTES:
        raise ControlError(f"a message of {len(data)} bytes: {data[:100]!r}...")
    return data


def decode(data: bytes) -> Message:
    """The message of one packet.

    Raises:
        ControlError: it is none.
    """
    try:
        packet: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise ControlError(f"no message: {data[:100]!r}") from None
    if not isinstance(packet, list) or not packet or not isinstance(packet[0], str):
        raise ControlError(f"no message: {data[:100]!r}")
    name, *values = packet
    cls, types = _KINDS.get(name, (None, ()))
    if cls is None or [type(value) for value in values] != list(types):
        raise ControlError(f"no message: {data[:100]!r}")
    return cls(*values)
