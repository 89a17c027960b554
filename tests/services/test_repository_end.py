"""A service of a repository that is ended within each step of a load: it ends in time, leaves
nothing behind, and starts again. Models that crash or hang as they are opened change nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.faults.swaps import CONFIG, NAME, good, hangs, hangs_in_batches
from tests.services.process import ServiceProcess
from tests.services.repository import (
    Repository,
    alive,
    index,
    once,
    serving,
    states,
    until,
)

pytestmark = [pytest.mark.real, pytest.mark.long]

LIMITS = {"PENSTOCK_DRAIN_TIMEOUT": "1", "PENSTOCK_START_TIMEOUT": "120"}


class Made:
    """What the broken models of ``tests.faults.swaps`` need."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.made = repository.folder.parent / "made"

    def new(self) -> Path:
        self.made.mkdir()
        return self.made

    def place(self, version: int) -> None:
        self.repository.move(self.made, NAME, version)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "models")


def ends(server: ServiceProcess, repository: Repository) -> None:
    """The service is told to end, and does, without a trace."""
    assert server.stop(signal.SIGTERM, timeout=20.0) == 0
    assert server.leftovers() == []
    assert "Traceback" not in server.log()


def starts_again(repository: Repository, version: str) -> None:
    """The next start serves a version, and removes what was half fetched."""
    with serving(repository) as server:
        assert once(server)[1]["model_version"] == version
        assert [*(repository.folder.parent / "cache").rglob("tmp/*")] == []


class Store(ThreadingHTTPServer):
    """Lists a folder, and does not send the model of version 2 until it may."""

    def __init__(self, folder: Path) -> None:
        self.asked, self.may_go_on = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), partial(Stalls, directory=str(folder)))


class Stalls(SimpleHTTPRequestHandler):
    """One request to it."""

    server: Store

    def copyfile(self, source: Any, outputfile: Any) -> None:
        if "/2/model" in self.path:
            self.server.asked.set()
            self.server.may_go_on.wait(60)
            return
        super().copyfile(source, outputfile)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def http_store(folder: Path) -> Iterator[tuple[Store, str]]:
    with Store(folder) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.may_go_on.set()
            server.shutdown()
            thread.join()


def new_worker(server: ServiceProcess, before: set[int]) -> int | None:
    """A process that was started since, and computes."""
    for each in server.descendants():
        with suppress(psutil.NoSuchProcess):
            if each.pid not in before and each.cpu_times().user > 0.4:
                return each.pid
    return None


def test_the_end_within_a_fetch(repository: Repository) -> None:
    repository.add("m", 1)
    with http_store(repository.folder) as (store, url):
        with serving(repository, url=url, environment=LIMITS) as server:
            repository.add("m", 2)
            assert store.asked.wait(60)
            assert index(server)["2"]["reason"] == "being fetched"
            assert server.is_ready()
            ends(server, repository)
    starts_again(repository, "2")


def test_the_end_while_a_version_is_opened(repository: Repository) -> None:
    repository.config("m", CONFIG)
    made = Made(repository)
    good(made, 1)  # type: ignore[arg-type]
    with serving(repository, environment=LIMITS) as server:
        before = {each.pid for each in server.descendants()}
        hangs(made, 2)  # type: ignore[arg-type]
        until(lambda: new_worker(server, before))
        assert states(server) == {"1": "READY", "2": "LOADING"}
        ends(server, repository)
    shutil.rmtree(repository.folder / "m/2")
    starts_again(repository, "1")


def test_the_end_while_the_version_before_still_runs_a_request(repository: Repository) -> None:
    repository.config("m", "max_batch_size: 8")
    made = Made(repository)
    hangs_in_batches(made, 1)  # type: ignore[arg-type]

    def call() -> None:
        tensor = {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1.0] * 6}
        with suppress(httpx.HTTPError):
            url = f"{server.http_url}/v2/models/m/infer"
            answers.append(httpx.post(url, json={"inputs": [tensor]}, timeout=60).status_code)

    answers: list[int] = []
    with serving(repository, environment=LIMITS) as server:
        before: set[int] = set()
        caller = threading.Thread(target=call)
        caller.start()
        until(lambda: new_worker(server, before))
        good(made, 2)  # type: ignore[arg-type]
        until(lambda: states(server) == {"1": "UNLOADING", "2": "READY"})
        ends(server, repository)
        caller.join()
    assert answers in ([], [503])
    starts_again(repository, "2")


@pytest.mark.parametrize("kills", [signal.SIGSEGV, None], ids=["crashes", "hangs"])
@pytest.mark.parametrize("broken", [hangs, hangs_in_batches])
def test_a_version_that_crashes_or_hangs_as_it_warms_up_changes_nothing(
    repository: Repository, broken: Any, kills: int | None
) -> None:
    repository.config("m", CONFIG)
    made = Made(repository)
    good(made, 1)  # type: ignore[arg-type]
    limit = "120" if kills else "10"
    with serving(repository, environment={"PENSTOCK_START_TIMEOUT": limit}) as server:
        before = {each.pid for each in server.descendants()}
        ready: list[bool] = []

        def failed() -> bool:
            ready.append(server.is_ready() and once(server)[0] == 200)
            return states(server).get("2") == "UNAVAILABLE"

        until(lambda: states(server) == {"1": "READY"})
        broken(made, 2)
        new = until(lambda: new_worker(server, before))
        if kills:
            os.kill(new, kills)
        until(failed)
        assert all(ready)
        until(lambda: not alive([new]))
        assert {each.pid for each in server.descendants()} == before
        assert ("SIGSEGV" if kills else "start_timeout") in index(server)["2"]["reason"]
        assert server.log().count("version 2 cannot be served") == 1
        ends(server, repository)
