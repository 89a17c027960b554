"""Functions and ops get who calls, in every kind of worker; callers cannot say it themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.protocols import standard_messages as messages
from penstock.security.keys import line_of, new_key
from tests.kit import http1
from tests.kit.frames import message
from tests.kit.http2 import call, linked
from tests.services.process import ServiceProcess, running

pytestmark = pytest.mark.real

ANN, BOB = new_key(), new_key()
SCRIPT = """
from dataclasses import dataclass
from penstock import App, Caller, Op, RequestOp, ResponseOp, Service, op, run

app = App("typed", security={security!r})

@dataclass
class Item:
    x: int

def plain(x: int, caller: Caller) -> str:
    return f"{{caller.name}} {{sorted(caller.scopes)}} {{caller.how}} {{x}}"

@app.route("/thread")
def thread(x: int, caller: Caller) -> str:
    return plain(x, caller)

@app.route("/process", executor="process")
def process(x: int, caller: Caller) -> str:
    return plain(x, caller)

@app.route("/whole", executor="process")
def whole(who: Caller, item: Item) -> str:
    return plain(item.x, who)

@app.route("/later")
async def later(x: int, caller: Caller) -> str:
    return plain(x, caller)

@app.route("/batch", batch=4, wait=50, executor="process")
def batch(x: list[int], callers: list[Caller]) -> list[str]:
    return [plain(*each) for each in zip(x, callers, strict=True)]

@app.route("/class")
class Kept:
    def preprocess(self, x: int, caller: "Caller | None") -> str:
        return plain(x, caller)

    def predict(self, text: str) -> str:
        return text

@app.route("/open")
def opened(x: int, caller: Caller | None) -> str:
    return "nobody" if caller is None else caller.name

@app.route("/needs")
def needs(x: int, caller: Caller) -> str:
    return caller.name

@app.get("/me")
def me(caller: Caller) -> str:
    return caller.name

@op()
def first(request, caller: Caller):
    return {{"first": caller.name}}

@op(first, batch=4)
def second(before, callers: list[Caller]):
    return [{{**each, "second": who.name}} for each, who in zip(before, callers, strict=True)]

class Third(Op):
    def preprocess(self, input_dicts, data_id, log_id, *, caller: Caller):
        (feed,) = input_dicts.values()
        return {{**feed, "third": caller.name}}

    def postprocess(self, input_data, fetch_data, log_id, caller: Caller):
        return {{**fetch_data, "after": caller.name, "log_id": type(log_id).__name__}}, None, ""

run(app, Service("graph", Third("third", input_ops=[second])))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("callers")
    keys = folder / "keys.txt"
    lines = [line_of("ann", ANN, ["a", "b"]), line_of("bob", BOB, ())]
    keys.write_text("".join(f"{line}\n" for line in lines))
    script = folder / "service.py"
    security = {"keys": str(keys), "open": ["/open", "/needs"]}
    script.write_text(SCRIPT.format(security=security))
    with running(script) as server:
        yield server


def post(server: ServiceProcess, path: str, body: Any, key: str | None = ANN) -> http1.Reply:
    sent, shown = json.dumps(body), f"X-API-Key: {key}\r\n" if key else ""
    with http1.connected(server.http_port) as connection:
        connection.send(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{shown}Content-Length: {len(sent)}\r\n\r\n"
            f"{sent}".encode()
        )
        return connection.reply()


@pytest.mark.parametrize("path", ["/thread", "/process", "/whole", "/later", "/batch", "/class"])
def test_a_typed_function_gets_who_calls(server: ServiceProcess, path: str) -> None:
    assert post(server, path, {"x": 1}).json() == "ann ['a', 'b'] key 1"
    assert post(server, path, {"x": 2}, BOB).json() == "bob [] key 2"


def test_each_request_of_a_batch_has_its_own_caller(server: ServiceProcess) -> None:
    who = [ANN, BOB] * 4
    with ThreadPoolExecutor(len(who)) as threads:
        found = list(threads.map(lambda key: post(server, "/batch", {"x": 1}, key).json(), who))
    assert found == ["ann ['a', 'b'] key 1", "bob [] key 1"] * 4


def test_the_caller_is_not_a_member_of_the_body(server: ServiceProcess) -> None:
    assert post(server, "/thread", {"x": 1, "caller": {"name": "root", "how": "key"}}).status == 422


def test_a_get_route_gets_it_too(server: ServiceProcess) -> None:
    with http1.connected(server.http_port) as connection:
        connection.send(f"GET /me HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {BOB}\r\n\r\n".encode())
        assert connection.reply().json() == "bob"


def test_callers_of_an_open_route_may_say_who_they_are(server: ServiceProcess) -> None:
    assert post(server, "/open", {"x": 1}, None).json() == "nobody"
    assert post(server, "/needs", {"x": 1}, None).status == 401
    for path in ("/open", "/needs"):
        assert post(server, path, {"x": 1}).json() == "ann"
        assert post(server, path, {"x": 1}, new_key()).status == 401
    with http1.connected(server.http_port) as connection:
        connection.send(
            b"POST /open HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic YTpi\r\n"
            b'Content-Length: 7\r\n\r\n{"x":1}'
        )
        assert connection.reply().json() == "nobody"


def test_ops_of_a_graph_get_it(server: ServiceProcess) -> None:
    reply = post(server, "/graph/prediction", {"key": ["@caller"], "value": ["root"]}, BOB)
    found = reply.json()
    values = dict(zip(found["key"], found["value"], strict=True))
    names = {"first": "bob", "second": "bob", "third": "bob", "after": "bob", "log_id": "int"}
    assert values == names


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_messages_of_the_inference_protocol_have_it(server: ServiceProcess, method: str) -> None:
    request_kind, response_kind = messages.inference_messages(method)
    request = request_kind(model_name="process")
    tensor = request.inputs.add(name="x", datatype="INT64", shape=[1])
    tensor.contents.int64_contents.append(5)
    path = f"/{messages.INFERENCE}/{method}"
    with linked(server.rpc_port) as link:
        stream = link.open(call(path.encode(), (b"x-api-key", BOB.encode())))
        link.upload(stream, message(request.SerializeToString()))
        answer = response_kind.FromString(link.answer(stream).messages[0])
    found = answer if method == "ModelInfer" else answer.infer_response
    assert b"bob [] key 5" in found.SerializeToString()


def test_openapi_does_not_have_it(server: ServiceProcess) -> None:
    with http1.connected(server.http_port) as connection:
        connection.send(
            f"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {BOB}\r\n\r\n".encode()
        )
        described = connection.reply().json()
    text = json.dumps(described)
    assert '"/thread"' in text
    assert '"caller"' not in text
    assert '"who"' not in text
    assert '"Caller"' not in text
