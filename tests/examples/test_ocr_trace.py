"""The times of one OCR request in the log, in Chrome's trace, in its profile, in the spans that a
collector receives, and on the live page: each reports the parts of the request, and the sums agree.
"""

from __future__ import annotations

import base64
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock import Analyst, PipelineClient
from tests.examples.ocr_judge import EXAMPLE, example
from tests.kit.collector import collecting
from tests.services.process import direct, running

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

LOG = {"PENSTOCK_LOG_REQUESTS": "true", "PENSTOCK_LOG_FORMAT": "json"}


def test_the_times_in_log_trace_profile_spans_and_live_page_agree(
    folder: Path, tmp_path: Path
) -> None:
    picture = (folder / next(iter(example().pictures.GOOD))).read_bytes()
    image = base64.b64encode(picture).decode()
    command = ("env", *(f"{key}={value}" for key, value in LOG.items()), sys.executable)
    with (
        collecting() as collector,
        running(
            EXAMPLE / "ocr_service.py", command=command, environment=collector.environment
        ) as server,
    ):
        with ThreadPoolExecutor(1) as pool, PipelineClient() as client:
            url = f"{server.http_url}/trace?requests=1&seconds=30"
            client.connect([server.rpc_endpoint])
            feed = {"image": image}
            answer = pool.submit(lambda: direct.open(url, timeout=60).read())
            replies = []
            while not answer.done():  # the start of the recording is not reported
                number = len(replies) + 1
                replies.append(client.predict(feed, timeout=60, profile=True, log_id=number))
            traced = json.loads(answer.result())
        slices = [each for each in traced["traceEvents"] if each["ph"] == "X" and each["pid"] == 1]
        (whole,) = [each for each in slices if "log_id" in each.get("args", {})]
        log_id = whole["args"]["log_id"]
        response = direct.open(
            f"{server.http_url}/ui/requests/{whole['args']['data_id']}", timeout=60
        )
        page: dict[str, Any] = json.load(response)
        assert server.stop() == 0
        output = server.log()
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    requests = [each["request"] for each in events if "request" in each]
    (logged,) = [each for each in requests if each.get("log_id") == log_id]
    reply = replies[log_id - 1]
    (tmp_path / "profile").write_text(dict(zip(reply.key, reply.value))["pipeline.profile"])  # noqa: B905
    call, prepack, _, profiled = Analyst(tmp_path / "profile").get_profile()

    ops: list[dict[str, Any]] = logged["ops"]
    assert {each["op"] for each in ops} == {"det", "cls", "rec"}
    parts = [ms for op in ops for key, ms in op.items() if key.endswith("_ms")]
    sum_in_log = sum(parts) + logged["unpack_ms"] + logged["pack_ms"]
    sum_in_trace = sum(each["dur"] for each in slices if "args" not in each) / 1000
    (request,) = [x for x in collector.spans if x.facts.get("penstock.log_id") == log_id]
    unpack, *visits, pack = collector.children(request)
    tolerance = 0.01 * logged["ms"]
    assert whole["dur"] / 1000 == pytest.approx(logged["ms"], abs=tolerance)
    assert sum_in_log == pytest.approx(logged["ms"], abs=tolerance)
    assert sum_in_trace == pytest.approx(logged["ms"], abs=tolerance)
    assert prepack + call + logged["pack_ms"] == pytest.approx(logged["ms"], abs=tolerance)
    in_spans = [part.ms for visit in visits for part in collector.children(visit)]
    assert [unpack.name, *(each.name for each in visits), pack.name] == [
        "unpack", "det", "cls", "rec", "pack"
    ]  # fmt: skip
    assert request.ms == pytest.approx(logged["ms"], abs=tolerance)
    assert sum(in_spans) + unpack.ms + pack.ms == pytest.approx(logged["ms"], abs=tolerance)
    assert page["id"] == str(logged["data_id"])
    assert page["ms"] == pytest.approx(logged["ms"], abs=tolerance)
    in_steps = [x["end"] - x["begin"] for step in page["steps"] for x in step["parts"]]
    assert [step["op"] for step in page["steps"]] == ["det", "cls", "rec"]
    assert sum(in_steps) == pytest.approx(page["ops"], abs=tolerance)
    outside = sum(page[part] for part in ("unpack", "entry", "between", "pack"))
    assert sum(in_steps) + outside == pytest.approx(logged["ms"], abs=tolerance)
    for op, step in zip(ops, page["steps"], strict=True):
        for part in step["parts"]:
            key = f"{part['name'].replace(' ', '_')}_ms"
            assert part["end"] - part["begin"] == pytest.approx(op[key], abs=tolerance)
    for op in ops:
        steps = profiled.times(op["op"])
        for step, part in (("prep", "preprocess"), ("midp", "process"), ("postp", "postprocess")):
            assert steps[step] == pytest.approx(op[f"{part}_ms"], abs=tolerance)
