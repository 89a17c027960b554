"""Feeds connections in tests, and describes their events as values that can be compared."""

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
    """A request; it has a length if there is a body and no field frames it."""
    framed = any(field.lower().startswith((b"content-length", b"transfer-")) for field in fields)
    length = [b"Content-Length: %d" % len(body)] if body and not framed else []
    lines = [line, *([host] if host else []), *fields, *length, b"", body]
    return b"\r\n".join(lines)


def chunked(body: bytes, *fields: bytes) -> bytes:
    """A request with this chunked body."""
    return request(body, b"Transfer-Encoding: chunked", *fields)


def described(events: Iterable[Event]) -> list[tuple[Any, ...]]:
    """Events as values; consecutive pieces of a body are joined."""
    description: list[tuple[Any, ...]] = []
    for event in events:
        if isinstance(event, Http1Head):
            head = event.head
            line = ("head", head.method, head.path, head.query, head.authority)
            description.append(
                (*line, head.headers, head.version, head.content_length, event.ended)
            )
        elif isinstance(event, Http1Failed):
            description.append(("failed", event.status, event.text, event.answered))
        elif description and description[-1][0] == "data":
            assert not description[-1][2], "data behind the end"
            description[-1] = ("data", description[-1][1] + event.data, event.ended)
        else:
            description.append(("data", event.data, event.ended))
    return description


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
    deferred: bool = False,
    fast_path: bool = False,
    **limits: int,
) -> tuple[list[tuple[Any, ...]], bool]:
    """Feed the pieces, answer each complete request; returns the described events and keep_alive.

    Args:
        pieces: one for each read.
        ends: whether the client closes after them.
        memo: the cache of lines.
        at_once: the number of chunks that one call reads.
        deferred: whether chunks left unread are read only after all pieces and the client's end,
            not before the next piece.
        fast_path: whether the fast path is used where it applies.
        limits: of the connection.
    """
    server = connection(memo, at_once, **limits)
    events: list[Event] = []

    def take(new: list[Event]) -> None:
        events.extend(new)
        while ends_request(new):
            if fast_path and server.conclude(200, (), b"") is not None:
                break
            server.respond(200, (), b"")
            if not server.keep_alive:
                break
            new = server.next()
            events.extend(new)

    def feed(piece: bytes) -> list[Event]:
        body = server.whole(piece) if fast_path else None
        if body is None:
            return server.receive(piece)
        head = Http1Head(server.head, not server.head.body_length)
        return [head] if head.ended else [head, Http1Data(body, True)]

    for piece in pieces:
        take(feed(piece))
        while server.unread and not deferred:
            take(server.go_on())
    if ends:
        take(server.eof())
    while server.unread:
        take(server.go_on())
    return described(events), server.keep_alive


def single_bytes(data: bytes) -> list[bytes]:
    return [data[n : n + 1] for n in range(len(data))]
