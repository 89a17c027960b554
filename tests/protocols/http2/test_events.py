from __future__ import annotations

from penstock.protocols.http2.events import with_data_joined

from . import peers


def test_data_in_tiny_pieces_is_joined_for_each_stream() -> None:
    connection = peers.server()
    tiny = [peers.data(1 + 2 * (n % 2), b"%d" % (n % 10)) for n in range(1000)]
    frames = [peers.headers(1), peers.headers(3), *tiny, peers.data(1, b"end", end=True)]
    events = connection.receive(b"".join(frames))
    assert len(events) == 1003
    joined = with_data_joined(events)
    assert [peers.value_of(event)[0] for event in joined] == ["head", "head", "data", "data"]
    assert peers.merged(joined)[2:] == [
        ("data", 1, b"02468" * 100 + b"end", True),
        ("data", 3, b"13579" * 100, False),
    ]
    assert joined[2].counted == 503
    assert joined[3].counted == 500


def test_the_order_of_data_and_other_events_of_a_stream_is_kept() -> None:
    connection = peers.server()
    frames = [
        peers.headers(1),
        peers.headers(3),
        peers.data(1, b"a"),
        peers.data(1, b"b"),
        peers.rst(1),
        peers.data(3, b"c"),
        peers.headers(5, end=True),
        peers.data(3, b"d", end=True),
    ]
    joined = with_data_joined(connection.receive(b"".join(frames)))
    assert [peers.value_of(event)[0] for event in joined] == [
        *("head", "head", "data", "reset", "data", "head")
    ]
    assert peers.merged(joined)[2] == ("data", 1, b"ab", False)
    assert peers.merged(joined)[4] == ("data", 3, b"cd", True)


def test_few_pieces_are_not_joined() -> None:
    connection = peers.server()
    events = connection.receive(peers.headers(1) + peers.data(1, b"abc", end=True))
    assert with_data_joined(events) == events
