"""The door's limits, from the configuration and the descriptor limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.schema import DoorConfig, ServiceConfig
from penstock.service.door import limits_of
from tests.service.scripts import post, script
from tests.services.process import running

DOOR = """
import os
import resource
import penstock.service.door
def told(frontend, limits, *more, door=penstock.service.door.Door):
    os.write(1, f"at most {limits.max_connections}\\n".encode())
    return door(frontend, limits, *more)
penstock.service.door.Door = told
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
"""


@pytest.mark.real
@pytest.mark.parametrize(("executor", "most"), [("process", 400 - 100 - 66), ("thread", 300)])
def test_the_connection_limit_depends_on_worker_processes(
    tmp_path: Path, executor: str, most: int
) -> None:
    config = f'"op": {{"work": {{"executor": "{executor}", "concurrency": 3}}}}'
    hooks = "def process(self, feed_batch, typical_logid): return feed_batch[0]"
    with running(script(tmp_path, hooks, config, before=DOOR)) as server:
        assert f"at most {most}\n" in server.log()


FEW = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 400))
"""


@pytest.mark.real
@pytest.mark.parametrize(("concurrency", "soft", "warned"), [(1, 88, 0), (4, 352, 0), (12, 400, 1)])
def test_the_soft_limit_is_raised_for_the_workers_descriptors(
    tmp_path: Path, concurrency: int, soft: int, warned: int
) -> None:
    config = f'"op": {{"work": {{"executor": "process", "concurrency": {concurrency}}}}}'
    hooks = """
def process(self, feed_batch, typical_logid):
    import resource
    return {"y": str(resource.getrlimit(resource.RLIMIT_NOFILE))}
"""
    with running(script(tmp_path, hooks, config, before=FEW)) as server:
        assert post(server, x="1").json["value"] == [f"({soft}, 400)"]
        assert server.log().count("and it may open 400 (ulimit -n)") == warned
        assert server.stop() == 0


def test_timeouts_of_the_door_come_from_the_configuration() -> None:
    limits = limits_of(ServiceConfig())
    assert (limits.header_timeout, limits.body_timeout) == (9.0, 29.0)
    short = limits_of(ServiceConfig(header_timeout=0.5, body_timeout=2))
    assert (short.header_timeout, short.body_timeout) == (0.45, 1.8)


def test_every_key_of_the_door_is_passed_to_its_limits() -> None:
    elsewhere = {"tls", "unix_socket"}
    for key, field in DoorConfig.model_fields.items():
        if key in elsewhere:
            continue
        is_switch = isinstance(field.default, bool)
        value = not field.default if is_switch else (field.default or 0) + 70_000
        door = DoorConfig.model_construct(**{key: value})
        limits = limits_of(ServiceConfig.model_construct(door=door))
        values = [
            getattr(each, key)
            for each in (limits, limits.http1, limits.http2)
            if hasattr(each, key)
        ]
        assert {*values} == {value}, key
    assert limits_of(ServiceConfig(max_calls=4)).max_calls == 4
    assert limits_of(ServiceConfig(max_requests=4)).max_calls == 16
