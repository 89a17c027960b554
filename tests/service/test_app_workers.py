"""Typed functions in threads and processes: each request of a batch gets its own result."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import Request

import ormsgpack
import pytest

from tests.service.scripts import PENSTOCK, until
from tests.services.process import ServiceProcess, direct, running

pytestmark = pytest.mark.real

SCRIPT = """
import time
from pydantic import BaseModel
from penstock import App

app = App("workers")

class Item(BaseModel):
    number: int
    slow: bool = False

class Root:
    def __init__(self):
        self.made = 1

    def predict(self, items: list[Item]) -> list[dict[str, float]]:
        if any(each.slow for each in items):
            time.sleep(0.2)
        together = float(len(items))
        return [
            {"root": each.number ** 0.5 if each.number >= 0 else 1 / 0, "together": together}
            for each in items
        ]

app.route("/thread", batch=16, wait=50)(type("ThreadRoot", (Root,), {}))
app.route("/process", batch=16, wait=50, executor="process", workers=2)(
    type("ProcessRoot", (Root,), {})
)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    path = tmp_path_factory.mktemp("typed") / "app.py"
    path.write_text(SCRIPT)
    with running(path, command=PENSTOCK) as server:
        yield server
        assert server.stop() == 0


def send(
    server: ServiceProcess, path: str, body: Any, kind: str, timeout: float = 20.0
) -> tuple[int, Any]:
    packed = kind == "application/msgpack"
    content = ormsgpack.packb(body) if packed else json.dumps(body).encode()
    headers = {"Content-Type": kind, "Penstock-Timeout": str(timeout)}
    try:
        with direct.open(Request(server.http_url + path, content, headers), timeout=20) as answer:
            received = answer.read()
            return answer.status, ormsgpack.unpackb(received) if packed else json.loads(received)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.parametrize("kind", ["application/json", "application/msgpack"])
@pytest.mark.parametrize("path", ["/thread", "/process"])
def test_each_request_of_a_batch_gets_its_own_result(
    server: ServiceProcess, path: str, kind: str
) -> None:
    bodies: list[Any] = [{"number": each} for each in range(48)]
    bodies[5] = {"number": "five"}
    bodies[11] = {}
    bodies[17] = {"number": -1}
    bodies[23] = {"number": 23, "slow": True}
    bodies[29] = {"number": 29, "slow": True}
    timeouts = [20.0] * 48
    timeouts[29] = 0.15
    with ThreadPoolExecutor(48) as threads:
        answers = list(
            threads.map(
                lambda body, timeout: send(server, path, body, kind, timeout), bodies, timeouts
            )
        )
    together, failure = [], ""
    for index, (status, answer) in enumerate(answers):
        if index in (5, 11):
            assert (status, answer["details"][0]["loc"]) == (422, ["body", "number"])
        elif index == 17:
            assert (status, answer["error"]) == (500, "hook_failed")
            failure = answer["id"]
        elif index == 29:  # in the queue, or while it ran
            assert (status, answer["error"]) == (504, "deadline")
        else:
            assert (status, answer["root"]) == (200, index**0.5)
            together.append(answer["together"])
    until(lambda: failure in server.log(), "the failure's id is logged")
    assert max(together) > 1
