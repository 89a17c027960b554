"""Triton's repository extension: bodies, messages, errors and callers."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from penstock.api.oip_repository import RepositoryApplication
from penstock.api.router import Router
from penstock.door.exchange import Peer
from penstock.errors import HttpError
from penstock.protocols.grpc import encode_message
from penstock.protocols.standard_messages import inference_messages
from tests.api.recorded_exchange import RecordedExchange, grpc_head, post

ROWS = [
    {"name": "m", "version": "1", "state": "READY", "reason": "", "labels": ["stable"]},
    {"name": "m", "version": "2", "state": "UNAVAILABLE", "reason": "it is truncated"},
]


class Fake:
    """Notes what it is told; a model called "broken" cannot be loaded."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def index(self, *, ready: bool = False) -> list[dict[str, Any]]:
        return [each for each in ROWS if not ready or each["state"] == "READY"]

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        await self.may_go_on.wait()
        self.told.append(("load", name, dict(parameters)))
        if name == "broken":
            raise HttpError(500, "failed to load 'broken': it is truncated")

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        self.told.append(("unload", name, unload_dependents))

    async def update(self, name: str, wanted: Mapping[str, Any]) -> None:
        self.told.append(("update", name, dict(wanted)))


class Site:
    def __init__(self, *, admitted: bool = False, of_ops: bool = False) -> None:
        self.fake = Fake()
        application = RepositoryApplication(self.fake, admitted=admitted, of_ops=of_ops)
        self.router = Router(application.routes(), max_message_bytes=1 << 20)

    def begin(
        self, exchange: RecordedExchange, body: bytes, address: str = "127.0.0.1"
    ) -> RecordedExchange:
        exchange.peer = Peer(address, 1, None)
        receiver = self.router.begin(exchange)
        if receiver is not None:
            receiver.data(exchange, body, True)
        return exchange

    async def http(
        self, path: str, body: bytes = b"", method: str = "POST", **more: str
    ) -> tuple[int, Any]:
        head = post(f"/v2/repository{path}", method=method, length=len(body))
        exchange = self.begin(RecordedExchange(head), body, **more)
        while not exchange.answered:
            await asyncio.sleep(0)
        status, _, answer, _ = exchange.replies[0]
        return status, json.loads(answer)

    async def grpc(self, name: str, address: str = "127.0.0.1", **fields: Any) -> Any:
        request, response = inference_messages(name)
        head = grpc_head(f"/inference.GRPCInferenceService/{name}")
        message = encode_message(request(**fields).SerializeToString())
        exchange = self.begin(RecordedExchange(head), message, address)
        while not exchange.answered:
            await asyncio.sleep(0)
        _, headers, answer, _ = exchange.replies[0]
        found = dict((*headers, *exchange.trailers))
        if found[b"grpc-status"] != b"0":
            return int(found[b"grpc-status"]), found[b"grpc-message"].decode()
        return MessageToDict(response.FromString(answer[5:]))


@pytest.fixture
async def site() -> Site:
    return Site()


async def test_the_index_has_all_versions_or_the_ready_ones(site: Site) -> None:
    for path in ("/index", "/mine/index"):
        assert await site.http(path) == (200, ROWS)
    assert await site.http("/index", method="GET") == (200, ROWS)
    assert await site.http("/index", b'{"ready": true}') == (200, ROWS[:1])
    found = await site.grpc("RepositoryIndex")
    assert found["models"][1] == ROWS[1]
    found = await site.grpc("RepositoryIndex", ready=True)
    assert [each["version"] for each in found["models"]] == ["1"]


async def test_the_model_of_an_op_may_be_called_with_its_graph() -> None:
    site = Site(of_ops=True)
    for start in ("", "/mine"):
        await site.http(f"{start}/models/read/rec/load")
        await site.http(f"{start}/models/read/rec/unload")
        await site.http(f"{start}/models/rec/load")
    await site.http("/models/read/rec/update", b'{"rollback": true}')
    told = [("load", "read/rec", {}), ("unload", "read/rec", False), ("load", "rec", {})]
    assert site.fake.told == [*told, *told, ("update", "read/rec", {"rollback": True})]


async def test_a_model_is_loaded_with_overrides(site: Site) -> None:
    text = base64.b64encode(b"\x00onnx").decode()
    body = {"parameters": {"config": "{}", "file:1/model.onnx": text}}
    assert await site.http("/models/a%20b/load", json.dumps(body).encode()) == (200, {})
    assert await site.http("/mine/models/m/load") == (200, {})
    parameters = {
        "config": {"string_param": "{}"},
        "file:1/model.onnx": {"bytes_param": b"\x00onnx"},
    }
    found = await site.grpc("RepositoryModelLoad", model_name="a b", parameters=parameters)
    assert found == {}
    whole = ("load", "a b", {"config": "{}", "file:1/model.onnx": b"\x00onnx"})
    assert site.fake.told == [whole, ("load", "m", {}), whole]


async def test_a_model_is_unloaded(site: Site) -> None:
    body = b'{"parameters": {"unload_dependents": true}}'
    assert await site.http("/models/m/unload", body) == (200, {})
    assert await site.http("/models/m/unload", b"") == (200, {})
    also = {"unload_dependents": {"bool_param": True}}
    assert await site.grpc("RepositoryModelUnload", model_name="m", parameters=also) == {}
    assert site.fake.told == [("unload", "m", each) for each in (True, False, True)]


async def test_a_model_is_updated(site: Site) -> None:
    body = b'{"labels": {"canary": "4"}}'
    assert await site.http("/models/m/update", body) == (200, {})
    assert site.fake.told == [("update", "m", {"labels": {"canary": "4"}})]


async def test_a_load_that_fails_says_why(site: Site) -> None:
    text = "failed to load 'broken': it is truncated"
    assert await site.http("/models/broken/load") == (500, {"error": text})
    assert await site.grpc("RepositoryModelLoad", model_name="broken") == (13, text)


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/index", b"{", "the body is no JSON"),
        ("/index", b"[]", "the body is no JSON object"),
        ("/index", b'{"ready": 1}', "ready must be true or false"),
        ("/models/m/load", b'{"parameters": []}', "parameters must be an object"),
        ("/models/m/load", b'{"parameters": {"config": {}}}', "parameter 'config' must be a text"),
        ("/models/m/load", b'{"parameters": {"file:1/m": "%"}}', "parameter 'file:1/m' is no base"),
        ("/models/m/load", b'{"parameters": {"x": "y"}}', "a load has no parameter 'x'"),
        ("/models/m/load", b'{"parameters": {"1/m": 1}}', "a load has no parameter '1/m': write"),
        ("/models/m/unload", b'{"parameters": {"x": "y"}}', "an unload has no parameter 'x'"),
        (
            "/models/m/unload",
            b'{"parameters": {"unload_dependents": "yes"}}',
            "unload_dependents must be true or false",
        ),
    ],
)
async def test_bad_bodies_are_refused(site: Site, path: str, body: bytes, text: str) -> None:
    status, answer = await site.http(path, body)
    assert status == 400
    assert text in answer["error"]
    assert site.fake.told == []


async def test_bad_messages_are_refused(site: Site) -> None:
    wrong = {"file:1/m": {"string_param": "text"}}
    found = await site.grpc("RepositoryModelLoad", model_name="m", parameters=wrong)
    assert found == (3, "parameter 'file:1/m' must be bytes")
    wrong = {"config": {"bool_param": True}}
    found = await site.grpc("RepositoryModelLoad", model_name="m", parameters=wrong)
    assert found == (3, "parameter 'config' must be a text")
    assert site.fake.told == []


async def test_callers_on_other_machines_are_refused_unless_they_were_admitted(site: Site) -> None:
    text = "the model repository is for this machine only, or for callers with a key"
    for path in ("/index", "/models/m/load", "/models/m/unload", "/models/m/update"):
        assert await site.http(path, address="10.0.0.1") == (403, {"error": text})
    for name in ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"):
        assert await site.grpc(name, address="10.0.0.1") == (7, text)
    assert site.fake.told == []
    admitted = Site(admitted=True)
    assert await admitted.http("/models/m/load", address="10.0.0.1") == (200, {})


async def test_what_a_caller_began_is_done_though_he_leaves(site: Site) -> None:
    site.fake.may_go_on.clear()
    exchange = RecordedExchange(post("/v2/repository/models/m/load", length=0))
    site.begin(exchange, b"")
    for _ in range(5):
        await asyncio.sleep(0)
    assert exchange.on_gone is not None
    exchange.on_gone()
    for _ in range(5):
        await asyncio.sleep(0)
    assert site.fake.told == []
    site.fake.may_go_on.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert site.fake.told == [("load", "m", {})]
