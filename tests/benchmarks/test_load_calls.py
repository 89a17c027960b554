"""The generator of gRPC load: its heads, its checks of answers, its flow control."""

import asyncio

import hpack
import pytest

from benchmarks import load_calls
from benchmarks.calls import INFERENCE, encode_heads
from benchmarks.load import Plan, Report
from penstock.protocols.pb import Response
from tests.benchmarks.fake_servers import FakeGrpc, serving

MESSAGE = Response(key=["x"], value=["hello"]).SerializeToString()


def decoded(heads: str, count: int) -> list[dict[str, str]]:
    encoded, decoder, found = encode_heads(heads, count, seed=1), hpack.Decoder(), []
    for number in range(count):
        frame = encoded.frames[encoded.offsets[number] : encoded.offsets[number + 1]]
        assert frame[:5] == (len(frame) - 9).to_bytes(3, "big") + b"\x01\x04"
        assert int.from_bytes(frame[5:9], "big") == 2 * number + 1
        found.append({str(name): str(value) for name, value in decoder.decode(frame[9:])})
    return found


def test_different_heads_differ_in_ids_and_timeout() -> None:
    found = decoded("different", 100)
    unique = ("traceparent", "x-request-id", "grpc-timeout")
    assert all(len({fields[name] for fields in found}) > 95 for name in unique)
    assert {fields[":path"] for fields in found} == {INFERENCE}
    assert found == decoded("different", 100)  # equal in every run


def test_repeated_heads_consist_of_table_indices_from_the_second_call_on() -> None:
    encoded = encode_heads("same", 3, seed=1)
    assert decoded("same", 3)[0] == decoded("same", 3)[2]
    assert encoded.offsets[3] - encoded.offsets[2] == 9 + 10


async def run_load(
    misbehave: str = "",
    *,
    message: bytes = MESSAGE,
    expected: bytes | None = MESSAGE,
    window: int = 65_535,
    max_frame: int = 16_384,
    calls: int = 200,
    seconds: float = 0.1,
    longest: float = 0.2,
) -> tuple[Report, list[FakeGrpc]]:
    servers: list[FakeGrpc] = []

    def connect() -> FakeGrpc:
        servers.append(FakeGrpc(misbehave, window, max_frame))
        return servers[-1]

    async with serving(connect) as port:
        report = await load_calls.load_calls(
            port=port,
            messages=[message],
            expected=expected,
            heads=[encode_heads("different", calls, seed) for seed in range(2)],
            streams=4,
            plan=Plan(seconds=seconds, warmup_seconds=0.0),
            longest=longest,
        )
    return report, servers


async def test_right_answers_are_counted_and_all_heads_used_causes_a_new_connection() -> None:
    report, servers = await run_load(calls=20)
    assert report.faults == ()
    assert len(servers) > 2
    assert 0 < report.answers <= sum(server.calls for server in servers)
    assert all(server.pings_acked == 1 for server in servers[:2])
    assert 0 < report.p50_us <= report.p99_us


@pytest.mark.parametrize(
    ("window", "max_frame"), [(65_535, 16_384), (1000, 16_384), (1 << 20, 100_000)]
)
async def test_large_messages_obey_the_servers_flow_control(window: int, max_frame: int) -> None:
    tensor = bytes(range(256)) * 300
    report, _ = await run_load(
        message=tensor,
        expected=tensor,
        window=window,
        max_frame=max_frame,
        seconds=1.0,
        longest=20.0,
    )
    assert report.faults == ()
    assert report.answers > 0


@pytest.mark.parametrize(
    ("misbehave", "fault_text"),
    [
        ("body", "is not"),
        ("no message", "is not"),
        ("status 14", "grpc-status 14: gone"),
        ("http 503", "HTTP status 503"),
        ("reset", "reset with code 2"),
        ("goaway", "calm down"),
        ("drop", "connection lost"),
        ("silence", "no answer"),
    ],
)
async def test_a_wrong_answer_is_a_fault(misbehave: str, fault_text: str) -> None:
    report, _ = await run_load(misbehave)
    assert any(fault_text in fault for fault in report.faults), report.faults


async def test_a_refused_connection_is_a_fault() -> None:
    async with serving(FakeGrpc) as port:
        pass
    report = await asyncio.wait_for(
        load_calls.load_calls(
            port=port,
            messages=[MESSAGE],
            expected=None,
            heads=[encode_heads("same", 5, 0)],
            streams=1,
            plan=Plan(seconds=5.0),
        ),
        timeout=5,
    )
    assert any("refused" in fault.lower() for fault in report.faults)
