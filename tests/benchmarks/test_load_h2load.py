import asyncio
from pathlib import Path

import pytest

from benchmarks import load_h2load
from benchmarks.load import Plan, Report
from benchmarks.load_h2load import report_of
from benchmarks.load_programs import Measured, ProgramFailed, weight_fault
from penstock.protocols.pb import Response
from tests.benchmarks.conftest import RunMain
from tests.benchmarks.fake_servers import FakeGrpc, serving
from tests.peers.programs import program

MESSAGE = Response(key=["x"], value=["hello"]).SerializeToString()
TEXT = """
finished in 2.01s, 1000.00 req/s, 301.60KB/s
requests: {total} total, {total} started, {done} done, {good} succeeded, {bad} failed, \
0 errored, 0 timeout
status codes: {good} 2xx, 0 3xx, 0 4xx, {bad} 5xx
traffic: 603.21KB (617687) total, 23.24KB (23802) headers (space savings 96.20%), \
40KB ({data}) data
                     min         max         mean         sd        +/- sd
"""
LOG = "1795268300061432\t200\t3000\n1795268300057408\t200\t1000\n1795268300057409\t-1\t9000\n"


def reported(good: int = 2000, bad: int = 0, data: int = 20_000, **told: int) -> Report:
    text = TEXT.format(total=good + bad, done=good + bad, good=good, bad=bad, data=data)
    measured = Measured(text=text, server_cpu_s=1.5, client_cpu_s=0.5)
    return report_of(measured, LOG, 2.0, right=told.get("right", 10), in_flight=8)


def test_its_counts_and_its_log_become_a_report() -> None:
    report = reported()
    assert (report.fault_count, report.requests, report.rps) == (0, 2000, 1000.0)
    assert (report.p50_us, report.p99_us) == (3000.0, 3000.0)
    assert (report.server_cpu_s, report.client_cpu) == (1.5, 0.25)


def test_failed_requests_are_faults() -> None:
    report = reported(good=1990, bad=10, data=19_900)
    assert report.fault_count == 20  # once failed, once without a good status
    assert "10 failed" in report.faults[0]


def test_answers_of_another_weight_are_a_fault() -> None:
    assert reported(data=20_080).fault_count == 0
    assert reported(data=20_081).fault_count == 1
    assert reported(data=14_000).fault_count == 1
    assert reported(good=0, data=0).fault_count == 1


def test_another_program_s_output_is_refused() -> None:
    with pytest.raises(ProgramFailed, match="cannot read"):
        report_of(
            Measured(text="hello", server_cpu_s=None, client_cpu_s=0.1),
            "",
            1.0,
            right=None,
            in_flight=1,
        )


def test_weights_may_differ_by_what_is_in_flight() -> None:
    assert weight_fault(100, 10, 10, 0) is None
    assert weight_fault(109, 10, 10, 1) is None
    assert weight_fault(90, 10, 10, 0) is not None


@pytest.fixture
def options(tmp_path: Path) -> list[object]:
    body = tmp_path / "body"
    body.write_bytes(MESSAGE)
    return ["--body", body, "--expect", body, "--connections", 2, "--streams", 3]


@pytest.mark.peers
async def test_h2load_loads_a_server(run_main: RunMain, options: list[object]) -> None:
    program("h2load")
    options += ["--seconds", 0.5, "--warmup", 0]
    status, report = await run_main(load_h2load.main, FakeGrpc, *options)
    assert (status, report.fault_count, report.faults) == (0, 0, [])
    assert report.requests > 20
    assert 0 < report.p50_us <= report.p99_us


async def test_without_h2load_our_own_generator_runs(
    run_main: RunMain, options: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    options += ["--seconds", 5, "--warmup", 0, "--count", 40]
    status, report = await run_main(load_h2load.main, FakeGrpc, *options)
    assert (status, report.requests) == (0, 40)


@pytest.mark.peers
async def test_h2load_tells_of_answers_with_another_status() -> None:
    program("h2load")
    async with serving(lambda: FakeGrpc("http 503")) as port:
        report = await asyncio.to_thread(
            load_h2load.load_h2load,
            port=port,
            message=MESSAGE,
            expected=MESSAGE,
            connections=1,
            streams=2,
            plan=Plan(seconds=0.3, warmup_seconds=0.0),
        )
    assert report.fault_count > 0
