"""The generator of HTTP load: wrk's requests, and the answers that are faults."""

import asyncio
from pathlib import Path

import pytest

from benchmarks import load_wrk
from benchmarks.load import Plan, Report
from benchmarks.load_wrk import WrkFailed, weight_of_answer
from tests.benchmarks.fake_servers import RIGHT_BODY, FakeHttp, http_response, serving
from tests.peers.programs import program

RIGHT = http_response()
BODY = b'{"key":["x"],"value":["1"]}'


@pytest.fixture
def body(tmp_path: Path) -> Path:
    file = tmp_path / "body"
    file.write_bytes(BODY)
    return file


async def run_load(server: FakeHttp, body: Path, heads: str = "same") -> Report:
    async with serving(lambda: server.copy()) as port:
        return await asyncio.to_thread(
            load_wrk.load_wrk,
            port=port,
            path="/",
            body=body,
            expected=RIGHT_BODY,
            connections=2,
            heads=heads,
            plan=Plan(seconds=1.0, warmup_seconds=0.0),
        )


@pytest.mark.parametrize(
    ("answer", "fault_text"),
    [
        (http_response(RIGHT_BODY.replace(b'"1"', b'"2"')), "status 200"),
        (http_response(status="503 Service Unavailable"), "503"),
    ],
)
async def test_a_wrong_first_answer_aborts_the_measurement(answer: bytes, fault_text: str) -> None:
    async with serving(lambda: FakeHttp(lambda n: answer)) as port:
        with pytest.raises(WrkFailed, match=fault_text):
            await asyncio.to_thread(weight_of_answer, port, "/", BODY, RIGHT_BODY)


async def test_the_weight_of_an_answer_is_its_bytes_on_the_wire() -> None:
    async with serving(lambda: FakeHttp(lambda n: RIGHT)) as port:
        weight = await asyncio.to_thread(weight_of_answer, port, "/", BODY, RIGHT_BODY)
    assert weight == (len(RIGHT), len(RIGHT))


@pytest.mark.parametrize("chunks", [(b"a\n\n", b"b\n\n"), (b"a\n\nb\n\n",)])
async def test_events_may_be_sent_in_any_number_of_chunks(chunks: tuple[bytes, ...]) -> None:
    sent = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    sent += b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in (*chunks, b""))
    async with serving(lambda: FakeHttp(lambda n: sent)) as port:
        least, most = await asyncio.to_thread(weight_of_answer, port, "/", BODY, None)
    assert least < len(sent) < most


@pytest.mark.peers
@pytest.mark.parametrize("heads", ["same", "different"])
async def test_wrk_sends_the_header_fields_of_a_real_client(heads: str, body: Path) -> None:
    program("wrk")
    server = FakeHttp(lambda n: RIGHT)
    report = await run_load(server, body, heads)
    assert (report.fault_count, report.faults) == (0, ())
    assert report.answers > 20
    assert 0 < report.p50_us <= report.p99_us
    unique = {
        line
        for line in server.lines
        if line.startswith((b"traceparent: 00-", b"x-request-id: ", b"penstock-timeout: 2"))
    }
    assert len(unique) == 3 if heads == "same" else len(unique) > report.answers


@pytest.mark.peers
async def test_an_answer_of_another_weight_than_the_first_is_a_fault(body: Path) -> None:
    program("wrk")
    first = [RIGHT]
    report = await run_load(
        FakeHttp(lambda n: first.pop() if first else http_response(b"{}")), body
    )
    assert any("weigh" in fault for fault in report.faults)
