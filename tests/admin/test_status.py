"""Status: an engine's report, the sum over several engines, and the page and command that show
it."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from penstock import Op
from penstock.admin.status import Reporter
from penstock.api.health import Health
from penstock.executors.external_store.counts import StoreCounts
from penstock.observe.counters import Counters
from penstock.observe.recorder import Recorder
from penstock.observe.reports import total
from penstock.observe.status import shown
from penstock.service.blueprint import deploy
from penstock.service.build import LoadedDeployment
from tests.service.in_process import blueprint_of, pairs, root, service_of
from tests.service.scripts import PENSTOCK, post, script
from tests.services.process import direct, running


async def test_a_report_has_the_counts_of_requests_and_ops() -> None:
    counters, health = Counters(), Health()
    health.set_ready()
    loaded = LoadedDeployment(deploy([blueprint_of(Op("work", input_ops=[root()]), name="one")]))
    engine = loaded.engine(asyncio.get_running_loop(), instruments=[counters])
    report = Reporter(engine, health, counters, {})()
    assert report["requests"]["admitted"] == report["answers"]["ok"] == 0
    for each in engine.graphs:
        assert await each.close(5.0)
    async with service_of(Op("work", input_ops=[root()])) as service:
        service.engine.instruments.install(Recorder(0, counters))
        assert pairs(await service.call(x="1")) == {"x": "1"}
        await asyncio.sleep(0)
        reporter = Reporter(service.engine, health, counters, {})
        report = reporter()
        assert "sketch" not in json.dumps(reporter(sketches=False))
    assert report["requests"]["answered"] == report["answers"]["ok"] == 1
    (graph,) = report["graphs"]
    assert (graph["version"], graph["state"], graph["default"]) == ("1", "serving", True)
    (op,) = graph["ops"]
    assert (op["name"], op["batches"], op["samples"], op["workers"]) == ("work", 1, 1, 1)
    assert op["seconds"]["process"] >= 0.0
    assert json.loads(json.dumps(report)) == report


async def test_a_report_has_what_each_op_reads() -> None:
    request = root()
    boxes = Op("boxes", input_ops=[request])
    crops = Op("crops", input_ops=[request, boxes])
    gather = Op("gather", input_ops=[boxes, crops])
    loaded = LoadedDeployment(deploy([blueprint_of(gather, name="one")]))
    engine = loaded.engine(asyncio.get_running_loop(), instruments=[counters := Counters()])
    report = Reporter(engine, Health(), counters, {})()
    (graph,) = report["graphs"]
    assert [(op["name"], op["inputs"], op["reads_request"]) for op in graph["ops"]] == [
        ("boxes", [], True),
        ("crops", ["boxes"], True),
        ("gather", ["boxes", "crops"], False),
    ]
    assert total([report, report])["graphs"][0]["ops"][0]["reads_request"] is True
    for each in engine.graphs:
        assert await each.close(5.0)


async def test_what_a_removed_user_of_the_external_store_has_counted_remains() -> None:
    loaded = LoadedDeployment(deploy([blueprint_of(Op("work", input_ops=[root()]), name="one")]))
    engine = loaded.engine(asyncio.get_running_loop(), instruments=[counters := Counters()])
    reporter = Reporter(engine, Health(), counters, {})
    assert "external_store" not in reporter()
    users = [StoreCounts(), StoreCounts(), None]
    for number, user in enumerate(users, 1):
        reporter.store = user
        if user is not None:
            reporter()
            user.add(put=5, fetched=4, inline=3, lost=2)
        for _ in range(2):
            report = reporter()["external_store"]
            assert report["users"] == (user is not None)
            assert report["put_bytes"] == 5 * min(number, 2)
            assert report["lost"] == 2 * min(number, 2)
    for each in engine.graphs:
        assert await each.close(5.0)


MANY_OPS = """\
import random

from penstock import Op, Service

chance, last = random.Random(1), None
for number in range(60):
    last = Op(f"op_{number}_{chance.randbytes(1000).hex()}", [] if last is None else [last])
service = Service("many", last, http_port=0, build_dag_each_worker=True, worker_num=2)
"""


@pytest.mark.real
def test_the_status_of_several_engines_has_every_op_however_many(tmp_path: Path) -> None:
    path = tmp_path / "many.py"
    path.write_text(MANY_OPS)  # its report of more than 60,000 bytes cannot be compressed further
    with running(path, command=PENSTOCK) as server:
        with direct.open(f"{server.http_url}/status", timeout=10) as answer:
            report = json.load(answer)
        assert report["engines"] == 2
        assert [each["workers"] for each in report["graphs"][0]["ops"]] == [2] * 60
        assert server.stop() == 0


@pytest.mark.real
@pytest.mark.parametrize("engines", [1, 3])
def test_the_status_of_a_service_includes_all_its_engines(engines: int, tmp_path: Path) -> None:
    config = f'"build_dag_each_worker": True, "worker_num": {engines}'
    with running(script(tmp_path, "pass", config)) as server:
        for _ in range(6):
            assert post(server, x="1").json["err_no"] == 0
        with direct.open(f"{server.http_url}/status", timeout=10) as answer:
            report = json.load(answer)
        assert (report["engines"], report["ready"]) == (engines, True)
        assert report["requests"]["admitted"] == report["answers"]["ok"] == 6
        assert report["graphs"][0]["ops"][0]["workers"] == engines
        for sketch in (
            report["seconds"]["sketch"],
            report["graphs"][0]["ops"][0]["queue"]["sketch"],
        ):
            assert sum(sketch.values()) == 6
        connections = report["connections"]
        assert connections["opened"] > connections["closed"] >= 1
        command = [*PENSTOCK[:-1], "status", server.http_url.removeprefix("http://")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        first = f"ready, {engines} engine{'s' if engines > 1 else ''}"
        assert done.stdout.splitlines()[0] == first
        assert "answers   ok 6" in done.stdout
        assert "ms  p50 " in done.stdout
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60)
        assert shown(json.loads(done.stdout)).splitlines()[0] == first
        assert server.stop() == 0
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "the status cannot be read" in done.stderr
