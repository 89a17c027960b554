from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocols.http2 import (
    PREFACE,
    DataReceived,
    ErrorCode,
    HeadReceived,
    HeadTooLarge,
    Http2Connection,
    Http2Limits,
    Role,
    StreamLimit,
    StreamReset,
    TrailersReceived,
    encode_block,
)

from . import peers


def pair(
    of_server: Http2Limits | None = None, of_client: Http2Limits | None = None
) -> tuple[Http2Connection, Http2Connection]:
    """A client and a server that have shaken hands."""
    client = Http2Connection(Role.CLIENT, of_client or Http2Limits())
    server = Http2Connection(Role.SERVER, of_server or Http2Limits())
    assert peers.exchange(client, server) == ([], [])
    return client, server


def test_both_roles_talk_to_each_other() -> None:
    client, server = pair()
    asked = client.open(peers.POST_BLOCK)
    client.send_data(asked, b"hello", end=True)
    _, got = peers.exchange(client, server)
    assert peers.merged(got) == [("head", 1, "POST", (), False), ("data", 1, b"hello", True)]
    server.reply(got[0].stream, peers.OK_BLOCK, b"world", peers.TRAILER_BLOCK)
    answered, _ = peers.exchange(client, server)
    assert peers.merged(answered) == [
        ("head", 1, 200, (), False),
        ("data", 1, b"world", False),
        ("trailers", 1, ((b"grpc-status", b"0"),)),
    ]
    assert not client.streams
    assert not server.streams


class Talk:
    """Random calls on both sides, and what each side should have heard."""

    def __init__(self, window: int) -> None:
        narrow = Http2Limits(stream_window=window, connection_window=100_000, max_streams=20)
        self.client, self.server = pair(narrow, narrow)
        self.sent: dict[tuple[str, int], bytes] = {}
        self.heard: dict[tuple[str, int], bytes] = {}
        self.ended: set[tuple[str, int]] = set()
        self.cut: set[int] = set()

    def carry(self, consume: bool) -> None:
        for side, events in zip(
            ("server", "client"), peers.exchange(self.client, self.server), strict=True
        ):
            receiver = self.client if side == "server" else self.server
            for event in peers.apart(events):
                key = side, event.stream.id
                if isinstance(event, HeadReceived):
                    self.heard[key] = b""
                elif isinstance(event, DataReceived):
                    self.heard[key] += event.data
                    if consume:
                        receiver.consumed(event.stream, event.counted)
                    else:
                        event.stream.context = (event.stream.context or 0) + event.counted
                elif isinstance(event, StreamReset):
                    self.cut.add(event.stream.id)
                if getattr(event, "ended", isinstance(event, TrailersReceived)):
                    self.ended.add(key)
        peers.check(self.client)
        peers.check(self.server)
        assert not self.client.failed
        assert not self.server.failed

    def consume_all(self) -> None:
        for connection in (self.client, self.server):
            for stream in connection.streams.values():
                connection.consumed(stream, stream.context or 0)
                stream.context = None

    def step(self, what: str, number: int, size: int, end: bool) -> None:
        if what == "open":
            try:
                stream = self.client.open(peers.POST_BLOCK, end=end)
            except StreamLimit:
                return
            self.sent["client", stream.id] = b""
            return
        side = "client" if what.startswith("client") else "server"
        connection = self.client if side == "client" else self.server
        if not connection.streams:
            return
        stream = list(connection.streams.values())[number % len(connection.streams)]
        key = side, stream.id
        outbox = stream.outbox
        queued_end = outbox is not None and (outbox.end or outbox.trailers is not None)
        if stream.local_ended or queued_end:
            return
        if what.endswith("reset"):
            connection.reset(stream, ErrorCode.CANCEL)
            self.cut.add(stream.id)
        elif what == "server reply":
            if key not in self.sent:
                self.sent[key] = bytes(size)
                trailers = peers.TRAILER_BLOCK if end else None
                connection.reply(stream, peers.OK_BLOCK, bytes(size), trailers)
        else:
            if side == "server" and key not in self.sent:
                connection.send_head(stream, peers.OK_BLOCK)
            self.sent[key] = self.sent.get(key, b"") + bytes(size)
            connection.send_data(stream, bytes(size), end=end)


STEPS = st.tuples(
    st.sampled_from(
        [
            *("open", "open", "carry", "carry", "consume", "client data", "server data"),
            *("server reply", "client reset", "server reset"),
        ]
    ),
    st.integers(0, 30),
    st.one_of(st.integers(0, 200), st.integers(0, 60_000)),
    st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([1000, 65535, 1 << 20]), st.lists(STEPS, max_size=40))
def test_any_conversation_arrives_as_it_was_sent(
    window: int, steps: list[tuple[str, int, int, bool]]
) -> None:
    talk = Talk(window)
    for what, number, size, end in steps:
        if what == "carry":
            talk.carry(consume=end)
        elif what == "consume":
            talk.consume_all()
        else:
            talk.step(what, number, size, end)
    for connection in (talk.client, talk.server):
        for stream in list(connection.streams.values()):
            if not stream.local_ended:
                if connection is talk.server and ("server", stream.id) not in talk.sent:
                    connection.send_head(stream, peers.OK_BLOCK)
                    talk.sent["server", stream.id] = b""
                connection.send_trailers(stream, peers.TRAILER_BLOCK)
    for _ in range(400):
        talk.consume_all()
        talk.carry(consume=True)
        if not talk.client.queued and not talk.server.queued:
            break
    for key, sent in talk.sent.items():
        if key[1] not in talk.cut:
            assert talk.heard[key] == sent
            assert key in talk.ended or key[0] == "server"
        elif key in talk.heard:
            assert sent.startswith(talk.heard[key])


def test_nothing_grows_with_the_streams_that_have_been() -> None:
    connection = peers.server(Http2Limits(resets=10**9))
    for n in range(4000):
        id = 4 * n + 1  # every other identifier is skipped
        connection.receive(peers.headers(id, end=n % 2 == 0))
        stream = connection.streams[id]
        if n % 3:
            connection.reply(stream, peers.OK_BLOCK, b"%d" % n)
        connection.reset(stream, 0)
        connection.take_output()
    assert not connection.streams
    assert len(connection._reset_lately) <= 1024
    assert len(connection._gaps) <= 16
    assert not connection._ready


def test_frames_of_a_stream_that_we_reset_are_passed_over_but_counted() -> None:
    connection = peers.server()
    connection.receive(peers.headers(1))
    connection.reset(connection.streams[1], ErrorCode.CANCEL)
    connection.take_output()
    assert connection.receive(peers.data(1, b"abc") + peers.window_update(1, 5)) == []
    assert connection.receive(peers.headers(1, peers.TRAILER_BLOCK, end=True)) == []
    peers.check(connection)
    assert connection._owed == 3
    (*_, failed) = connection.receive(peers.data(1, b"x"))
    assert peers.value_of(failed) == ("failed", ErrorCode.STREAM_CLOSED)


def test_a_stream_that_ended_in_order_takes_no_more_data() -> None:
    connection = peers.server()
    connection.receive(peers.headers(1, end=True))
    connection.reply(connection.streams[1], peers.OK_BLOCK, b"x")
    (failed,) = connection.receive(peers.data(1, b"x"))
    assert peers.value_of(failed) == ("failed", ErrorCode.STREAM_CLOSED)


def test_late_calls_go_nowhere() -> None:
    connection = peers.server()
    connection.receive(peers.headers(1, end=True) + peers.rst(1))
    stream = peers.server().receive(peers.headers(1))[0].stream
    for late in (connection.receive(peers.headers(3) + peers.rst(3))[0].stream, stream):
        late.state |= 3
        connection.reply(late, peers.OK_BLOCK, b"x", peers.TRAILER_BLOCK)
        connection.send_head(late, peers.OK_BLOCK)
        connection.send_data(late, b"x", end=True)
        connection.send_trailers(late, peers.TRAILER_BLOCK)
        connection.consumed(late, 5)
        connection.reset(late, 8)
    assert not connection.has_output
    assert connection.take_output() == b""


def test_a_failed_connection_says_so_once_and_ends_its_streams() -> None:
    connection = peers.server()
    connection.receive(peers.headers(1) + peers.headers(3))
    events = connection.receive(peers.data(0, b"x") + peers.headers(5))
    assert peers.merged(events) == [
        ("reset", 1, 1, False),
        ("reset", 3, 1, False),
        ("failed", ErrorCode.PROTOCOL_ERROR),
    ]
    kind, _, stream, payload = peers.frames_of(connection.take_output())[-1]
    assert (kind, stream, payload[:8]) == (7, 0, b"\0\0\0\x03\0\0\0\x01")
    assert connection.receive(peers.headers(7)) == []
    connection.ping(bytes(8))
    connection.go_away(final=True)
    assert not connection.has_output
    assert connection.failed
    assert connection.closing


def test_going_away_takes_two_steps() -> None:
    connection = peers.server()
    connection.go_away(final=False)
    assert [peers.value_of(e)[0] for e in connection.receive(peers.headers(1))] == ["head"]
    connection.go_away(final=True)
    farewells = [payload for *_, payload in peers.frames_of(connection.take_output())]
    assert farewells == [b"\x7f\xff\xff\xff" + bytes(4), b"\0\0\0\x01" + bytes(4)]
    late = peers.headers(3, peers.POST_BLOCK) + peers.data(3, b"late", end=True)
    assert connection.receive(late) == []
    connection.reply(connection.streams[1], peers.OK_BLOCK, b"x")
    events = connection.receive(peers.data(1, b"abc", end=True))
    assert peers.merged(events) == [("data", 1, b"abc", True)]
    assert not connection.streams
    peers.check(connection)


def test_a_client_retries_what_the_server_never_looked_at() -> None:
    client, server = pair()
    one, two = (client.open(peers.GET_BLOCK, end=True) for _ in range(2))
    output = client.take_output()
    server.receive(output[: len(output) // 2])
    server.go_away(final=True)
    events, _ = peers.exchange(client, server)
    assert peers.merged(events) == [("goaway", 1, 0, b""), ("reset", 3, 7, True)]
    assert not one.closed
    assert two.closed
    with pytest.raises(StreamLimit):
        client.open(peers.GET_BLOCK)


def test_the_limit_of_streams_is_kept_and_freed() -> None:
    client, server = pair(Http2Limits(max_streams=2))
    streams = [client.open(peers.GET_BLOCK, end=True) for _ in range(2)]
    with pytest.raises(StreamLimit):
        client.open(peers.GET_BLOCK)
    client.reset(streams[0], ErrorCode.CANCEL)
    client.open(peers.GET_BLOCK, end=True)
    peers.exchange(client, server)
    assert sorted(server.streams) == [3, 5]


def test_a_head_request_may_announce_a_body_that_never_comes() -> None:
    client, server = pair()
    head = encode_block([(b":method", b"HEAD"), *peers.GET[1:]])
    client.open(head, end=True, bodiless=True)
    client.open(peers.GET_BLOCK, end=True)
    peers.exchange(client, server)
    long = encode_block([(b":status", b"200"), (b"content-length", b"5")])
    for stream in list(server.streams.values()):
        server.send_head(stream, long, end=True)
    events, _ = peers.exchange(client, server)
    kinds = [peers.value_of(event)[:2] for event in events]
    assert kinds == [("head", 1), ("reset", 3)]


def test_a_table_size_below_ours_is_acknowledged_in_the_next_block() -> None:
    connection = peers.server(opening=PREFACE + peers.settings((1, 0)))
    connection.receive(peers.headers(1, end=True) + peers.headers(3, end=True))
    for stream in list(connection.streams.values()):
        connection.reply(stream, peers.OK_BLOCK, b"x")
    blocks = [p for kind, *_, p in peers.frames_of(connection.take_output()) if kind == 1]
    assert blocks == [b"\x20" + peers.OK_BLOCK, peers.OK_BLOCK]


@pytest.mark.parametrize("size", [0, 1, 60, 5000, 16384, 16385, 60_000])
@pytest.mark.parametrize("trailers", [None, peers.TRAILER_BLOCK])
def test_a_reply_says_the_same_whichever_way_it_is_packed(
    size: int, trailers: bytes | None
) -> None:
    connection = peers.server()
    connection.receive(peers.headers(1, end=True) + peers.headers(3, end=True))
    connection.receive(peers.window_update(0, 100_000))
    body = bytes(n % 251 for n in range(size))
    one, two = connection.streams.values()
    connection.reply(one, peers.OK_BLOCK, body, trailers)
    fast = peers.frames_of(connection.take_output())
    connection.send_head(two, peers.OK_BLOCK, end=not size and trailers is None)
    if size:
        connection.send_data(two, body, end=trailers is None)
    if trailers is not None:
        connection.send_trailers(two, trailers)
    slow = peers.frames_of(connection.take_output())
    assert [(k, f, p) for k, f, _, p in fast] == [(k, f, p) for k, f, _, p in slow]
    assert b"".join(p for kind, *_, p in fast if not kind) == body
    assert not connection.streams


def test_a_long_head_is_split_into_continuations() -> None:
    connection = peers.server()
    connection.receive(peers.headers(1, end=True))
    block = encode_block([(b":status", b"200"), (b"x", b"v" * 40_000)])
    connection.reply(connection.streams[1], block, b"x")
    frames = peers.frames_of(connection.take_output())
    assert [(kind, flags) for kind, flags, *_ in frames] == [(1, 0), (9, 0), (9, 4), (0, 1)]
    assert b"".join(payload for kind, *_, payload in frames[:3]) == block


def test_no_stream_follows_the_last_identifier() -> None:
    connection = peers.server()
    last = 2**31 - 1
    opened = [peers.headers(id, end=True) for id in (last - 2, last, last + 2)]
    kinds = [peers.value_of(event)[0] for event in connection.receive(b"".join(opened))]
    assert kinds == ["head", "head", "reset", "reset", "failed"]


def test_a_large_head_is_told_with_what_was_kept_of_it() -> None:
    connection = peers.server()
    block = encode_block([*peers.GET, (b"x", b"v" * 9000), (b"y", b"z")])
    (event,) = connection.receive(peers.headers(1, block, end=True))
    assert isinstance(event, HeadTooLarge)
    assert event.fields == (*peers.GET, (b"y", b"z"))
    connection.reply(event.stream, peers.OK_BLOCK, b"")
    assert event.stream.closed
    peers.check(connection)


def test_the_rest_of_a_block_is_seen_to_be_awaited() -> None:
    connection = peers.server()
    connection.receive(peers.frame(1, 0, 1, peers.POST_BLOCK[:3]))
    awaited = connection.unfinished
    assert awaited is not None
    rest = peers.frame(9, 4, 1, peers.POST_BLOCK[3:])
    connection.receive(rest[:11])
    assert connection.unfinished is awaited
    connection.receive(rest[11:])
    assert connection.unfinished is None
    assert list(connection.streams) == [1]


def test_the_rest_of_a_frame_is_seen_to_be_awaited() -> None:
    connection = peers.server()
    one = peers.headers(1)
    connection.receive(one[:5])
    first = connection.unfinished
    assert first is not None
    connection.receive(one[5:12])
    connection.receive(one[12:-1])
    second = connection.unfinished
    assert second is not None
    connection.receive(one[-1:] + peers.headers(3)[:12])
    assert connection.unfinished is not None
    assert connection.unfinished is not second, "another frame"


def test_the_rest_of_data_is_not_awaited_because_it_is_passed_on() -> None:
    connection = peers.server()
    connection.receive(peers.headers(1) + peers.data(1, b"abc")[:-1])
    assert connection.unfinished is None


def test_the_peer_s_first_frame_is_seen_to_be_awaited() -> None:
    connection = Http2Connection(Role.SERVER)
    assert connection.unfinished is not None
    connection.receive(PREFACE)
    assert connection.unfinished is not None
    connection.receive(peers.frame(4, 0, 0, b""))
    assert connection.unfinished is None


def test_a_window_smaller_than_the_default_holds_from_the_acknowledgement_on() -> None:
    connection = peers.server(Http2Limits(stream_window=100), opening=PREFACE + peers.settings())
    connection.receive(peers.headers(1))
    assert peers.merged(connection.receive(peers.data(1, bytes(150))))[0][0] == "data"
    connection.receive(peers.SETTINGS_ACK)
    (reset,) = connection.receive(peers.data(1, b"x"))
    assert peers.value_of(reset) == ("reset", 1, ErrorCode.FLOW_CONTROL_ERROR, False)
    peers.check(connection)
