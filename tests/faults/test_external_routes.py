"""A typed route whose external worker is killed under load, in JSON and in msgpack."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import orjson
import ormsgpack
import pytest

from tests.services.process import ROOT, ServiceProcess, running

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

BATCH, CLIENTS, KILLS = 4, 16, 3
ANSWERS_BETWEEN_KILLS = 200
SCRIPT = """
from pydantic import BaseModel
from penstock import App

app = App("routes")

class Echoed(BaseModel):
    n: str
    service: str

@app.route("/echo", batch={batch}, executor="external", socket={socket!r},
           socket_format={format!r})
def echo(n: list[str]) -> list[Echoed]: ...
"""
FORMATS: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "json": (orjson.dumps, orjson.loads, ()),
    "msgpack": (ormsgpack.packb, ormsgpack.unpackb, ("--msgpack",)),
}


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)


def is_ready(server: ServiceProcess, pid: int) -> bool:
    return f"(pid {pid}) is ready" in server.log()


def has_grown(answers: list[Any], beyond: int) -> bool:
    return len(answers) > beyond


@contextmanager
def worker(socket: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = (sys.executable, "-m", "penstock", "worker", "tests.faults.external_worker:echo")
    process = subprocess.Popen(
        (*command, "--batched", "--socket", str(socket), *options),
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", FORMATS)
def test_only_a_killed_workers_batch_fails_and_each_request_gets_its_answer(
    tmp_path: Path, name: str
) -> None:
    write, read, options = FORMATS[name]
    socket, script = tmp_path / "work.sock", tmp_path / "app.py"
    script.write_text(SCRIPT.format(batch=BATCH, socket=str(socket), format=name))
    answers: list[tuple[str, httpx.Response]] = []
    over = threading.Event()

    def client(number: int, url: str) -> None:
        headers = {"content-type": f"application/{name}"}
        with httpx.Client(trust_env=False, headers=headers, timeout=20) as http:
            for turn in range(100_000):
                if over.is_set():
                    return
                n = f"{number}-{turn}"
                answers.append((n, http.post(url, content=write({"n": n}))))

    with (
        worker(socket, *options),
        running(script, command=(sys.executable, "-m", "penstock", "run")) as server,
    ):
        url = f"{server.http_url}/echo"
        threads = [threading.Thread(target=client, args=(n, url)) for n in range(CLIENTS)]
        for each in threads:
            each.start()
        try:
            for _ in range(KILLS):
                with worker(socket, *options) as victim:
                    until(partial(is_ready, server, victim.pid))
                    until(partial(has_grown, answers, len(answers) + ANSWERS_BETWEEN_KILLS))
                    victim.kill()
        finally:
            over.set()
            for each in threads:
                each.join(30)
        assert server.stop() == 0
    lost = [answer for _, answer in answers if answer.status_code != 200]
    assert len(lost) <= BATCH * KILLS
    assert {(each.status_code, each.json()["error"]) for each in lost} <= {(503, "worker_died")}
    for n, answer in answers:
        if answer.status_code == 200:
            assert read(answer.content) == {"n": n, "service": "faults"}
