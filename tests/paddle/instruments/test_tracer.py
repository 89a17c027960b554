"""The tracer's report, read by a separate parser of the published format."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from penstock import Op
from penstock_paddle.instruments.tracer import Tracer, report
from tests.service.in_process import root, service_of
from tests.service.scripts import post, script
from tests.services.process import running

STAGES = ("in", "prep", "midp", "postp", "out", "idle")
LATENCIES = ("ave", ".50", ".60", ".70", ".80", ".90", ".95", ".99")
HEADER = "==================== TRACER ======================"
NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"


def parsed(lines: list[str]) -> dict[str, Any]:
    """One block: its ops, requests and channels. Fails on lines that the format does not have."""
    assert lines[0] == HEADER
    found: dict[str, Any] = {"ops": {}, "channels": []}
    remaining = lines[1:]
    while remaining and (op := re.fullmatch(r"Op\((.+)\):", remaining[0])):
        times = {}
        for stage, line in zip(STAGES, remaining[1:7], strict=True):
            unit = "" if stage == "idle" else " ms"
            match = re.fullmatch(rf"\t{stage}\[({NUMBER}){unit}\]", line)
            assert match, line
            times[stage] = float(match[1])
        found["ops"][op[1]] = times
        remaining = remaining[7:]
    if remaining[0] == "DAGExecutor:":
        heads = (
            rf"\tQuery count\[({NUMBER})\]",
            rf"\tQPS\[({NUMBER}) q/s\]",
            rf"\tSucc\[({NUMBER})\]",
            r"\tError req\[((?:\d+(?:, \d+)*)?)\]",
            r"\tLatency:()",
        )
        count, qps, good, failed, _ = [
            (re.fullmatch(head, line) or pytest.fail(line))[1]
            for head, line in zip(heads, remaining[1:6], strict=True)
        ]
        latency = {}
        for name, line in zip(LATENCIES, remaining[6:14], strict=True):
            match = re.fullmatch(rf"\t\t{re.escape(name)}\[({NUMBER}) ms\]", line)
            assert match, line
            latency[name] = float(match[1])
        found["dag"] = {"count": int(count), "qps": float(qps), "succ": float(good),
                        "failed": [int(x) for x in failed.split(", ") if x], **latency}  # fmt: skip
        remaining = remaining[14:]
    workers = re.fullmatch(r"Channel \(server worker num\[(\d+)\]\):", remaining[0])
    assert workers, remaining[0]
    for number, line in enumerate(remaining[1:]):
        pattern = rf"\tchl{number}\(In: (\['.+'\]), Out: (\['.+'\])\) size\[(\d+)/(\d+)\]"
        match = re.fullmatch(pattern, line)
        assert match, line
        found["channels"].append((match[1], match[2], int(match[3]), int(match[4])))
    return {"workers": int(workers[1]), **found}


class Work(Op):
    def preprocess(self, input_dicts: Any, data_id: int, log_id: int) -> Any:
        time.sleep(0.003)
        return super().preprocess(input_dicts, data_id, log_id)

    def process(self, feed_batch: Any, typical_logid: int) -> Any:
        time.sleep(0.01)
        if feed_batch[0]["x"] == "fail":
            raise ValueError("told to")
        return {"y": ["1"] * len(feed_batch)}


class Other:
    """A service, for an engine that is not the first."""

    is_first = False
    config: Any = None
    engine: Any = None

    def listen(self, listener: Any, /) -> object:
        raise NotImplementedError

    async def ask(self, instrument: Any, /) -> list[Any]:
        raise NotImplementedError


async def test_a_report_has_the_means_of_ops_and_the_latency_of_requests() -> None:
    async with service_of(Work("bert", input_ops=[root()])) as service:
        tracer = Tracer()
        tracer.engine_started(Other(), time.monotonic())
        service.engine.instruments.install(tracer)
        for x in ("1", "2", "fail", "4"):
            await service.call(x=x)
        taken, emptied = tracer.take(), tracer.take()
    channels = [(["@DAGExecutor"], "bert", 0, 9), (["bert"], "@DAGExecutor", 0, 9)]
    found = parsed(report([taken, emptied], channels, 3, 10.0))
    op, dag = found["ops"]["bert"], found["dag"]
    assert 3 <= op["prep"] < 8
    assert 10 <= op["midp"] < 20
    assert op["in"] > 0
    busy = op["prep"] + op["midp"] + op["postp"]
    assert op["idle"] == pytest.approx(1 - busy / (busy + op["in"] + op["out"]))
    assert (dag["count"], dag["qps"], dag["succ"]) == (4, 0.4, 0.75)
    assert len(dag["failed"]) == 1
    assert dag[".99"] >= dag[".50"] >= busy * 0.9
    assert len(taken["seconds"]) == 4
    assert dag["ave"] == pytest.approx(1000 * sum(taken["seconds"]) / 4)
    assert found["workers"] == 3
    assert found["channels"][0] == ("['@DAGExecutor']", "['bert']", 0, 9)


def test_a_report_without_requests_has_the_channels_only() -> None:
    nothing = Tracer().take()
    lines = report([nothing, nothing], [(["a", "b"], "c", 7, 0)], 1, 10.0)
    assert parsed(lines)["channels"] == [("['a', 'b']", "['c']", 7, 0)]
    assert len(lines) == 3


def test_percentiles_are_computed_as_by_the_original() -> None:
    window = {"ops": {}, "seconds": [x / 1000 for x in range(100, 0, -1)], "failed": [3, 7]}
    dag = parsed(report([window, {**window, "failed": []}], [], 1, 10.0))["dag"]
    assert [round(dag[f".{k}"]) for k in (50, 60, 99)] == [51, 61, 100]
    assert (dag["count"], dag["qps"], dag["succ"], dag["failed"]) == (200, 20.0, 0.99, [3, 7])


HOOKS = """
def process(self, feed_batch, typical_logid):
    import logging
    logging.getLogger("mine").info("for pipeline.log %s", self.name)
    logging.getLogger("mine").warning("forged?\\nERROR %s", feed_batch[0]["x"])
    return feed_batch[0]
"""

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"


@pytest.mark.real
@pytest.mark.parametrize("mode", ["alone", "engines and processes", "spawned"])
def test_the_three_log_files_have_the_lines_of_all_processes(mode: str, tmp_path: Path) -> None:
    config = f'"log_dir": {str(tmp_path)!r}, "dag": {{"tracer": {{"interval_s": 1}}'
    before = ""
    if mode == "alone":
        config += "}"
    else:
        config += ', "is_thread_op": False}, "build_dag_each_worker": True, "worker_num": 2'
    if mode == "spawned":
        before = "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"
    folder = tmp_path / "PipelineServingLogs"
    with running(script(tmp_path, HOOKS, config, before)) as server:
        end = time.monotonic() + 30
        requests = 0
        while "Query count" not in (folder / "pipeline.tracer").read_text():
            assert time.monotonic() < end
            assert post(server, x="1").json["err_msg"] == ""
            requests += 1
        assert server.stop() == 0
        shown = server.log()
    log = (folder / "pipeline.log").read_text().splitlines()
    assert all(re.match(rf"(INFO|WARNING) {STAMP} \[\w+\.py:\d+\] ", line) for line in log), log
    assert sum("for pipeline.log work" in line for line in log) == requests
    warnings = (folder / "pipeline.log.wf").read_text().splitlines()
    assert sum(r"forged?\nERROR 1" in line for line in warnings) == requests
    assert all(line.startswith("WARNING ") and line in log for line in warnings)
    lines = (folder / "pipeline.tracer").read_text().splitlines()
    stripped = [re.fullmatch(rf"{STAMP} (.*)", line) for line in lines]
    texts = [each[1] for each in stripped if each]
    assert len(texts) == len(lines)
    starts = [n for n, text in enumerate(texts) if text == HEADER]
    blocks = [parsed(texts[a:b]) for a, b in zip(starts, [*starts[1:], None], strict=True)]
    assert max(block.get("dag", {"count": 0})["count"] for block in blocks) >= 1
    assert "TRACER" not in shown
    assert "for pipeline.log" in shown
    assert not [each for each in folder.iterdir() if each.name.count(".") > 2]
