"""Typed functions in threads and in processes: each request of a batch gets its own result."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import Request

import ormsgpack
import pytest

from tests.service.scripts import PENSTOCK
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
        return [{"root": each.number ** 0.5 if each.number >= 0 else 1 / 0} for each in items]

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


def ask(server: ServiceProcess, path: str, body: Any, kind: str) -> tuple[int, Any]:
    packed = kind == "application/msgpack"
    sent = ormsgpack.packb(body) if packed else json.dumps(body).encode()
    headers = {"Content-Type": kind}
    try:
        with direct.open(Request(server.http_url + path, sent, headers), timeout=20) as answer:
            read = answer.read()
            return answer.status, ormsgpack.unpackb(read) if packed else json.loads(read)
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
    with ThreadPoolExecutor(48) as threads:
        answers = list(threads.map(lambda body: ask(server, path, body, kind), bodies))
    for index, (status, answer) in enumerate(answers):
        if index in (5, 11):
            assert (status, answer["details"][0]["loc"]) == (422, ["body", "number"])
        elif index == 17:
            assert (status, answer["error"]) == (500, "hook_failed")
            assert answer["id"] in server.log()
        else:
            assert (status, answer) == (200, {"root": index**0.5})
