"""Graphs of several ops whose models have versions: one op changes, and the others run on."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kit.onnx_models import scale
from tests.services.op_graphs import RUN, ops_of, pids_of, read_once, readers, serving
from tests.services.process import ServiceProcess, direct, running
from tests.services.repository import Repository, alive, index, models, states, until

pytestmark = pytest.mark.real

THREE = {"PENSTOCK_BUILD_DAG_EACH_WORKER": "true", "PENSTOCK_WORKER_NUM": "3"}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "models")
    add(made, "det", 1)
    add(made, "rec", 1)
    return made


def add(repository: Repository, name: str, version: int) -> None:
    """Add a version that is not looked at twice before it is taken."""
    made = repository.folder.parent / "made"
    made.mkdir()
    scale(made / "model.onnx", version)
    (made / "_SUCCESS").touch()
    repository.move(made, name, version)


def operate(server: ServiceProcess, model: str, action: str, **body: Any) -> str:
    """An operator's request; returns its error, or an empty text."""
    url = f"{server.http_url}/v2/repository/models/{model}/{action}"
    answer = httpx.post(url, json=body, timeout=60)
    return str(answer.json().get("error", ""))


def counted(server: ServiceProcess) -> dict[str, float]:
    """The counters of requests and ops."""
    with direct.open(f"{server.http_url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    lines = re.findall(r"^(penstock_(?:op|request).*(?:_total|_count)\{.*\}) (\S+)$", text, re.M)
    return {name: float(value) for name, value in lines}


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="one engine"),
        pytest.param(THREE, id="three engines", marks=pytest.mark.long),
    ],
)
def test_ops_change_at_the_same_time_and_each_answer_is_whole(
    repository: Repository, environment: dict[str, str]
) -> None:
    with serving(repository.folder.parent, **environment) as server:
        detectors, recognisers = pids_of(server, "det"), pids_of(server, "rec")
        seen = [counted(server)]
        with readers(server) as callers:
            callers.wait(1, 1)
            add(repository, "rec", 3)
            while callers.answers[0][-1] != (1, 3):  # while both graphs are there, too
                seen.append(counted(server))
            callers.wait(1, 3)
            assert pids_of(server, "det") == detectors  # it is not opened again
            old = {*recognisers}
            until(lambda: not (alive(old) or old & {*pids_of(server, "rec")}))  # told a bit longer
            recognisers = pids_of(server, "rec")
            add(repository, "det", 5)
            callers.wait(5, 3)
            assert pids_of(server, "rec") == recognisers
            until(lambda: not alive(detectors))
            add(repository, "det", 7)
            add(repository, "rec", 7)
            callers.wait(7, 7)
            seen.append(counted(server))
        assert callers.failures == []
        assert {*chain(*callers.answers)} <= {(1, 1), (1, 3), (5, 3), (5, 7), (7, 3), (7, 7)}
        for before, after in pairwise(seen):
            assert {name for name in before if after[name] < before[name]} == set()
        found = {name: each.get("model_version") for name, each in ops_of(server).items()}
        assert found == {"det": "7", "crop": None, "rec": "7", "both": None}
        assert "Traceback" not in server.log()
        assert server.stop() == 0
        assert server.leftovers() == []


def test_a_worker_of_an_op_that_runs_on_is_replaced_after_others_have_changed(
    repository: Repository,
) -> None:
    with serving(repository.folder.parent) as server:
        for version in (2, 3):
            add(repository, "rec", version)
            until(lambda now=version: read_once(server) == (1, now))
        (gone,) = (repository.folder.parent / "cache").rglob("versions/rec/1-*")
        shutil.rmtree(gone)  # as the cache may do, when it needs the room
        (killed,) = pids_of(server, "det")
        os.kill(killed, signal.SIGKILL)
        until(lambda: pids_of(server, "det") not in ([], [killed]))
        assert read_once(server) == (1, 3)
        assert server.log().count("worker 0 cannot start") == 0


def test_an_operator_loads_and_goes_back(repository: Repository) -> None:
    keys = ', model_control_mode="explicit"'
    with serving(repository.folder.parent, keys=keys) as server:
        with readers(server) as callers:
            callers.wait(1, 1)
            add(repository, "rec", 2)
            add(repository, "det", 2)
            assert operate(server, "rec", "load") == ""
            assert read_once(server) == (1, 2)
            until(lambda: states(server, "rec") == {"1": "UNAVAILABLE", "2": "READY"})
            until(lambda: states(server, "det") == {"1": "READY", "2": "UNAVAILABLE"})
            assert operate(server, "rec", "update", rollback=True) == ""
            assert read_once(server) == (1, 1)
            until(lambda: index(server, "rec")["2"]["reason"] == "an operator took it back")
            callers.wait(1, 1)
        assert callers.failures == []
        assert {*chain(*callers.answers)} == {(1, 1), (1, 2)}
        assert "it cannot be unloaded" in operate(server, "rec", "unload")
        one = "op 'rec' runs one version of its model: there are no labels and weights"
        assert operate(server, "rec", "update", labels={"stable": "1"}) == one
        assert operate(server, "rec", "update", weights={"1": 50}) == one
        assert operate(server, "rec", "update", promote="2") == "rec has no version '2'"
        assert "could go back" in operate(server, "det", "update", rollback=True)
        unknown = "failed to load 'nobody': no op's model is called so, only det, rec"
        assert operate(server, "nobody", "load") == unknown
        assert operate(server, "rec", "load") == ""  # an operator: it is tried again
        assert read_once(server) == (1, 2)

        def swaps() -> list[dict[str, Any]]:
            return [each for each in status_of(server)["swaps"] if each["model"] == "rec"]

        # The version before may still end its requests when the operator has their answer.
        until(lambda: {each["state"] for each in swaps()} == {"done"})
        told = [(each["versions"], each["ends"]) for each in swaps()]
        assert told == [(["1"], []), (["2"], ["1"]), (["1"], ["2"]), (["2"], ["1"])]
        assert {"fetched", "verified", "opened", "swapped", "ended"} <= {*swaps()[1]["steps"]}
        loads = [{"name": "rec", "outcomes": {"served": 3}}]
        until(lambda: status_of(server)["loads"] == loads)


SEVERAL = """
from penstock import App, Model

app = App("several", model_control_mode="explicit")
for name in ("a", "b"):
    app.graph(f"/{name}", Model("models/rec", versions="latest"))
"""


def test_the_same_op_of_several_graphs_changes_in_each_by_itself(repository: Repository) -> None:
    file = repository.folder.parent / "app.py"
    file.write_text(SEVERAL)
    variables = {"XDG_CACHE_HOME": str(repository.folder.parent / "cache")}
    with running(file, command=RUN, environment=variables) as server:
        add(repository, "rec", 2)
        done = models(server, "load", "a/rec")
        assert done.returncode == 0, done.stderr
        until(lambda: states(server, "a/rec") == {"1": "UNAVAILABLE", "2": "READY"})
        until(lambda: states(server, "b/rec") == {"1": "READY", "2": "UNAVAILABLE"})
        refused = operate(server, "rec", "load")
        assert refused == "failed to load 'rec': no op's model is called so, only a/rec, b/rec"
        assert operate(server, "a/rec", "update", rollback=True) == ""
        until(lambda: states(server, "a/rec") == {"1": "READY", "2": "UNAVAILABLE"})


def status_of(server: ServiceProcess) -> Any:
    with direct.open(f"{server.http_url}/status", timeout=30) as answer:
        return json.load(answer)
