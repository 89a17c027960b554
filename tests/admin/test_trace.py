"""The trace of a running service, its request log, and the command that fetches the trace."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.service.scripts import PENSTOCK, post, script
from tests.services.process import ServiceProcess, direct, running

HOOKS = """
def process(self, feed_batch, typical_logid):
    import time
    time.sleep(0.02)
    return feed_batch[0]
"""


def traced(server: ServiceProcess, requests: int) -> dict[str, Any]:
    """The reply to ``GET /trace`` for this number of requests, which are sent meanwhile."""
    url = f"{server.http_url}/trace?requests={requests}&seconds=20"
    with ThreadPoolExecutor(4) as pool:
        answer = pool.submit(lambda: direct.open(url, timeout=30).read())
        while not answer.done():
            both = pool.map(lambda _: post(server, x="1").json["err_msg"], "ab")
            assert [*both] == ["", ""]
        trace: dict[str, Any] = json.loads(answer.result())
        return trace


@pytest.mark.real
@pytest.mark.parametrize("engines", [1, 2])
def test_a_trace_has_the_next_requests_of_all_engines(engines: int, tmp_path: Path) -> None:
    several = f'"build_dag_each_worker": True, "worker_num": {engines}'
    config = several if engines > 1 else '"dag": {"is_thread_op": False}'
    config += ', "log_requests": True'
    with running(script(tmp_path, HOOKS, config)) as server:
        trace = traced(server, 6)
        slices = [each for each in trace["traceEvents"] if each["ph"] == "X"]
        requests = [each for each in slices if "route" in each.get("args", {})]
        assert len(requests) == trace["otherData"]["requests"] == 6
        assert all(each["args"]["status"] == 200 for each in requests)
        processed = [each for each in slices if each["name"] == "process" and each["pid"] == 1]
        assert len(processed) == 6
        assert all(each["dur"] > 19_000 for each in processed)
        for query in ("requests=0", "requests=x", "seconds=-1"):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                direct.open(f"{server.http_url}/trace?{query}", timeout=10)
        output = tmp_path / "trace.json"
        command = [*PENSTOCK[:-1], "trace", server.http_url.removeprefix("http://")]
        command += ["--seconds", "0.1", "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.stdout == f"{output}: 0 requests\n"
        assert json.loads(output.read_text())["otherData"] == {"requests": 0}
        assert server.stop() == 0
        lines = [line for line in server.log().splitlines() if "request_log" in line]
    requests_logged = [line for line in lines if "/{name}/{method} 200" in line]
    assert len(requests_logged) >= 6
    processes = [re.search(r"\| work batch .* process ([0-9.]+)", each) for each in requests_logged]
    assert all(each and float(each[1]) >= 19 for each in processes), requests_logged
    assert any("GET /trace 400" in line for line in lines)
