from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols.http2 import Http2Connection, Stream
from penstock.protocols.http2.stream import Outbox

from . import peers

INITIAL_WINDOW = 4


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(0, 30)))
def test_an_outbox_returns_its_bytes_in_order(puts: list[bytes], takes: list[int]) -> None:
    outbox = Outbox()
    for piece in puts:
        outbox.put(piece)
    whole = b"".join(puts)
    for most in takes:
        size = outbox.size
        got = b"".join(outbox.take(most))
        assert got == whole[: len(got)]
        assert len(got) == min(most, size)
        assert outbox.size == size - len(got)
        whole = whole[len(got) :]


def test_an_outbox_joins_small_pieces() -> None:
    outbox = Outbox()
    for _ in range(1000):
        outbox.put(b"0123456789")
    assert outbox.size == 10_000
    assert len(outbox._pieces) == 3


def opened(connection: Http2Connection, count: int) -> list[Stream]:
    """Open streams with complete requests."""
    first = connection._last_peer + 2
    events = connection.receive(
        b"".join(peers.headers(first + 2 * n, end=True) for n in range(count))
    )
    return [event.stream for event in events]


def sizes(connection: Http2Connection) -> list[tuple[int, int]]:
    return [(s, len(p)) for kind, _, s, p in peers.frames_of(connection.take_output()) if not kind]


def test_a_stream_without_a_window_does_not_block_others() -> None:
    connection = peers.server(opening=peers.OPENING + peers.settings((INITIAL_WINDOW, 0)))
    one, two = opened(connection, 2)
    connection.reply(one, peers.OK_BLOCK, b"abc")
    connection.receive(peers.window_update(3, 10))
    connection.reply(two, peers.OK_BLOCK, b"def")
    assert sizes(connection) == [(3, 3)]
    assert one.queued == connection.queued == 3
    assert connection.receive(peers.window_update(1, 2) + peers.window_update(1, 1)) == []
    assert sizes(connection) == [(1, 2), (1, 1)]
    assert not connection.streams


def test_a_window_update_is_sent_when_half_of_the_window_is_consumed() -> None:
    connection = peers.server()
    (stream,) = [e.stream for e in connection.receive(peers.headers(1))]
    whole = connection.limits.stream_window
    sent = 0
    updates = 0
    while sent < 3 * whole:
        connection.receive(peers.data(1, bytes(16384)))
        sent += 16384
        connection.consumed(stream, 16384)
        frames = peers.frames_of(connection.take_output())
        updates += len(frames)
        peers.check(connection)
    assert 6 <= updates <= 8


def test_a_window_update_for_a_blocked_peer_is_sent_at_once() -> None:
    connection = peers.server()
    (stream,) = [e.stream for e in connection.receive(peers.headers(1))]
    for _ in range(64):
        connection.receive(peers.data(1, bytes(16384)))
    connection.take_output()
    assert stream.receive_window == 0
    connection.consumed(stream, 10)
    assert peers.frames_of(connection.take_output()) == [(8, 0, 1, b"\0\0\0\x0a")]


def test_consumed_bytes_are_counted_once() -> None:
    connection = peers.server()
    (stream,) = [e.stream for e in connection.receive(peers.headers(1))]
    connection.receive(peers.data(1, b"abc"))
    connection.consumed(stream, 1000)
    connection.consumed(stream, 1000)
    peers.check(connection)
    connection.reset(stream, 8)
    connection.consumed(stream, 1000)
    peers.check(connection)
    assert connection._owed == 3
