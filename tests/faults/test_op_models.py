"""A version of an op's model that crashes, hangs or fails on its examples: what serves goes on."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.faults.test_repository import ENDLESS
from tests.kit.onnx_models import save, scale
from tests.services.op_graphs import pids_of, readers, serving
from tests.services.process import ServiceProcess
from tests.services.repository import Repository, index, states, until

pytestmark = pytest.mark.faults

FAILS = """(float[n, 3] x) => (float[n, 3] y, float[n, 3] twice) <int64[2] one = {7, 5}>
{ y = Reshape(x, one) twice = Add(y, y) }
"""


def add(repository: Repository, name: str, version: int, text: str = "") -> None:
    """Add a version with an example, at once."""
    made = repository.folder.parent / "made"
    (made / "examples").mkdir(parents=True)
    if text:
        save(made / "model.onnx", text)
    else:
        scale(made / "model.onnx", version)
    np.savez(made / "examples" / "one.npz", x=np.ones((1, 3), np.float32))
    (made / "_SUCCESS").touch()
    repository.move(made, name, version)


def kill_new(server: ServiceProcess, before: set[int]) -> bool:
    """End the process that has begun to compute since."""
    for each in server.descendants():
        with suppress(psutil.NoSuchProcess):
            if each.pid not in before and each.cpu_times().user > 0.4:
                os.kill(each.pid, signal.SIGSEGV)
                return True
    return False


def test_versions_that_crash_hang_or_fail_on_their_examples_change_nothing(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "models")
    add(repository, "det", 1)
    add(repository, "rec", 1)
    with serving(tmp_path, PENSTOCK_START_TIMEOUT="10") as server:
        workers = {name: pids_of(server, name) for name in ("det", "rec")}
        with readers(server) as callers:
            callers.wait(1, 1)
            before = {each.pid for each in server.descendants()}
            add(repository, "rec", 2, ENDLESS)
            until(lambda: kill_new(server, before))
            until(lambda: "SIGSEGV" in index(server, "rec")["2"]["reason"])
            add(repository, "rec", 3, ENDLESS)
            until(lambda: "start_timeout" in index(server, "rec").get("3", {}).get("reason", ""))
            add(repository, "rec", 4, FAILS)
            until(lambda: "Reshape" in index(server, "rec").get("4", {}).get("reason", ""))
            assert {name: pids_of(server, name) for name in workers} == workers
            add(repository, "rec", 5)
            callers.wait(1, 5)
            assert pids_of(server, "det") == workers["det"]
        assert callers.failures == []
        assert {answer for each in callers.answers for answer in each} == {(1, 1), (1, 5)}
        until(lambda: states(server, "rec")["5"] == "READY")
        until(lambda: len(server.descendants()) <= len(before))
        assert server.stop() == 0
        assert server.leftovers() == []
