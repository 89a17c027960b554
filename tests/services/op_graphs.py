"""A graph of two ops whose models have versions, and callers that check each answer whole.

Both models multiply; the answer has what each of them made, so that it tells both versions.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.services.process import ServiceProcess, direct, running
from tests.services.repository import until

APP = """
from penstock import App, Model, op

app = App("pictures", repository_poll_secs=0.2{keys})
det = Model("{place}/det", versions="latest")

@op(det)
def crop(det):
    return {{"x": det["y"]}}

rec = Model("{place}/rec", crop, versions="latest"{more})

@op(det, rec)
def both(det, rec):
    return {{"det": det["y"][0, 0], "rec": rec["y"][0, 0]}}

app.graph("/read", both)
"""
RUN = (sys.executable, "-m", "penstock", "run")


@contextmanager
def serving(
    folder: Path, *, place: str = "models", keys: str = "", more: str = "", **variables: str
) -> Iterator[ServiceProcess]:
    """A service of the graph in a folder."""
    file = folder / "app.py"
    file.write_text(APP.format(place=place, keys=keys, more=more))
    environment = {"XDG_CACHE_HOME": str(folder / "cache"), **variables}
    with running(file, command=RUN, environment=environment) as server:
        yield server


def read(link: http.client.HTTPConnection) -> tuple[int, int]:
    """One request; returns the versions that gave the answer."""
    link.request("POST", "/read", json.dumps({"x": [[1.0, 1.0, 1.0]]}))
    answer = link.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise OSError(answer.status, body)
    found = json.loads(body)
    det, rec = round(found["det"]), round(found["rec"] / found["det"])
    if (found["det"], found["rec"]) != (det, det * rec):
        raise OSError("not of one version each", found)
    return det, rec


def read_once(server: ServiceProcess) -> tuple[int, int]:
    """The same, on a connection of its own."""
    link = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    try:
        return read(link)
    finally:
        link.close()


class Readers:
    """Callers without a pause.

    Attributes:
        answers: each caller's, in order.
        failures: errors, and answers that are not those of one version of each op.
    """

    def __init__(self, server: ServiceProcess, callers: int) -> None:
        self.answers: list[list[tuple[int, int]]] = [[] for _ in range(callers)]
        self.failures: list[str] = []
        self._port = server.http_port
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(x,)) for x in self.answers]
        for each in self._threads:
            each.start()

    def _run(self, answers: list[tuple[int, int]]) -> None:
        link = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        while not self._stop.is_set():
            try:
                answers.append(read(link))
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                link.close()
        link.close()

    def wait(self, det: int, rec: int) -> None:
        """Wait until these versions answer every caller."""
        until(lambda: all(each and each[-1] == (det, rec) for each in self.answers))

    def stop(self) -> None:
        """End, when the requests in flight are answered."""
        self._stop.set()
        for each in self._threads:
            each.join()


@contextmanager
def readers(server: ServiceProcess, callers: int = 3) -> Iterator[Readers]:
    """Callers for the time of the block."""
    made = Readers(server, callers)
    try:
        yield made
    finally:
        made.stop()


def ops_of(server: ServiceProcess) -> dict[str, dict[str, Any]]:
    """The ops of the graph in the status, by name, when no former graph is left beside it."""

    def graphs() -> list[dict[str, Any]]:
        with direct.open(f"{server.http_url}/status", timeout=30) as answer:
            return list(json.load(answer)["graphs"])

    graph = until(lambda: found[0] if len(found := graphs()) == 1 else None)
    return {each["name"]: each for each in graph["ops"]}


def pids_of(server: ServiceProcess, op: str) -> list[int]:
    """The worker processes of an op, in all engines."""
    return [each["pid"] for each in ops_of(server)[op]["loaded"] if each]
