"""The events of a connection. Each event names its stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from penstock.protocols.heads import Headers, RequestHead, ResponseHead

if TYPE_CHECKING:
    from penstock.protocols.http2.stream import Stream


class HeadReceived:
    """The head of a request (server) or of a response (client; interim responses are dropped).

    Attributes:
        data: the whole body, if it is small and came with the head. No DataReceived follows, and
            ``consumed`` must not be called for it.
        ended: the peer has ended the stream: ``data`` has the whole body, if there is one.
    """

    __slots__ = ("data", "ended", "head", "stream")

    # No __init__, also in DataReceived: setting the attributes takes half the time of a call.
    stream: Stream
    head: RequestHead | ResponseHead
    data: bytes
    ended: bool


@dataclass(slots=True)
class HeadTooLarge:
    """A request whose head exceeds a limit: the driver must answer it and end the stream.

    Attributes:
        fields: the head's fields within the limit, including pseudo-headers.
    """

    stream: Stream
    fields: Headers


class DataReceived:
    """A piece of a body. ``counted`` bytes must be passed to ``consumed`` in time."""

    __slots__ = ("counted", "data", "ended", "stream")

    stream: Stream
    data: bytes
    counted: int
    ended: bool


@dataclass(slots=True)
class TrailersReceived:
    """The trailers of a message; the peer has ended the stream."""

    stream: Stream
    headers: Headers


@dataclass(slots=True)
class StreamReset:
    """A stream was reset: by the peer, or by us for a violation of the protocol.

    If the stream's head was refused, no event has reported it before: ``context`` is None.
    """

    stream: Stream
    code: int
    text: str
    by_peer: bool


@dataclass(slots=True)
class GoawayReceived:
    """The peer accepts no new streams, and has not processed those above ``last_stream``."""

    last_stream: int
    code: int
    debug: bytes


@dataclass(slots=True)
class PingAcknowledged:
    """The answer to our PING."""

    payload: bytes


@dataclass(slots=True)
class ConnectionFailed:
    """A connection error: write the output, which has a GOAWAY, then close.

    Attributes:
        code: the error code of the GOAWAY.
        text: the reason.
        abuse: the kind of abuse, if that is the reason.
    """

    code: int
    text: str
    abuse: str = ""


Event: TypeAlias = (
    HeadReceived
    | HeadTooLarge
    | DataReceived
    | TrailersReceived
    | StreamReset
    | GoawayReceived
    | PingAcknowledged
    | ConnectionFailed
)


def with_data_joined(events: list[Event]) -> list[Event]:
    """Join the DataReceived events of each stream.

    A peer may send data in tiny frames, and applications have a cost for each piece.
    """
    result: list[Event] = []
    run: dict[Stream, tuple[DataReceived, list[bytes]]] = {}
    for event in events:
        if type(event) is DataReceived:
            if (begun := run.get(event.stream)) is None:
                run[event.stream] = (event, [event.data])
            else:
                first, pieces = begun
                pieces.append(event.data)
                first.counted += event.counted
                first.ended = event.ended
                continue
        elif type(event) is not HeadReceived:  # it may follow data of its stream
            _join(run)
        result.append(event)
    _join(run)
    return result


def _join(run: dict[Stream, tuple[DataReceived, list[bytes]]]) -> None:
    for event, pieces in run.values():
        if len(pieces) > 1:
            event.data = b"".join(pieces)
    run.clear()
