"""``priority`` and ``timeout`` of requests of the Open Inference Protocol, as Triton's clients send
them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.protocols import standard_messages as messages
from tests.kit import http1
from tests.kit.frames import message
from tests.kit.http2 import call, linked
from tests.service.scripts import PENSTOCK, until
from tests.services.process import ServiceProcess, running

pytestmark = pytest.mark.real

APP = """
import time
from penstock import App
app = App("slow", priority={"levels": 2, "header": True})

@app.route("/slow")
def slow(seconds: float) -> float:
    time.sleep(seconds)
    return seconds
"""


LIMITED = APP.replace(
    'priority={"levels": 2, "header": True}',
    'queue={"timeout": 0.4, "timeout_action": "reject"}',
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    path = tmp_path_factory.mktemp("scheduling") / "app.py"
    path.write_text(APP)
    with running(path, command=PENSTOCK) as server:
        yield server


def by_http(server: ServiceProcess, seconds: float, parameters: dict[str, int]) -> int:
    tensor = {"name": "seconds", "datatype": "FP64", "shape": [1], "data": [seconds]}
    body = json.dumps({"parameters": parameters, "inputs": [tensor]}).encode()
    with http1.connected(server.http_port) as connection:
        connection.send(http1.request(body, target=b"/v2/models/slow/infer"))
        return connection.reply().status


def by_grpc(server: ServiceProcess, seconds: float, parameters: dict[str, int]) -> int:
    request = messages.inference_messages("ModelInfer")[0](model_name="slow")
    for name, value in parameters.items():
        request.parameters[name].int64_param = value
    tensor = request.inputs.add(name="seconds", datatype="FP64", shape=[1])
    tensor.contents.fp64_contents.append(seconds)
    with linked(server.rpc_port) as link:
        stream = link.open(call(f"/{messages.INFERENCE}/ModelInfer".encode()))
        link.upload(stream, message(request.SerializeToString()))
        answer = link.answer(stream)
    return {"0": 200, "3": 400, "4": 504, "8": 429}[answer.fields[b"grpc-status"].decode()]


@pytest.mark.parametrize("ask", [by_http, by_grpc])
def test_requests_name_their_priority_and_timeout(
    server: ServiceProcess, ask: Callable[..., int]
) -> None:
    assert ask(server, 0.0, {"priority": 2, "timeout": 20_000_000}) == 200
    assert ask(server, 0.0, {"priority": 0, "timeout": 0}) == 200
    assert ask(server, 0.0, {"priority": 3}) == 400
    assert ask(server, 0.5, {"timeout": 20_000}) == 504


@pytest.mark.parametrize("ask", [by_http, by_grpc])
def test_with_a_limit_of_the_queue_the_timeout_is_that_of_waiting(
    tmp_path: Path, ask: Callable[..., int]
) -> None:
    path = tmp_path / "app.py"
    path.write_text(LIMITED)
    with running(path, command=PENSTOCK) as server, ThreadPoolExecutor(3) as pool:
        runs = pool.submit(ask, server, 1.5, {"timeout": 20_000})
        until(lambda: status(server)["idle"] == 0, "the first call")
        waits = [pool.submit(ask, server, 0.0, asked) for asked in ({"timeout": 20_000}, {})]
        assert [each.result() for each in waits] == [429, 429]
        assert not runs.done()
        assert runs.result() == 200, "a request that runs has the whole deadline"


def status(server: ServiceProcess) -> dict[str, Any]:
    with http1.connected(server.http_port) as connection:
        connection.send(b"GET /status HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        (graph,) = json.loads(connection.reply().body)["graphs"]
        (stage,) = graph["ops"]
    return dict(stage)
