"""The OpenAPI description of a service: each route with its requests and replies, and its page."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from typing import Annotated, Any

import httpx
import numpy as np
import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from penstock import App
from penstock.api.descriptions import (
    engine_errors,
    graph_answer,
    graph_request,
    typed_request,
)
from penstock.api.errors import http_status
from penstock.api.http import Http
from penstock.api.openapi import API_KEY, BEARER, document
from penstock.api.operation import Answer
from penstock.api.plain import PlainApplication, PlainRoute
from penstock.engine.engine import Engine
from penstock.engine.graph import ServedGraph
from penstock.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidInput,
    NumberedError,
    PermissionDenied,
    RequestError,
    Unauthenticated,
)
from penstock.ops.short import op
from penstock.protocols.status import STATUS
from penstock.tensor import Signature, TensorSpec
from penstock.testing import ManualClock, client
from penstock.typed.arrays import Array, Image
from penstock.typed.signature import Signature as TypedSignature
from tests.graph.test_dag import plan_of


class Flower(BaseModel):
    """What grows."""

    model_config = {"json_schema_extra": {"example": {"size": 1.5}}}
    size: float
    parts: list[Flower] = []


class Other(TypedDict):
    name: str


def other_flower() -> type[BaseModel]:
    class Flower(BaseModel):
        color: str

    return Flower


Red = other_flower()


@op()
def double(x: list[float]) -> dict[str, Any]:
    return {"y": x + x}


def make_app(**config: Any) -> App:
    app = App("garden", **config)

    @app.route("/grow", batch=4)
    def grow(flowers: list[Flower]) -> list[Flower]:
        """Make it larger.

        By `one`.
        """
        return flowers

    @app.route(
        "/paint",
        examples=[({"flower": {"color": "red"}, "times": 2}, "red"), {"flower": {"color": "b"}}],
    )
    def paint(flower: Red, times: int = 1) -> str:  # type: ignore[valid-type]
        return "red"

    @app.route("/look")
    def look(picture: Annotated[np.ndarray, Image()], top: int = 5) -> dict[str, float]:
        return {}

    @app.route("/mean")
    def mean(x: Annotated[np.ndarray, Array("float32", (None, 3))], data: bytes) -> float:
        return 0.0

    app.graph("/double", double, request=Other)
    return app


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with client(make_app()) as http:
        yield http


@pytest.fixture(scope="module")
def description(http: httpx.Client) -> dict[str, Any]:
    answer = http.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    document: dict[str, Any] = answer.json()
    return document


def at(description: dict[str, Any], reference: str) -> Any:
    for key in reference.removeprefix("#/").split("/"):
        description = description[key]
    return description


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def content(description: dict[str, Any], path: str) -> dict[str, Any]:
    media_types: dict[str, Any] = description["paths"][path]["post"]["requestBody"]["content"]
    return media_types


def test_every_route_is_described(description: dict[str, Any]) -> None:
    assert description["openapi"].startswith("3.1")
    assert description["info"]["title"] == "garden"
    typed = ["/grow", "/paint", "/look", "/mean", "/double"]
    others = ["/{name}/{method}", "/livez", "/readyz", "/health/deep", "/openapi.json", "/docs"]
    assert [path for path in description["paths"] if path in typed + others] == typed + others
    for item in description["paths"].values():
        for operation in item.values():
            assert operation["summary"]
            assert "200" in operation["responses"]
    grow = description["paths"]["/grow"]["post"]
    assert (grow["summary"], grow["description"]) == ("Make it larger.", "By `one`.")


def test_query_and_path_parameters_are_described() -> None:
    number = {"type": "integer", "minimum": 1, "default": 5}
    route = Http("GET", "/parts/{part}", query={"number": number})
    assert document([route], "garden")["paths"]["/parts/{part}"]["get"]["parameters"] == [
        {"name": "part", "in": "path", "required": True, "schema": {"type": "string"}},
        {"name": "number", "in": "query", "schema": number},
    ]


def test_all_references_can_be_resolved(description: dict[str, Any]) -> None:
    all_references = set(references(description))
    assert all_references
    for each in all_references:
        assert isinstance(at(description, each), dict), each


def test_types_with_the_same_name_get_different_schema_names(description: dict[str, Any]) -> None:
    schemas = description["components"]["schemas"]
    grown = at(description, content(description, "/grow")["application/json"]["schema"]["$ref"])
    assert grown["properties"]["parts"]["items"]["$ref"] == "#/components/schemas/Flower"
    painted = at(description, content(description, "/paint")["application/json"]["schema"]["$ref"])
    assert painted["properties"]["flower"]["$ref"] == "#/components/schemas/Flower2"
    assert "size" in schemas["Flower"]["properties"]
    assert "color" in schemas["Flower2"]["properties"]


def test_files_may_be_sent_in_forms_or_as_the_body(description: dict[str, Any]) -> None:
    look = content(description, "/look")
    assert list(look) == [
        "application/json",
        "application/msgpack",
        "multipart/form-data",
        "image/*",
    ]
    form = at(description, look["multipart/form-data"]["schema"]["$ref"])
    assert form["properties"]["picture"]["format"] == "binary"
    assert form["properties"]["top"]["type"] == "integer"
    mean = content(description, "/mean")
    assert "application/octet-stream" not in mean  # it needs two values
    form = at(description, mean["multipart/form-data"]["schema"]["$ref"])
    assert [each["format"] for each in form["properties"].values()] == ["binary", "binary"]


def _looks(pictures: list[Annotated[np.ndarray, Image()]], sound: bytes | None = None) -> int:
    return 0


def test_optional_files_and_lists_of_files_are_files_of_forms() -> None:
    signature = TypedSignature(_looks, batched=False)
    found = typed_request(signature.request, signature.files)
    file = {"type": "string", "format": "binary", "contentMediaType": "image/*"}
    form = found["multipart/form-data"]["properties"]
    assert form["pictures"] == {"title": "Pictures", "type": "array", "items": file}
    sound = {**file, "title": "Sound", "contentMediaType": "application/octet-stream"}
    assert form["sound"] == sound
    assert "image/*" in found


def test_examples_are_in_the_descriptions_of_body_and_reply(description: dict[str, Any]) -> None:
    given = content(description, "/paint")["application/json"]["examples"]
    assert given["1"]["value"] == {"flower": {"color": "red"}, "times": 2}
    assert given["2"]["value"] == {"flower": {"color": "b"}}
    good = description["paths"]["/paint"]["post"]["responses"]["200"]
    assert good["content"]["application/json"]["examples"] == {"1": {"value": "red"}}
    of_the_model = content(description, "/grow")["application/json"]["examples"]
    assert of_the_model == {"1": {"value": {"size": 1.5}}}


def test_every_error_of_a_request_has_a_described_status() -> None:
    described = engine_errors()
    # Those of an admission of callers are described where a service has one.
    of_admission = (Unauthenticated, PermissionDenied)
    for cls in STATUS:
        if issubclass(cls, (Cancelled, *of_admission)):
            continue
        error: RequestError
        if issubclass(cls, NumberedError):
            error = cls(1, "no")
        else:
            error = cls([]) if issubclass(cls, InvalidInput) else cls("no")
        assert http_status(error) in described, cls
    assert http_status(DeadlineExceeded("no", by_client=True)) in described


def test_a_graph_with_a_model_is_described_by_its_tensors() -> None:
    signature = Signature(
        inputs=(
            TensorSpec(name="a", alias="x", dtype=np.dtype("float32"), shape=(None, 3)),
            TensorSpec(name="b", alias="text", dtype=np.dtype(object), shape=(None,)),
            TensorSpec(name="c", alias="any", dtype=np.dtype("int64"), shape=None),
        ),
        outputs=(TensorSpec(name="d", alias="ok", dtype=np.dtype(bool), shape=(1,)),),
    )
    schema = graph_request(signature)["application/json"]
    assert schema["required"] == ["x", "text", "any"]
    rows = schema["properties"]["x"]
    assert (rows["items"]["minItems"], rows["items"]["maxItems"]) == (3, 3)
    assert {"type": "null"} in rows["items"]["items"]["anyOf"]
    assert schema["properties"]["text"]["items"] == {"type": "string"}
    assert schema["properties"]["any"] == {"description": "array of int64, of any shape"}
    answer = graph_answer(signature)["application/json"]["properties"]["ok"]
    assert (answer["items"], answer["minItems"]) == ({"type": "boolean"}, 1)


def test_the_pieces_of_an_answer_are_described_under_each_of_its_forms() -> None:
    app = App("garden")

    @app.route("/watch")
    def watch(times: int) -> Iterator[Flower]:
        yield Flower(size=times)

    with client(app) as http:
        found = http.get("/openapi.json").json()
    answer = found["paths"]["/watch"]["post"]["responses"]["200"]["content"]
    flower = {"$ref": "#/components/schemas/Flower"}
    event = answer["text/event-stream"]["x-oai-itemSchema"]
    data = event["properties"]["data"]
    assert event["required"] == ["data"]
    assert (data["contentMediaType"], data["contentSchema"]) == ("application/json", flower)
    assert answer["application/x-ndjson"]["x-oai-itemSchema"] == flower
    assert answer["application/json"]["schema"]["items"] == flower
    assert "x-oai" not in str([each["schema"] for each in answer.values()])
    assert all(at(found, each) for each in references(found))


def test_a_pattern_is_replaced_by_the_routes_that_it_lists() -> None:
    good = {200: Answer(text="Yes.")}

    def route(path: str, **more: Any) -> Http:
        return Http("POST", path, lambda call, body: None, answers=good, **more)

    pattern = route(
        "/{name}",
        summary="any",
        listed=lambda: [route("/a", summary="one of them"), route("/taken", summary="never asked")],
    )
    other = Http("GET", "/taken", lambda call, body: None, answers=good, summary="by another verb")
    paths = document([pattern, other], "t")["paths"]
    assert {path: list(item) for path, item in paths.items()} == {"/taken": ["get"], "/a": ["post"]}


def test_the_page_may_only_run_its_own_scripts(http: httpx.Client) -> None:
    page = http.get("/docs")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag, name in (("script", "script-src"), ("style", "style-src")):
        texts = re.findall(f"<{tag}>(.*?)</{tag}>", page.text, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()) for each in texts]
        allowed = " ".join(f"'sha256-{each.decode()}'" for each in digests)
        assert texts
        assert f" {name} {allowed};" in policy
    assert not re.search(r'(src|href)="(https?:)?//', page.text)
    assert " style=" not in page.text


def test_description_and_page_can_be_disabled() -> None:
    with client(make_app(docs=False)) as http:
        assert http.get("/docs").status_code == 404  # as any unknown path
        assert http.get("/openapi.json").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "error"),
    [
        ("GET", "/grow", {}, 405, "method_not_allowed"),
        ("POST", "/grow", {"penstock-timeout": "soon"}, 400, "undecodable"),
        ("POST", "/%zz", {}, 400, "undecodable"),
        ("POST", "/grow", {"content-encoding": "br"}, 415, "unknown_encoding"),
        ("POST", "/docs", {}, 405, "method_not_allowed"),
    ],
)
def test_requests_refused_before_their_handler_get_an_error_of_the_common_form(
    http: httpx.Client, method: str, path: str, headers: dict[str, str], status: int, error: str
) -> None:
    answer = http.request(method, path, headers=headers, content=b"{}")
    assert (answer.status_code, answer.json()["error"]) == (status, error)


def test_the_pipeline_s_routes_keep_the_gateway_s_error_form(http: httpx.Client) -> None:
    refused = http.post("/grow/prediction", headers={"penstock-timeout": "soon"}, content=b"{}")
    assert (refused.status_code, refused.json()["code"]) == (400, 3)
    assert http.get("/grow/prediction").text == "Method Not Allowed\n"


class Wide(BaseModel):
    key: int = Field(default=2**64, le=2**70)
    data: bytes = b"\xff"


def test_defaults_and_limits_are_those_of_bodies() -> None:
    app = App("wide")

    @app.route("/wide")
    def wide(it: Wide) -> Wide:
        return it

    @app.route("/plain")
    def plain(key: int = 2**64, data: bytes = b"abc") -> int:
        return key

    with client(app) as http:
        schemas = http.get("/openapi.json").json()["components"]["schemas"]
        sent = http.post("/wide", json={}).json()
    members = schemas["Wide"]["properties"]
    assert (members["key"]["default"], members["key"]["maximum"]) == (2**64, 2**70)
    assert {name: member["default"] for name, member in members.items()} == sent
    assert schemas["PlainRequest"]["properties"]["data"]["default"] == "YWJj"


def test_a_service_that_asks_who_calls_says_how() -> None:
    routes = [
        Http("GET", "/a", admin=True),
        Http("GET", "/b"),
        Http("GET", "/c", open=True),
    ]
    made = document(routes, "t", {**BEARER, **API_KEY}, ["/b"])
    assert made["components"]["securitySchemes"] == {**BEARER, **API_KEY}
    assert made["security"] == [{"bearer": []}, {"key": []}]
    operations = {path: item["get"] for path, item in made["paths"].items()}
    assert {path for path, each in operations.items() if each.get("security") == []} == {"/b", "/c"}
    assert {"401", "403", "429"} <= operations["/a"]["responses"].keys()
    assert "security" not in document(routes, "t")


def test_a_path_of_a_graph_is_described_as_the_version_that_serves() -> None:
    engine = Engine(ManualClock())
    application = PlainApplication(engine, [PlainRoute(path="/run", graph="a")])

    def add(version: str, name: str) -> None:
        plan = plan_of({"op": ["@"]}, "op")
        signature = Signature(inputs={name: ("FP32", [3])})
        graph = ServedGraph(engine, plan, "a", version, declared=lambda: signature)
        engine.add(graph, default=True)

    def inputs() -> list[str]:
        found = document([*routes], "")["paths"]["/run"]["post"]["requestBody"]["content"]
        return [*found["application/json"]["schema"]["properties"]]

    add("1", "x")
    routes = [each for each in application.routes() if isinstance(each, Http)]
    assert inputs() == ["x"]
    add("2", "y")
    assert inputs() == ["y"]
