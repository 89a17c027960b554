import asyncio
import json
from pathlib import Path

import pytest

from benchmarks import load_wrk
from benchmarks.load import Plan, Report
from benchmarks.load_http import BadResponse
from benchmarks.load_programs import Measured, ProgramFailed
from benchmarks.load_wrk import probe, report_of
from tests.benchmarks.conftest import RunMain
from tests.benchmarks.fake_servers import RIGHT_BODY, FakeHttp, http_response, serving
from tests.peers.programs import program

RIGHT = http_response()
BODY = b'{"key":["x"],"value":["1"]}'
COUNTS = {"requests": 1000, "seconds": 2.0, "bytes": 100_000, "p50_us": 300, "p99_us": 900}
COUNTS |= {"connect": 0, "read": 0, "write": 0, "status": 0, "timeout": 0}


def reported(**changed: int) -> Report:
    text = "Running 2s test\n" + json.dumps(COUNTS | changed) + "\n"
    return report_of(
        Measured(text=text, server_cpu_s=1.5, client_cpu_s=0.5), right=100, in_flight=32
    )


def test_its_counts_become_a_report() -> None:
    report = reported()
    assert (report.fault_count, report.requests, report.rps) == (0, 1000, 500.0)
    assert (report.p50_us, report.p99_us) == (300, 900)
    assert (report.server_cpu_s, report.client_cpu) == (1.5, 0.25)


@pytest.mark.parametrize("name", ["connect", "read", "write", "status", "timeout"])
def test_each_of_its_errors_is_a_fault(name: str) -> None:
    report = reported(**{name: 3})
    assert report.fault_count == 3
    assert name in report.faults[0]


def test_answers_of_another_weight_are_a_fault() -> None:
    assert reported(bytes=103_200).fault_count == 0
    assert reported(bytes=103_201).fault_count == 1
    assert reported(requests=0, bytes=0).fault_count == 1


def test_another_program_s_output_is_refused() -> None:
    with pytest.raises(ProgramFailed, match="cannot read"):
        report_of(Measured(text="{}", server_cpu_s=None, client_cpu_s=0), right=1, in_flight=1)


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (http_response(RIGHT_BODY.replace(b'"1"', b'"2"')), "expected"),
        (http_response(status="503 Service Unavailable"), "503"),
        (None, "ended"),
    ],
)
async def test_a_wrong_first_answer_ends_the_measurement(answer: bytes | None, named: str) -> None:
    async with serving(lambda: FakeHttp(lambda n: answer)) as port:
        with pytest.raises(BadResponse, match=named):
            await asyncio.to_thread(probe, port, "/echo/prediction", BODY, RIGHT_BODY)


async def test_a_first_answer_in_pieces_is_put_together() -> None:
    async with serving(lambda: FakeHttp(lambda n: RIGHT, pieces=9)) as port:
        weight = await asyncio.to_thread(probe, port, "/echo/prediction", BODY, RIGHT_BODY)
    assert weight == len(RIGHT)


@pytest.fixture
def options(tmp_path: Path) -> list[object]:
    body, expected = tmp_path / "body", tmp_path / "expected"
    body.write_bytes(BODY)
    expected.write_bytes(RIGHT_BODY)
    return ["--path", "/", "--body", body, "--expect", expected, "--connections", 4]


def server() -> FakeHttp:
    return FakeHttp(lambda n: RIGHT)


@pytest.mark.peers
async def test_wrk_loads_a_server(run_main: RunMain, options: list[object]) -> None:
    program("wrk")
    options += ["--seconds", 1, "--warmup", 0]
    status, report = await run_main(load_wrk.main, server, *options)
    assert (status, report.fault_count, report.faults) == (0, 0, [])
    assert report.requests > 20
    assert 0 < report.p50_us <= report.p99_us


@pytest.mark.peers
async def test_wrk_tells_of_answers_that_are_not_the_first_one() -> None:
    program("wrk")
    wrong = http_response(b"{}")

    def answers() -> FakeHttp:
        return FakeHttp(lambda n: RIGHT if n == 0 else wrong)

    async with serving(answers) as port:
        report = await asyncio.to_thread(
            load_wrk.load_wrk,
            port=port,
            path="/",
            body=BODY,
            expected=RIGHT_BODY,
            connections=2,
            plan=Plan(seconds=1.0, warmup_seconds=0.0),
        )
    assert report.fault_count == 1
    assert "weigh" in report.faults[0]


async def test_without_wrk_our_own_generator_runs(
    run_main: RunMain, options: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    options += ["--seconds", 5, "--warmup", 0, "--count", 40]
    status, report = await run_main(load_wrk.main, server, *options)
    assert (status, report.requests) == (0, 40)


@pytest.mark.peers
@pytest.mark.parametrize(("heads", "kinds"), [("different", "many"), ("same", "one")])
async def test_wrk_sends_a_real_clients_fields(heads: str, kinds: str) -> None:
    program("wrk")
    seen: set[bytes] = set()

    class Noting(FakeHttp):
        def data_received(self, data: bytes) -> None:
            seen.update(
                line for line in data.split(b"\r\n") if line.startswith(b"traceparent: 00-")
            )
            super().data_received(data)

    async with serving(lambda: Noting(lambda n: RIGHT)) as port:
        report = await asyncio.to_thread(
            load_wrk.load_wrk,
            port=port,
            path="/",
            body=BODY,
            expected=RIGHT_BODY,
            connections=2,
            plan=Plan(seconds=1.0, warmup_seconds=0.0),
            heads=heads,
        )
    assert report.fault_count == 0
    assert len(seen) == 1 if kinds == "one" else len(seen) > report.requests / 2
