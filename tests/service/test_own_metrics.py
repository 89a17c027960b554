"""Metrics that a service's own code makes are on its page, summed over its processes."""

import re
import sys
from pathlib import Path

import httpx
import pytest

from tests.services.process import running

pytestmark = pytest.mark.real

RUN = (sys.executable, "-m", "penstock", "run")

SERVICE = """
from prometheus_client import Counter

from penstock import Op, Service

SEEN = Counter("seen_rows", "Rows.", ["op"])


class Seeing(Op):
    def process(self, feed_batch, typical_logid=0):
        SEEN.labels(self.name).inc(2)
        return {"ok": "yes"}


service = Service("seeing", Seeing("a", concurrency=2))
"""


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_service_s_own_metrics_are_on_its_page(tmp_path: Path, executor: str) -> None:
    script = tmp_path / "seeing.py"
    script.write_text(SERVICE)
    shared = {}
    if executor == "process":
        (tmp_path / "shared").mkdir()
        shared = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "shared")}
    flags = ("-o", f"op.a.executor={executor}")
    with running(script, *flags, command=RUN, environment=shared) as server:
        for _ in range(5):
            assert httpx.post(f"{server.http_url}/seeing", json={"x": 1}).status_code == 200
        text = httpx.get(f"{server.http_url}/metrics").text
        assert re.findall(r'^seen_rows_total\{op="a"\} (\S+)', text, re.MULTILINE) == ["10.0"]
        assert "penstock_requests_total" in text
        assert "python_info" not in text
        assert "metrics of its own" not in server.log()


def test_metrics_of_several_processes_that_are_not_shared_are_warned_about(tmp_path: Path) -> None:
    script = tmp_path / "seeing.py"
    script.write_text(SERVICE)
    with running(script, "-o", "op.a.executor=process", command=RUN) as server:
        assert "metrics of its own, such as 'seen_rows'" in server.log()
