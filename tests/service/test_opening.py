"""Within which limits the door opens."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from penstock.config.schema import ServiceConfig
from penstock.service.opening import limits_of, max_connections
from tests.service.scripts import script
from tests.services.process import running


@pytest.mark.parametrize(
    ("descriptors", "processes", "most"),
    [
        (100_000, 0, 1024),
        (100_000, 1000, 1024),
        (1024, 0, 896),
        (1024, 8, 896 - 8 * 22),
        (1024, 100, 896 - 256),  # the callers keep a half
        (256, 2, 256 - 64 - 44),
        (20, 8, 16),
    ],
)
def test_connections_leave_descriptors_for_everything_else_and_for_each_worker_process(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, processes: int, most: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (descriptors, descriptors))
    assert max_connections(None, processes) == most
    assert max_connections(5, processes) == 5
    assert limits_of(ServiceConfig(), processes).max_connections == most


DOOR = """
import os
import resource
import penstock.service.opening
def told(frontend, limits, budget, door=penstock.service.opening.Door):
    os.write(1, f"at most {limits.max_connections}\\n".encode())
    return door(frontend, limits, budget)
penstock.service.opening.Door = told
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
"""


@pytest.mark.real
@pytest.mark.parametrize(("executor", "most"), [("process", 400 - 100 - 66), ("thread", 300)])
def test_a_service_counts_its_worker_processes(tmp_path: Path, executor: str, most: int) -> None:
    config = f'"op": {{"work": {{"executor": "{executor}", "concurrency": 3}}}}'
    hooks = "def process(self, feed_batch, typical_logid): return feed_batch[0]"
    with running(script(tmp_path, hooks, config, before=DOOR)) as server:
        assert f"at most {most}\n" in server.log()


def test_what_comes_slowly_is_ended_by_the_time_that_is_configured() -> None:
    limits = limits_of(ServiceConfig())
    assert (limits.header_timeout, limits.body_timeout) == (9.0, 29.0)
    hasty = limits_of(ServiceConfig(header_timeout=0.5, body_timeout=2))
    assert (hasty.header_timeout, hasty.body_timeout) == (0.45, 1.8)
