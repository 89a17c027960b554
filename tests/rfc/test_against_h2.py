"""Random valid conversations with the package h2 as the peer: each side receives what the other
sent."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.protocols.http2 import Http2Connection, Http2Limits, Role, StreamLimit, events
from tests.kit import frames as wire
from tests.protocols.http2.peers import apart

OK = wire.OK
sizes = st.one_of(
    st.integers(0, 300), st.sampled_from([0, 1, 16383, 16384, 16385, 40000, 65535, 65536, 200_000])
)
fields = st.lists(
    st.tuples(
        st.sampled_from([b"x-a", b"user-agent", b"grpc-timeout", b"x-long"]),
        st.sampled_from([b"", b"1", b"100m", b"v" * 700]),
    ),
    max_size=5,
)


def content(stream: int, size: int) -> bytes:
    """Octets that differ by stream and position."""
    return (b"%d." % stream * (size // 2 + 1))[:size]


class Exchange:
    """The data that each end sent on one stream, and what the other end received."""

    def __init__(self) -> None:
        self.sent: dict[str, list[object]] = {"core": [], "h2": []}
        self.fields_received: dict[str, list[object]] = {"core": [], "h2": []}
        self.body = {"core": b"", "h2": b""}
        self.body_received = {"core": bytearray(), "h2": bytearray()}
        self.ended: set[str] = set()  # the ends that have ended their side
        self.end_received: set[str] = set()
        self.reset: str | None = None  # the end that reset the stream
        self.stream = None  # the core's stream


class Conversation(RuleBasedStateMachine):
    """The core in one role and h2 in the other; the bytes between them are split at any place."""

    role: Role

    @initialize(
        window=st.sampled_from([65535, 70_000, 1 << 20]),
        room=st.sampled_from([65535, 100_000, 4 << 20]),
        frame=st.sampled_from([16384, 17000]),
        table=st.sampled_from([0, 100, 4096]),
    )
    def begin(self, window: int, room: int, frame: int, table: int) -> None:
        self.core = Http2Connection(
            self.role,
            Http2Limits(
                stream_window=window,
                connection_window=room,
                max_frame_size=frame,
                header_table_size=table,
                pings=10_000,
                settings=10_000,
                empty_frames=10_000,
                resets=10_000,
            ),
        )
        config = h2.config.H2Configuration(
            client_side=self.role is Role.SERVER, header_encoding=None
        )
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()
        self.exchanges: dict[int, Exchange] = {}
        self.unread: list[tuple[int, int]] = []  # h2's: stream, octets
        self.uncounted: list[tuple[object, int]] = []  # the core's
        self.next = 1
        self.to_core, self.to_h2 = b"", b""
        self.half = b""  # the beginning of a frame for h2
        self.preface = len(wire.PREFACE) if self.role is Role.CLIENT else 0
        self.shrunk = False
        self.pings: list[bytes] = []
        self.ponged: list[bytes] = []
        self.carry()

    # The transport

    def carry(self, cut: int = 1 << 30) -> None:
        """Moves the pending output of both ends, ``cut`` octets at a time, until there is none."""
        while True:
            self.to_core += self.h2.data_to_send()
            self.to_h2 += self.core.take_output()
            if not self.to_core and not self.to_h2:
                return
            piece, self.to_core = self.to_core[:cut], self.to_core[cut:]
            if piece:
                self.core_reads(piece)
            piece, self.to_h2 = self.to_h2[:cut], self.to_h2[cut:]
            if piece:
                self.h2_reads(piece)

    def core_reads(self, piece: bytes) -> None:
        for event in apart(self.core.receive(piece)):
            if isinstance(event, events.PingAcknowledged):
                self.ponged.append(event.payload)
                continue
            assert not isinstance(event, events.ConnectionFailed), (event.code, event.text)
            number = event.stream.id
            mine = self.exchanges[number]
            if isinstance(event, events.HeadReceived):
                mine.stream = event.stream
                mine.fields_received["core"].append(list(event.head.headers))
                if event.ended:
                    mine.end_received.add("core")
            elif isinstance(event, events.DataReceived):
                mine.body_received["core"] += event.data
                self.uncounted.append((event.stream, event.counted))
                if event.ended:
                    mine.end_received.add("core")
            elif isinstance(event, events.TrailersReceived):
                mine.fields_received["core"].append(list(event.headers))
                mine.end_received.add("core")
            elif isinstance(event, events.StreamReset):
                assert event.by_peer, event.text
                assert mine.reset == "h2"

    def h2_reads(self, piece: bytes) -> None:
        """Frame by frame: h2 accepts larger frames only from the read after the acknowledgement
        on."""
        self.half += piece
        if len(self.half) >= self.preface:
            self.h2.receive_data(self.half[: self.preface])
            self.half, self.preface = self.half[self.preface :], 0
        while not self.preface and len(self.half) >= 9:
            size = 9 + int.from_bytes(self.half[:3], "big")
            if len(self.half) < size:
                return
            one, self.half = self.half[:size], self.half[size:]
            self.h2_reads_frame(one)

    def h2_reads_frame(self, piece: bytes) -> None:
        for event in self.h2.receive_data(piece):
            number = getattr(event, "stream_id", None)
            mine = self.exchanges.get(number) if number else None
            if isinstance(event, (h2.events.RequestReceived, h2.events.ResponseReceived)):
                assert mine
                plain = [(bytes(k), bytes(v)) for k, v in event.headers if not k.startswith(b":")]
                mine.fields_received["h2"].append(plain)
            elif isinstance(event, h2.events.DataReceived):
                assert mine
                mine.body_received["h2"] += event.data
                self.unread.append((number, event.flow_controlled_length))
            elif isinstance(event, h2.events.TrailersReceived):
                assert mine
                mine.fields_received["h2"].append([(bytes(k), bytes(v)) for k, v in event.headers])
            elif isinstance(event, h2.events.StreamEnded):
                assert mine
                mine.end_received.add("h2")
            elif isinstance(event, h2.events.StreamReset):
                assert mine
                assert mine.reset == "core"
            else:
                assert not isinstance(event, h2.events.ConnectionTerminated)

    @rule(cut=st.sampled_from([1, 7, 9, 100, 5000, 1 << 30]))
    def deliver(self, cut: int) -> None:
        if cut < 100 and len(self.to_core) + len(self.to_h2) > 20_000:
            cut = 1000  # single octets of a large body are slow and test nothing new
        self.carry(cut)

    # Opening

    @rule(more=fields, end=st.booleans())
    def open(self, more: list[wire.Field], end: bool) -> None:
        head = [*wire.POST, *more]
        exchange = Exchange()
        if self.role is Role.SERVER:
            # h2 keeps to the settings that it has received; newer ones may be on their way.
            if self.h2.open_outbound_streams >= 100:
                return
            self.h2.send_headers(self.next, head, end_stream=end)
            opener = "h2"
        else:
            try:
                stream = self.core.open(wire.block(head), end=end)
            except StreamLimit:
                assert len(self.core.streams) >= 100
                return
            assert stream.id == self.next
            exchange.stream = stream
            opener = "core"
        self.exchanges[self.next] = exchange
        self.next += 2
        exchange.sent[opener].append(more)
        if end:
            exchange.ended.add(opener)

    # Sending; the number selects one of the possible streams

    def pick(self, end: str, number: int) -> int | None:
        """A stream on which this end may send, after its head."""
        streams = [
            stream
            for stream, one in self.exchanges.items()
            if one.reset is None and end not in one.ended and one.sent[end]
        ]
        return streams[number % len(streams)] if streams else None

    @rule(number=st.integers(0, 50), more=fields, end=st.booleans())
    def answer_head(self, number: int, more: list[wire.Field], end: bool) -> None:
        end_of = "core" if self.role is Role.SERVER else "h2"
        streams = [
            stream
            for stream, one in self.exchanges.items()
            if one.reset is None and one.fields_received[end_of] and not one.sent[end_of]
        ]
        if not streams:
            return
        stream = streams[number % len(streams)]
        one = self.exchanges[stream]
        head = [*OK, *more]
        if end_of == "core":
            self.core.send_head(one.stream, wire.block(head), end=end)
        else:
            self.h2.send_headers(stream, head, end_stream=end)
        one.sent[end_of].append(more)
        if end:
            one.ended.add(end_of)

    @precondition(lambda self: self.role is Role.SERVER)
    @rule(number=st.integers(0, 50), more=fields, size=sizes, trailers=st.none() | fields)
    def reply(
        self, number: int, more: list[wire.Field], size: int, trailers: list[wire.Field] | None
    ) -> None:
        streams = [
            stream
            for stream, one in self.exchanges.items()
            if one.reset is None and one.fields_received["core"] and not one.sent["core"]
        ]
        if not streams:
            return
        stream = streams[number % len(streams)]
        one = self.exchanges[stream]
        body = content(stream, size)
        block = None if trailers is None else wire.block(trailers)
        self.core.reply(one.stream, wire.block([*OK, *more]), body, block)
        one.sent["core"].append(more)
        one.body["core"] += body
        if trailers is not None:
            one.sent["core"].append(trailers)
        one.ended.add("core")

    @rule(number=st.integers(0, 50), size=sizes, end=st.booleans())
    def core_sends(self, number: int, size: int, end: bool) -> None:
        stream = self.pick("core", number)
        if stream is None:
            return
        one = self.exchanges[stream]
        if self.shrunk:
            size = max(size, 1)  # h2 accepts no empty frame while its window is negative
        piece = content(stream, size)
        self.core.send_data(one.stream, piece, end=end)
        one.body["core"] += piece
        if end:
            one.ended.add("core")

    @rule(
        number=st.integers(0, 50),
        size=sizes,
        end=st.booleans(),
        pad=st.sampled_from([None, None, 0, 1, 255]),
    )
    def h2_sends(self, number: int, size: int, end: bool, pad: int | None) -> None:
        stream = self.pick("h2", number)
        if stream is None:
            return
        one = self.exchanges[stream]
        extra = 0 if pad is None else pad + 1
        room = self.h2.local_flow_control_window(stream) - extra
        most = self.h2.max_outbound_frame_size - extra
        if room < 0:
            return
        piece = content(stream, min(size, room, most))
        self.h2.send_data(stream, piece, end_stream=end, pad_length=pad)
        one.body["h2"] += piece
        if end:
            one.ended.add("h2")

    @rule(number=st.integers(0, 50), more=fields, end=st.sampled_from(["core", "h2"]))
    def trailers(self, number: int, more: list[wire.Field], end: str) -> None:
        stream = self.pick(end, number)
        if stream is None or not more:
            return
        one = self.exchanges[stream]
        if end == "core":
            self.core.send_trailers(one.stream, wire.block(more))
        else:
            self.h2.send_headers(stream, more, end_stream=True)
        one.sent[end].append(more)
        one.ended.add(end)

    # Resets

    @rule(number=st.integers(0, 50), end=st.sampled_from(["core", "h2"]))
    def reset(self, number: int, end: str) -> None:
        self.carry()  # so that both ends agree whether the stream is open
        streams = [
            stream
            for stream, one in self.exchanges.items()
            if one.reset is None and one.stream is not None and len(one.end_received) < 2
        ]
        if not streams:
            return
        stream = streams[number % len(streams)]
        one = self.exchanges[stream]
        if end == "core":
            self.core.reset(one.stream, wire.CANCEL)
        else:
            self.h2.reset_stream(stream, wire.CANCEL)
        one.reset = end
        self.carry()

    # Windows and settings

    @rule(share=st.integers(1, 3))
    def core_has_read(self, share: int) -> None:
        now, self.uncounted = self.uncounted[::share], []
        for stream, count in now:
            self.core.consumed(stream, count)

    @rule()
    def h2_has_read(self) -> None:
        now, self.unread = self.unread, []
        for stream, count in now:
            if count:
                self.h2.acknowledge_received_data(count, stream)

    @rule(
        window=st.sampled_from([0, 1, 100, 65535, 100_000]),
        frame=st.sampled_from([16384, 16400, 50_000]),
        table=st.sampled_from([0, 64, 4096, 10_000]),
    )
    def h2_changes_settings(self, window: int, frame: int, table: int) -> None:
        self.shrunk = self.shrunk or window < 65535
        codes = h2.settings.SettingCodes
        self.h2.update_settings(
            {
                codes.INITIAL_WINDOW_SIZE: window,
                codes.MAX_FRAME_SIZE: frame,
                codes.HEADER_TABLE_SIZE: table,
            }
        )
        # h2 counts both ends' windows only once its change has been acknowledged.
        self.carry()

    @rule(by_core=st.booleans())
    def ping(self, by_core: bool) -> None:
        payload = b"%08d" % len(self.pings)
        if by_core:
            self.core.ping(payload)
            self.pings.append(payload)
        else:
            self.h2.ping(payload)

    @rule()
    def refill(self) -> None:
        self.core.refill()

    # Invariants

    @invariant()
    def received_data_was_sent(self) -> None:
        for one in getattr(self, "exchanges", {}).values():
            for receiver, sender in (("core", "h2"), ("h2", "core")):
                assert one.body[sender].startswith(one.body_received[receiver])
                assert (
                    one.sent[sender][: len(one.fields_received[receiver])]
                    == one.fields_received[receiver]
                )

    def teardown(self) -> None:
        if not hasattr(self, "exchanges"):
            return
        self.carry()
        codes = h2.settings.SettingCodes
        self.h2.update_settings({codes.INITIAL_WINDOW_SIZE: 1 << 20})
        for _ in range(10_000):
            self.carry()
            if not self.unread and not self.uncounted:
                break
            self.h2_has_read()
            self.core_has_read(1)
        self.carry()
        for one in self.exchanges.values():
            if one.reset is None:
                for receiver, sender in (("core", "h2"), ("h2", "core")):
                    assert one.body[sender] == bytes(one.body_received[receiver])
                    assert one.sent[sender] == one.fields_received[receiver]
                    assert (sender in one.ended) == (receiver in one.end_received)
        living = [one for one in self.exchanges.values() if not one.reset and len(one.ended) < 2]
        assert len(self.core.streams) == len(living)
        assert self.ponged == self.pings
        assert self.core.queued == 0


class WithOurServer(Conversation):
    role = Role.SERVER


class WithOurClient(Conversation):
    role = Role.CLIENT


LONG = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_our_server_and_h2_s_client_agree() -> None:
    run_state_machine_as_test(WithOurServer, settings=LONG)


def test_our_client_and_h2_s_server_agree() -> None:
    run_state_machine_as_test(WithOurClient, settings=LONG)
