"""Slow attackers: requests that never end, answers that are never read, idle connections."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.attacks.peer import HEAD, Peer
from tests.kit import frames as f
from tests.kit.http1 import pairs, request
from tests.kit.pipeline import encode

TRICKLE = 0.05
"""Seconds between two bytes of one connection."""

AFTER = 4.0
"""Seconds after the last byte within which every connection must be answered or closed."""

PATH = "/echo/prediction"


def gather(peers: list[Peer], seconds: float = AFTER) -> Counter[str]:
    """All their answers until they are closed, or until ``seconds`` have passed."""
    deadline = time.monotonic() + seconds
    received: Counter[str] = Counter()
    for peer in peers:
        peer.listen(max(0.0, deadline - time.monotonic()))
        received += peer.received
        if not peer.ended:
            received["still open"] += 1
        peer.close()
    return received


def trickle(
    count: int,
    connect: Callable[[int], Peer],
    start: Callable[[Peer], bytes],
    byte: Callable[[int], bytes],
) -> Callable[[int, float], Counter[str]]:
    """Many connections with the same start, which then send a few bytes at intervals."""

    def run(port: int, until: float) -> Counter[str]:
        peers = [connect(port) for _ in range(count)]
        for peer in peers:
            peer.send(start(peer))
        n = 0
        # Beyond ``until``, so that the limits of the service have time to be reached.
        deadline = until + AFTER
        while time.monotonic() < deadline:
            unanswered = [peer for peer in peers if not peer.received]
            if not unanswered:
                break
            for peer in unanswered:
                peer.listen()
                if not peer.received:
                    peer.send(byte(n))
            n += 1
            time.sleep(TRICKLE)
        return gather(peers, 0.5)

    return run


def http1(port: int) -> Peer:
    return Peer(port)


def http2(port: int) -> Peer:
    return Peer(port, http2=True)


def mute(port: int) -> Peer:
    """An HTTP/2 connection with the preface and no frame."""
    return Peer(port, http2=True, first=f.PREFACE)


def line_bytes(n: int) -> bytes:
    return b"a"


slow_line = trickle(200, http1, lambda peer: b"POST /", line_bytes)
slow_head = trickle(
    200, http1, lambda peer: b"POST / HTTP/1.1\r\nHost: localhost\r\n", lambda n: b"x: y\r\n"
)
silent = trickle(200, http1, lambda peer: b"", lambda n: b"")
slow_body = trickle(
    200,
    http1,
    lambda peer: request(b"", b"Content-Length: 100000", target=PATH.encode(), length=False),
    lambda n: b"{",
)
slow_chunks = trickle(
    200,
    http1,
    lambda peer: request(b"", b"Transfer-Encoding: chunked", target=PATH.encode(), length=False),
    lambda n: b"1\r\n{\r\n",
)
slow_block = trickle(
    100,
    http2,
    lambda peer: f.headers(peer.stream(), HEAD, whole=False),
    lambda n: b"",
)
slow_frame = trickle(
    100,
    http2,
    # The header of a frame whose payload is sent byte by byte.
    lambda peer: f.headers(peer.stream(), bytes(16000))[:9],
    lambda n: b"\x82",
)
mute_http2 = trickle(100, mute, lambda peer: b"", lambda n: b"")
slow_call = trickle(
    100,
    http2,
    lambda peer: f.headers(peer.stream(), HEAD) + b"\0\3\xe8\0\0\0\0\0\1\0\0\0\3\xe3",
    lambda n: b"x",
)


def half_open(port: int, until: float) -> Counter[str]:
    """Calls without a message: on each of some connections the maximum number of open ones."""
    peers = [http2(port) for _ in range(8)]
    for peer in peers:
        calls = [f.headers(peer.stream(), HEAD) for _ in range(128)]
        peer.send(b"".join(calls))
    deadline = until + AFTER
    while time.monotonic() < deadline:
        for peer in peers:
            peer.listen(0.05)
        if sum(sum(peer.received.values()) for peer in peers) >= 8 * 128:
            break
    return gather(peers, 0.0)


def endless(start: bytes, piece: bytes) -> Callable[[int, float], Counter[str]]:
    """An HTTP/1.1 message without end, as fast as it can be sent."""

    def run(port: int, until: float) -> Counter[str]:
        received: Counter[str] = Counter()
        while time.monotonic() < until:
            peer = http1(port)
            peer.send(start)
            while time.monotonic() < until and peer.send(piece):
                peer.listen()
                if peer.received:
                    break
            peer.listen(0.3)
            received += peer.received
            peer.close()
            time.sleep(0.02)
        return received

    return run


_START = b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: localhost\r\n"
_CHUNKED = _START + b"Transfer-Encoding: chunked\r\n\r\n"
endless_line = endless(b"GET /", b"a" * 16384)
endless_head = endless(_START, b"name: value\r\n" * 1000)
endless_field = endless(_START + b"name: ", b"a" * 16384)
endless_extension = endless(_CHUNKED + b"1;", b"a" * 16384)
endless_trailers = endless(_CHUNKED + b"0\r\n", b"name: value\r\n" * 1000)
tiny_chunks = endless(_CHUNKED, b"1\r\n \r\n" * 3000)


LARGE = 1024
"""Size of the unread answers in KiB."""


def unread_calls(
    window: int, drip: int = 0, room: int | None = None
) -> Callable[[int, float], Counter[str]]:
    """Request large answers on four connections without flow-control windows for them.

    Args:
        window: of each stream.
        drip: updates of one byte for each stream, ten times a second.
        room: bytes of the socket's buffer. With it the connection's window is large, and the
            answers are blocked because the socket is not read.
    """
    message = encode({"key": ["large"], "value": [str(LARGE)]})
    body = f.message(message)

    def run(port: int, until: float) -> Counter[str]:
        announce = ((f.INITIAL_WINDOW_SIZE, window),)
        peers = [Peer(port, http2=True, announce=announce, room=room) for _ in range(4)]
        for peer in peers:
            if room is not None:
                peer.send(f.window_update(0, 1 << 30))
            calls = []
            for _ in range(64):
                id = peer.stream()
                calls.append(f.headers(id, HEAD) + f.data(id, body, end=True))
            peer.send(b"".join(calls))
        deadline = until + AFTER
        while time.monotonic() < deadline:
            if room is None:
                for peer in peers:
                    peer.listen()
                if not drip and all(sum(peer.received.values()) >= 64 for peer in peers):
                    break
            if drip:
                for peer in peers:
                    if not peer.rejected:
                        ids = range(1, peer.next, 2)
                        peer.send(b"".join(f.window_update(n, 1) * drip for n in ids))
                if time.monotonic() > until:
                    break
            time.sleep(0.1)
        return gather(peers, 1.0)

    return run


def unread(port: int, until: float) -> Counter[str]:
    """HTTP/1.1: pipelined requests for large answers on sockets that are not read."""
    peers = [Peer(port, room=4096) for _ in range(48)]
    request_bytes = request(pairs(large=str(4 * LARGE)), target=PATH.encode())
    for peer in peers:
        peer.send(request_bytes * 4)
    time.sleep(max(0.0, until + 2.5 - time.monotonic()))
    return gather(peers)


@contextmanager
def descriptors(wanted: int) -> Iterator[int]:
    """Raise this process's limit of descriptors to ``wanted``, or to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    try:
        yield max(soft, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def idle(count: int, patience: float) -> Callable[[int, float], Counter[str]]:
    """Idle connections, as many as can be opened."""

    def run(port: int, until: float) -> Counter[str]:
        with descriptors(count + 500) as most:
            peers = []
            for _ in range(min(count, most - 500)):
                peers.append(http1(port))
            time.sleep(max(0.0, until - time.monotonic()))
            return gather(peers, patience)

    return run
