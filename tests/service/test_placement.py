"""Placement of an op's worker processes: cards, CPUs, threads, and random numbers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.service.scripts import script, until
from tests.services.process import running

pytestmark = pytest.mark.real

RUNTIME = """
import json, os, random, sys
from importlib.metadata import EntryPoint
from pathlib import Path
import numpy as np
import penstock.runtimes.runtime as runtimes

class Session:
    thread_safe, holds_gil, notes, inputs, outputs = True, False, (), (), ()
    def clone(self):
        return self
    def run(self, feeds, fetch):
        return []

class Telling:
    name = "telling"
    def can_open(self, path):
        return path.suffix == ".telling"
    def problems(self, path, options):
        return []
    def open(self, path, options):
        opened.append([os.environ.get("CUDA_VISIBLE_DEVICES"), options.devices, options.thread_num])
        return Session()

class Generator:
    number = 1
    def seed(self):
        self.number = int.from_bytes(os.urandom(4), "big")

torch = type(sys)("torch")
torch.default_generator = Generator()
if "WITH_TORCH" in os.environ:
    sys.modules["torch"] = torch
opened = []
runtimes.BUILT_IN["telling"] = EntryPoint("telling", "__main__:Telling", "penstock.runtimes")
Path("model.telling").touch()
random.seed(1)
np.random.seed(1)
"""
HOOKS = """
def init_op(self):
    numbers = [random.random(), float(np.random.random()), torch.default_generator.number]
    told = [self.concurrency_idx, sorted(os.sched_getaffinity(0)), opened, numbers]
    folder = Path("told") / str(os.getpid())
    folder.with_suffix(".new").write_text(json.dumps(told))
    folder.with_suffix(".new").rename(folder)

def preprocess(self, input_dicts, data_id, log_id):
    import signal
    os.kill(os.getpid(), signal.SIGKILL)
"""


def reports_of(folder: Path, workers: int) -> list[Any]:
    reports = [json.loads(each.read_text()) for each in (folder / "told").iterdir()]
    assert len(reports) == workers
    return sorted(reports)


def service(
    folder: Path, workers: int, environment: dict[str, str] | None = None, **op: Any
) -> Any:
    (folder / "told").mkdir()
    entry = {"executor": "process", "concurrency": workers, **op}
    path = script(folder, HOOKS, f'"op": {{"work": {entry!r}}}', before=RUNTIME)
    return running(path, environment=environment)


def model(**conf: Any) -> dict[str, Any]:
    return {"local_service_conf": {"model_config": "model.telling", **conf}}


def test_workers_are_distributed_over_cards_and_see_their_own_only(tmp_path: Path) -> None:
    with service(tmp_path, 5, **model(devices="0,1,3")):
        reports = reports_of(tmp_path, 5)
    assert [each[0] for each in reports] == [0, 1, 2, 3, 4]
    assert [each[2] for each in reports] == [
        [[visible, ["0"], 1]] for visible in ("0", "1", "3", "0", "1")
    ]


def test_cards_are_numbered_within_the_service_s_visible_ones(tmp_path: Path) -> None:
    given = {"CUDA_VISIBLE_DEVICES": "6,7"}
    with service(tmp_path, 2, given, **model(devices="1,2", thread_num=3)):
        reports = reports_of(tmp_path, 2)
    assert [each[2] for each in reports] == [[["7", ["0"], 3]], [["6,7", ["2"], 3]]]


def test_without_a_card_the_visible_ones_are_unchanged(tmp_path: Path) -> None:
    given = {"CUDA_VISIBLE_DEVICES": "6"}
    with service(tmp_path, 1, given, **model(devices="0", device_type=0)):
        assert reports_of(tmp_path, 1)[0][2][0][0] == "6"


def test_each_worker_runs_on_its_configured_cpus(tmp_path: Path) -> None:
    usable = sorted(os.sched_getaffinity(0))
    first, last = usable[0], usable[-1]
    with service(tmp_path, 3, cpu_affinity=[first, f"{first},{last}"]):
        reports = reports_of(tmp_path, 3)
    assert [set(each[1]) for each in reports] == [{first}, {first, last}, {first}]


def test_workers_draw_different_random_numbers(tmp_path: Path) -> None:
    with service(tmp_path, 4, {"WITH_TORCH": "1"}) as server:
        reports = reports_of(tmp_path, 4)
        assert all(each[1] == sorted(os.sched_getaffinity(0)) for each in reports)
        for library in range(3):
            assert len({each[3][library] for each in reports}) == 4
        victim = next(int(each.name) for each in (tmp_path / "told").iterdir())
        os.kill(victim, 9)
        until(lambda: len(list((tmp_path / "told").glob("*[0-9]"))) == 5, "a new worker")
        again = reports_of(tmp_path, 5)
        for library in range(3):
            assert len({each[3][library] for each in again}) == 5
        assert sorted(each[0] for each in again)[-1] == 3
        assert server.stop() == 0
