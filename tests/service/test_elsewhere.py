"""Ops whose workers an executor's own code starts: how they open, their keys, and refusals."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import Op
from penstock.errors import ConfigError, StartupError
from penstock.executors import kinds
from penstock.executors.kinds import ExecutorKind, ExecutorSpec
from penstock.service import flags
from penstock.service.blueprint import deploy, supervision_of
from penstock.service.build import LoadedDeployment
from penstock.service.in_process import InProcessService
from penstock.testing.executor import FakeExecutor
from tests.documents import ROOT, blocks_of
from tests.service.in_process import blueprint_of, root
from tests.service.scripts import PENSTOCK, post
from tests.services.process import running

SPECS: list[ExecutorSpec] = []


def make(spec: ExecutorSpec) -> FakeExecutor:
    SPECS.append(spec)
    return FakeExecutor(spec.workers)


@pytest.fixture(autouse=True)
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind of executors whose workers open the ops elsewhere."""
    monkeypatch.setattr(kinds, "_registered", dict(kinds._registered))
    kinds.register(ExecutorKind(name="far", make=make, elsewhere=True))
    SPECS.clear()


class Elsewhere(Op):
    """Opened by its workers only."""

    def init_op(self) -> None:
        raise AssertionError("it is opened elsewhere")

    def process(self, feed_batch: Any, typical_logid: Any) -> Any:
        return feed_batch[0]


def blueprint(**keys: Any) -> Any:
    entry = {"executor": "far", "concurrency": 2, **keys}
    return blueprint_of(Elsewhere("work", input_ops=[root()]), {"op": {"work": entry}})


async def test_the_executor_gets_what_a_worker_needs_to_open_the_op(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_SET", "a=b")
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", "service.py", "more"])
    loaded = LoadedDeployment(replace(deploy([blueprint()]), service=3))
    loaded.engine(asyncio.get_running_loop())
    (spec,) = SPECS
    assert (spec.op, spec.workers, list(spec.ops)) == ("work", 2, [])
    opening = spec.opening
    assert opening is not None
    assert (opening.service, opening.source.op, opening.source.version) == (3, "work", "1")
    assert opening.engine == {"index": 0, "engines": 1, "generation": 0, "first": 0}
    assert opening.program.arguments == ("-u", "service.py", "more")
    assert opening.program.folder == flags.STARTED_IN
    assert opening.program.variables["PENSTOCK_SET"] == "a=b"


@pytest.mark.parametrize(
    ("service", "argv", "why"),
    [(None, "service.py", "another server runs this service"), (0, "-", "is not in a file")],
)
async def test_a_program_that_cannot_be_run_again_is_refused(
    service: int | None, argv: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [argv])
    loaded = LoadedDeployment(replace(deploy([blueprint()]), service=service))
    with pytest.raises(StartupError, match=rf"op 'work': its workers open it by .*{why}"):
        loaded.engine(asyncio.get_running_loop())


def test_a_service_inside_another_server_is_refused() -> None:
    with pytest.raises(StartupError, match="op 'work' runs in processes of its own"):
        InProcessService(deploy([blueprint()]))


def test_a_check_opens_the_op_in_a_thread() -> None:
    with pytest.raises(StartupError, match="it is opened elsewhere"):
        LoadedDeployment(deploy([blueprint()]).in_threads())


def test_the_keys_of_workers_apply_except_that_of_their_memory() -> None:
    drawn = blueprint(on_timeout="kill", max_batches=9)
    supervision = supervision_of(drawn.options[0], drawn.config)
    assert (supervision.kill_late, supervision.max_batches) == (True, 9)
    with pytest.raises(ConfigError, match="memory_limit_mib: is for ops that run in processes"):
        blueprint(memory_limit_mib=100)


MODULE = """
import subprocesses
from penstock import WebService, Op

class Work(WebService):
    def get_pipeline_response(self, read_op):
        return Echo("echo", input_ops=[read_op])

class Echo(Op):
    def init_op(self):
        import os
        self.pid = str(os.getpid())

    def process(self, feed_batch, typical_logid):
        return {"pid": self.pid, **feed_batch[0]}

service = Work("work")
service.prepare_pipeline_config(yml_file="config.yml")
"""
CONFIG = """
rpc_port: 0
op:
  echo:
    executor: subprocess
    concurrency: 2
build_dag_each_worker: true
worker_num: 2
"""


@pytest.mark.real
def test_workers_of_several_engines_open_their_ops(
    tmp_path: Path,
) -> None:
    (code,) = [
        each for each in blocks_of(ROOT / "docs/executors.md") if each.name == "subprocesses.py"
    ]
    (tmp_path / "subprocesses.py").write_text(code.text)
    (tmp_path / "work.py").write_text(MODULE)
    (tmp_path / "config.yml").write_text(CONFIG)
    with running(tmp_path / "work.py", command=PENSTOCK, cwd=tmp_path) as server:
        workers = {str(each.pid) for each in server.descendants()}
        reply = post(server, "work", a="1").json
        assert reply["err_no"] == 0
        assert reply["key"] == ["pid", "a"]
        assert reply["value"][0] in workers
        assert len(workers) == 2 + 2 * 2
        assert server.stop() == 0
        assert server.leftovers() == []
