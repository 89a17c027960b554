import struct

import hpack
import pytest

from benchmarks.load import Plan, Report
from benchmarks.load_grpc import (
    INFERENCE,
    BadAnswer,
    HeaderMemory,
    check_message,
    grpc_message,
    header_block,
    load_grpc,
)
from penstock.protocols.pb import Response
from tests.benchmarks.fake_servers import FakeGrpc, serving

MESSAGE = Response(key=["x"], value=["hello"]).SerializeToString()


async def loaded(
    misbehave: str = "",
    *,
    message: bytes = MESSAGE,
    expected: bytes | None = MESSAGE,
    connections: int = 2,
    streams: int = 4,
    count: int = 60,
    window: int = 65_535,
    max_frame: int = 16_384,
    seconds: float = 5.0,
) -> tuple[Report, list[FakeGrpc]]:
    servers: list[FakeGrpc] = []

    def connect() -> FakeGrpc:
        servers.append(FakeGrpc(misbehave, window, max_frame))
        return servers[-1]

    async with serving(connect) as port:
        report = await load_grpc(
            port=port,
            message=message,
            expected=expected,
            connections=connections,
            streams=streams,
            plan=Plan(seconds=seconds, warmup_seconds=0.0, count=count),
            patience=seconds,
        )
    return report, servers


async def test_every_right_answer_is_counted_once() -> None:
    report, servers = await loaded()
    assert report.fault_count == 0
    assert report.requests == 60
    assert len(servers) == 2
    # Beside those counted: some before the window opened, and those in flight when it closed.
    assert 61 <= sum(server.calls for server in servers) <= 100
    assert all(server.pings_acked == 1 for server in servers)
    assert 0 < report.p50_us <= report.p99_us


async def test_more_bytes_than_one_connection_window_flow() -> None:
    report, _ = await loaded(count=3000, connections=1)
    assert (report.fault_count, report.requests) == (0, 3000)


@pytest.mark.parametrize(
    ("window", "max_frame"), [(65_535, 16_384), (1000, 16_384), (1 << 20, 100_000)]
)
async def test_big_messages_obey_the_servers_flow_control(window: int, max_frame: int) -> None:
    image = bytes(range(256)) * 2352  # 602 KB, an image of 3 x 224 x 224 floats
    report, _ = await loaded(
        message=image, expected=image, count=6, streams=2, window=window, max_frame=max_frame
    )
    assert (report.fault_count, report.requests) == (0, 6)


@pytest.mark.parametrize(
    ("misbehave", "named"),
    [
        ("body", "expected"),
        ("no message", "expected"),
        ("status 14", "grpc-status 14: gone"),
        ("http 503", "HTTP status 503"),
        ("reset", "reset with code 2"),
        ("goaway", "calm down"),
        ("drop", "connection lost"),
        ("silence", "without an answer"),
    ],
)
async def test_a_wrong_answer_is_a_fault(misbehave: str, named: str) -> None:
    report, _ = await loaded(misbehave, connections=1, seconds=0.2)
    assert report.fault_count >= 1
    assert any(named in fault for fault in report.faults)
    assert report.requests < 60


async def test_without_an_expected_message_any_err_no_but_zero_is_a_fault() -> None:
    busy = Response(err_no=3004, err_msg="busy").SerializeToString()
    report, _ = await loaded(message=busy, expected=None)
    assert "err_no 3004" in report.faults[0]
    report, _ = await loaded(expected=None)
    assert (report.fault_count, report.requests) == (0, 60)


def test_a_compressed_or_second_message_is_not_taken_for_an_answer() -> None:
    check_message(grpc_message(MESSAGE), None)
    with pytest.raises(BadAnswer):
        check_message(struct.pack("!BI", 1, len(MESSAGE)) + MESSAGE, None)
    with pytest.raises(BadAnswer):
        check_message(grpc_message(MESSAGE) * 2, None)


def test_the_request_headers_are_what_grpc_asks_for_and_leave_the_table_empty() -> None:
    decoder = hpack.Decoder()
    fields = decoder.decode(header_block(9000, INFERENCE))
    assert [(str(name), str(value)) for name, value in fields] == [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", INFERENCE),
        (":authority", "127.0.0.1:9000"),
        ("te", "trailers"),  # codespell:ignore te
        ("content-type", "application/grpc"),
    ]
    assert len(decoder.header_table.dynamic_entries) == 0


def test_remembered_blocks_follow_the_decoders_table() -> None:
    encoder, memory = hpack.Encoder(), HeaderMemory()
    for turn in range(300):
        # Every seventh block enters the table and shifts the meaning of the indexed ones.
        status = str(turn // 7)
        fields = {"grpc-status": "0", "x-turn": status}
        assert memory.decode(encoder.encode(list(fields.items()))) == fields
