"""Floods over HTTP/2: many frames that cost their sender little.

An attacker has one connection at a time. When it is rejected it reconnects after a delay.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from tests.attacks.peer import HEAD, Peer
from tests.kit import frames as f
from tests.kit.pipeline import encode

RECONNECT_DELAY = 0.1
"""Seconds between two connections of one attacker."""

BODY = f.message(encode({"key": ["x"], "value": ["1"]}))

Flood = Callable[[int, float], Counter[str]]


def flood(make: Callable[[Peer], bytes]) -> Flood:
    """An attacker that repeatedly sends some KiB of frames."""

    def run(port: int, until: float) -> Counter[str]:
        received: Counter[str] = Counter()
        while time.monotonic() < until:
            peer = Peer(port, http2=True)
            while time.monotonic() < until and peer.send(make(peer)):
                peer.listen()
                if peer.rejected:
                    break
            peer.listen(0.3)
            received += peer.received
            peer.close()
            time.sleep(RECONNECT_DELAY)
        return received

    return run


def rapid_reset(peer: Peer) -> bytes:
    """Calls that are cancelled at once; every other one is complete."""
    frames = []
    for n in range(50):
        id = peer.stream()
        body = f.data(id, BODY, end=True) if n % 2 else b""
        frames.append(f.headers(id, HEAD) + body + f.reset(id))
    return b"".join(frames)


def made_reset(peer: Peer) -> bytes:
    """Complete calls, each followed by an error for which the server must reset it."""
    frames = []
    for n in range(50):
        id = peer.stream()
        frames.append(f.headers(id, HEAD))
        if n % 3 == 1:
            frames.append(f.data(id, BODY, end=True))
        frames.append(f.priority(id, id) if n % 3 == 2 else f.window_update(id, 0))
    return b"".join(frames)


def continuations(size: int) -> Callable[[Peer], bytes]:
    """A header block that never ends, in fragments of ``size`` bytes."""

    def make(peer: Peer) -> bytes:
        # A field that is not indexed, with a long value, however it is split.
        piece = b"\x00\x01a\x7f\x81\x7f" + b"b" * 16384
        start = f.headers(peer.stream(), HEAD, whole=False) if peer.next == 1 else b""
        more = f.continuation(peer.next - 2, piece[:size], whole=False)
        return start + more * max(1, 16384 // (size + 9))

    return make


def of_one_call(repeated: bytes, first: bytes = b"") -> Callable[[Peer], bytes]:
    """One call, and then its frames without end."""

    def make(peer: Peer) -> bytes:
        start = f.headers(peer.stream(), HEAD) + first if peer.next == 1 else b""
        return start + repeated

    return make


def repeat(repeated: bytes) -> Callable[[Peer], bytes]:
    """The same bytes without end."""
    return lambda peer: repeated


def empty_headers(peer: Peer) -> bytes:
    """Requests and trailers without header fields."""
    return b"".join(f.headers(peer.stream(), b"", end=True) for _ in range(200))


def bomb(peer: Peer) -> bytes:
    """One long field in the table, and heads that refer to it many times, with one byte each."""
    start = f.literal(b"bomb", b"b" * 3900, kind=0x40) if peer.next == 1 else b""
    frames = []
    for _ in range(4):
        block = HEAD + start + b"\xbe" * 16000
        start = b""
        frames.append(f.headers(peer.stream(), block[:16384], end=True))
    return b"".join(frames)


def many_settings(peer: Peer) -> bytes:
    """SETTINGS that have to be acknowledged and change the windows of all streams."""
    start = b""
    if peer.next == 1:
        start = b"".join(f.headers(peer.stream(), HEAD) for _ in range(100))
    return start + (f.settings((4, 1)) + f.settings((4, 1 << 20))) * 200


# DATA without content, and of one byte each, which costs as much as a large one.
empty_data = of_one_call(f.data(1) * 500)
tiny_data = of_one_call(f.data(1, b"x") * 1000, f.data(1, b"\0\3\xe8\0\0"))
pings = repeat(f.ping(bytes(8)) * 500)
window_updates = repeat(f.window_update(0, 1) * 500)
priorities = repeat(f.priority(9) * 500)
unknown = repeat(f.frame(0xBB, 0, 0) * 500)
