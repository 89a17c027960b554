"""New versions under load: a bad one is taken back without a person, a good one gets everything."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.observe.test_metrics import families
from tests.service.scripts import Answer, fetch, until
from tests.services.process import ROOT, ServiceProcess, running

pytestmark = pytest.mark.real

SCRIPT = """
import sys, time
sys.path.insert(0, {root!r})
from penstock import App, run
from tests.seams.toy_admin import Admin

def shop(version):
    app = App("shop", applications=[Admin], rollout={rollout}, **{config})

    @app.route("/price", workers=2)
    def price(n: int) -> dict[str, object]:
        if version == "errs" and n % 2:
            raise RuntimeError("out of memory")
        if version == "refuses" and n % 2:
            raise ValueError("n is odd")
        if version == "slower":
            time.sleep(0.03)
        return {{"price": n * (3.0 if version == "differs" else 2.0), "by": {by}}}

    return app

run(shop("1"), versions=lambda description: shop(description["version"]))
"""
ENGINES = {"build_dag_each_worker": True, "worker_num": 2}


@contextmanager
def shop(
    folder: Path, by: str = "version", config: dict[str, Any] | None = None, **rollout: Any
) -> Iterator[ServiceProcess]:
    entry = {"steps": [10, 50], "hold": 1, "samples": 30, "p99_ratio": 1000.0, **rollout}
    text = SCRIPT.format(root=str(ROOT), by=by, config=config or {}, rollout={"*": entry})
    (folder / "service.py").write_text(text)
    with running(folder / "service.py", environment={"PENSTOCK_LOG_LEVEL": "info"}) as server:
        yield server
        assert server.stop() == 0


def swap(server: ServiceProcess, version: str) -> Answer:
    body = json.dumps({"name": "price", "version": version}).encode()
    return fetch(f"{server.http_url}/swap", body, 60)


def rollout(server: ServiceProcess) -> dict[str, Any]:
    found: list[dict[str, Any]] = fetch(f"{server.http_url}/status").json["rollouts"]
    return found[0] if found else {}


def versions(server: ServiceProcess) -> list[str]:
    graphs = fetch(f"{server.http_url}/status").json["graphs"]
    return [each["version"] for each in graphs]


def ends(server: ServiceProcess) -> dict[str, float]:
    """The metric of rollouts that have ended, by their results."""
    (family,) = (
        each
        for each in families(fetch(f"{server.http_url}/metrics").body).values()
        if each.name == "penstock_rollouts"
    )
    return {each.labels["result"]: each.value for each in family.samples}


class Load:
    """Callers until the end of the context.

    Attributes:
        answers: their statuses and bodies.
    """

    def __init__(self, server: ServiceProcess, callers: int = 4) -> None:
        self._server = server
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(n,)) for n in range(callers)]
        self.answers: list[Answer] = []

    def _call(self, caller: int) -> None:
        number = caller
        while not self._over.is_set():
            number += 1
            body = json.dumps({"n": number}).encode()
            self.answers.append(fetch(f"{self._server.http_url}/price", body))

    def __enter__(self) -> Load:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()

    @property
    def failed(self) -> int:
        return sum(each.status != 200 for each in self.answers)

    @property
    def by(self) -> Counter[str]:
        return Counter(each.json["by"] for each in self.answers if each.status == 200)


def run_out(server: ServiceProcess, version: str) -> dict[str, Any]:
    """Roll a version out, and wait for the end."""
    before = rollout(server)
    assert swap(server, version).status == 200
    until(lambda: rollout(server) not in ({}, before), "the begin of the rollout")
    until(lambda: rollout(server)["state"] != "running", "the end of the rollout", 60)
    until(lambda: len(versions(server)) == 1, "the end of the other version")
    return rollout(server)


@pytest.mark.parametrize("config", [{}, ENGINES], ids=["one engine", "two engines"])
def test_a_good_version_gets_all_requests(tmp_path: Path, config: dict[str, Any]) -> None:
    with shop(tmp_path, config=config) as server:
        with Load(server) as load:
            until(lambda: len(load.answers) > 20, "some answers")
            over = run_out(server, "2")
        assert (over["state"], over["stable"], over["version"]) == ("promoted", "1", "2")
        assert versions(server) == ["2"]
        assert load.failed == 0
        counted = {"promoted": 1, "taken_back": 0, "superseded": 0}
        until(lambda: ends(server) == counted, "the metric")
        for told in (
            "version 2 gets 10 % of the requests, step 1",
            "version 2 gets 50 % of the requests",
            "version 2 gets all requests",
        ):
            until(lambda line=told: line in server.log(), told)


@pytest.mark.parametrize("config", [{}, ENGINES], ids=["one engine", "two engines"])
def test_a_version_that_errs_is_taken_back(tmp_path: Path, config: dict[str, Any]) -> None:
    with shop(tmp_path, config=config, hold=600) as server:
        with Load(server) as load:
            until(lambda: len(load.answers) > 20, "some answers")
            over = run_out(server, "errs")
        assert over["state"] == "taken back"
        assert "answers failed, and 0 of the" in over["why"]
        assert versions(server) == ["1"]
        assert 0 < load.failed < 0.1 * len(load.answers)
        until(lambda: "version errs is taken back: " in server.log(), "a line of the log")


def test_a_slower_version_is_taken_back(tmp_path: Path) -> None:
    with shop(tmp_path, hold=600, p99_ratio=1.25) as server:
        with Load(server) as load:
            until(lambda: len(load.answers) > 20, "some answers")
            over = run_out(server, "slower")
        assert over["state"] == "taken back"
        assert "1.25 times the p99 of version 1" in over["why"]
        assert load.failed == 0


def test_a_version_that_answers_differently_is_taken_back_before_any_caller_sees_it(
    tmp_path: Path,
) -> None:
    keys = {"steps": [0, 50], "disagreement": 0.02, "shadow": {"share": 50}}
    with shop(tmp_path, by="0", **keys) as server:
        with Load(server) as load:
            until(lambda: len(load.answers) > 20, "some answers")
            over = run_out(server, "differs")
        assert over["state"] == "taken back"
        assert "compared answers differ from those of version 1" in over["why"]
        counted = {"promoted": 0, "taken_back": 1, "superseded": 0}
        until(lambda: ends(server) == counted, "the metric")
        assert load.failed == 0
        for each in load.answers:
            assert each.json["price"] % 2 == 0
        status = fetch(f"{server.http_url}/status").json
        assert status["requests"]["answered"] - 1 >= status["answers"]["ok"] - 1
        assert status["answers"]["ok"] == len(load.answers)  # copies are not among them
