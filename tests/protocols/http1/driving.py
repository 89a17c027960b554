"""Feeds connections in tests and writes down what they say in a form that can be compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.protocols.http1 import (
    Event,
    Http1Connection,
    Http1Data,
    Http1Failed,
    Http1Head,
    Http1Limits,
    LineCache,
)


def connection(
    memo: LineCache | None = None, at_once: int | None = None, **limits: int
) -> Http1Connection:
    return Http1Connection(Http1Limits(**limits), LineCache() if memo is None else memo, at_once)


def request(
    body: bytes = b"", *fields: bytes, line: bytes = b"POST /a/b HTTP/1.1", host: bytes = b"Host: x"
) -> bytes:
    """A request; its length is announced when there is a body and no field frames it."""
    framed = any(field.lower().startswith((b"content-length", b"transfer-")) for field in fields)
    length = [b"Content-Length: %d" % len(body)] if body and not framed else []
    lines = [line, *([host] if host else []), *fields, *length, b"", body]
    return b"\r\n".join(lines)


def chunked(body: bytes, *fields: bytes) -> bytes:
    """A request whose body is in chunks, as it stands here."""
    return request(body, b"Transfer-Encoding: chunked", *fields)


def told(events: Iterable[Event]) -> list[tuple[Any, ...]]:
    """What events say; neighbouring pieces of a body as one."""
    said: list[tuple[Any, ...]] = []
    for event in events:
        if isinstance(event, Http1Head):
            head = event.head
            line = ("head", head.method, head.path, head.query, head.authority)
            said.append((*line, head.headers, head.version, head.content_length, event.ended))
        elif isinstance(event, Http1Failed):
            said.append(("failed", event.status, event.text, event.answered))
        elif said and said[-1][0] == "data":
            assert not said[-1][2], "data behind the end"
            said[-1] = ("data", said[-1][1] + event.data, event.ended)
        else:
            said.append(("data", event.data, event.ended))
    return said


def ends_request(events: Iterable[Event]) -> bool:
    return any(isinstance(event, Http1Head | Http1Data) and event.ended for event in events)


def failures(events: Iterable[Event]) -> list[Http1Failed]:
    return [event for event in events if isinstance(event, Http1Failed)]


def play(
    pieces: Iterable[bytes],
    *,
    ends: bool = False,
    memo: LineCache | None = None,
    at_once: int | None = None,
    lazily: bool = False,
    shortly: bool = False,
    **limits: int,
) -> tuple[list[tuple[Any, ...]], bool]:
    """Feed the pieces, answer each request when it is whole; what was said, and keep_alive.

    Args:
        pieces: one for each read.
        ends: the client ends behind them.
        memo: of heads.
        at_once: chunks that one call takes.
        lazily: what is left unread by that is looked at when all pieces are fed and the client has
            ended, and not before the next piece.
        shortly: by the short way, wherever it may be taken.
        limits: of the connection.
    """
    door = connection(memo, at_once, **limits)
    events: list[Event] = []

    def take(new: list[Event]) -> None:
        events.extend(new)
        while ends_request(new):
            if shortly and door.conclude(200, (), b"") is not None:
                break
            door.respond(200, (), b"")
            if not door.keep_alive:
                break
            new = door.next()
            events.extend(new)

    def feed(piece: bytes) -> list[Event]:
        body = door.whole(piece) if shortly else None
        if body is None:
            return door.receive(piece)
        head = Http1Head(door.head, not door.head.body_length)
        return [head] if head.ended else [head, Http1Data(body, True)]

    for piece in pieces:
        take(feed(piece))
        while door.unread and not lazily:
            take(door.go_on())
    if ends:
        take(door.eof())
    while door.unread:
        take(door.go_on())
    return told(events), door.keep_alive


def bytewise(data: bytes) -> list[bytes]:
    return [data[n : n + 1] for n in range(len(data))]
