"""The events of a connection. Each event names its stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from penstock.protocols.heads import Headers, RequestHead, ResponseHead

if TYPE_CHECKING:
    from penstock.protocols.http2.stream import Stream


class HeadReceived:
    """A request's head (server) or a response's (client; interim ones are passed over).

    Attributes:
        data: the whole body, where it is small and came with the head; no DataReceived follows
            then, and the peer may send as many bytes more: nothing of it is to be ``consumed``.
        ended: the stream's other side has: all of the body is in ``data``, if there is any.
    """

    __slots__ = ("data", "ended", "head", "stream")

    # No __init__ here and in DataReceived: there is one for each request, and setting the
    # attributes in place takes half the time of a call.
    stream: Stream
    head: RequestHead | ResponseHead
    data: bytes
    ended: bool


@dataclass(slots=True)
class HeadTooLarge:
    """A request whose head is over a limit: it is to be answered and its stream to be ended.

    Attributes:
        fields: of the head, as far as they are within the limits; pseudo-headers among them.
    """

    stream: Stream
    fields: Headers


class DataReceived:
    """A piece of a body. ``counted`` bytes are to be handed to ``consumed`` in time."""

    __slots__ = ("counted", "data", "ended", "stream")

    stream: Stream
    data: bytes
    counted: int
    ended: bool


@dataclass(slots=True)
class TrailersReceived:
    """The fields behind a body; the stream's other side has ended."""

    stream: Stream
    headers: Headers


@dataclass(slots=True)
class StreamReset:
    """A stream ended before its time: by the peer, or by us for a violation of the protocol.

    The driver does not know the stream where its head was refused: ``context`` is None then.
    """

    stream: Stream
    code: int
    text: str
    by_peer: bool


@dataclass(slots=True)
class GoawayReceived:
    """The peer takes no new streams; those above ``last_stream`` were never looked at."""

    last_stream: int
    code: int
    debug: bytes


@dataclass(slots=True)
class PingAcknowledged:
    """The answer to a ping of ours."""

    payload: bytes


@dataclass(slots=True)
class ConnectionFailed:
    """The peer broke a rule that ends the connection: send the output (a GOAWAY), then close.

    Attributes:
        code: of the GOAWAY.
        text: why.
        abuse: what there was too much of, where that is why.
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
    """The same events with one piece of data where a stream has several.

    A peer may cut its data as small as it likes, and whoever takes it pays for each piece.
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
        elif type(event) is not HeadReceived:  # what may come behind data of its stream
            _join(run)
        result.append(event)
    _join(run)
    return result


def _join(run: dict[Stream, tuple[DataReceived, list[bytes]]]) -> None:
    for event, pieces in run.values():
        if len(pieces) > 1:
            event.data = b"".join(pieces)
    run.clear()
