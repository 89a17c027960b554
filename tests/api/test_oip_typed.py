"""Typed functions as models of the Open Inference Protocol."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from io import BytesIO
from typing import Annotated, Any, Literal

import httpx
import numpy as np
import pytest
from PIL import Image as Pillow
from pydantic import BaseModel, Field

from penstock import App, Array, HttpError, Image, Response
from penstock.testing import client


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Flower(BaseModel):
    size: float = Field(gt=0)
    color: Color
    kind: Literal["rose", "tulip"] = "rose"


class Species(BaseModel):
    name: str
    scores: Annotated[np.ndarray, Array("float32", (None,))]
    count: int


class Nested(BaseModel):
    flower: Flower


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    app = App("typed")

    @app.route("/species", batch=4)
    def species(flowers: list[Flower]) -> list[Species]:
        return [
            Species(
                name=f"{each.color.value} {each.kind}",
                scores=np.array([each.size, 1], np.float32),
                count=2,
            )
            for each in flowers
        ]

    @app.route("/sums")
    def sums(
        x: Annotated[np.ndarray, Array("float32", (None, 2))],
        times: int,
        on: bool,
        words: list[str],
    ) -> Response[list[float]]:
        if times < 0:
            raise HttpError(409, "no")
        if not on:
            return Response([], status=200)
        return Response([float(each) * times for each in x.sum(axis=1)] + [float(len(words))])

    @app.route("/size")
    def size(data: bytes, picture: Annotated[np.ndarray, Image()]) -> bytes:
        return data + b"%d" % picture.shape[0]

    @app.route("/nested")
    def nested(item: Nested) -> int:
        return 1

    @app.route("/greeting")
    def greeting(
        name: str, times: int = 2, end: str | None = None, marks: Annotated[bytes, "any"] = b"!"
    ) -> str:
        return f"hello {name}" * times + (end or "") + marks.decode()

    @app.get("/found")
    def found(x: int) -> int:
        return x

    @app.route("/anything")
    def anything(x: int):  # type: ignore[no-untyped-def]  # without a type
        return x

    with client(app) as http:
        yield http


def tensor(name: str, datatype: str, data: list[Any], shape: list[int] | None = None) -> Any:
    return {"name": name, "datatype": datatype, "shape": shape or [len(data)], "data": data}


def infer(http: httpx.Client, model: str, *inputs: Any) -> httpx.Response:
    return http.post(f"/v2/models/{model}/infer", json={"inputs": [*inputs]})


def test_the_metadata_has_a_tensor_for_each_member(http: httpx.Client) -> None:
    found = http.get("/v2/models/species").json()
    assert found["inputs"] == [
        {"name": "size", "datatype": "FP64", "shape": [1]},
        {"name": "color", "datatype": "BYTES", "shape": [1]},
        {"name": "kind", "datatype": "BYTES", "shape": [1]},
    ]
    assert found["outputs"] == [
        {"name": "name", "datatype": "BYTES", "shape": [1]},
        {"name": "scores", "datatype": "FP32", "shape": [-1]},
        {"name": "count", "datatype": "INT64", "shape": [1]},
    ]
    assert http.get("/v2/models/species/ready").json()["ready"]
    outputs = http.get("/v2/models/sums").json()["outputs"]
    assert outputs == [{"name": "result", "datatype": "FP64", "shape": [-1]}]


def test_a_request_of_tensors_is_answered_with_tensors(http: httpx.Client) -> None:
    answer = infer(
        http,
        "species",
        tensor("size", "FP64", [1.5]),
        tensor("color", "BYTES", ["red"]),
        tensor("kind", "BYTES", ["tulip"]),
    )
    assert answer.status_code == 200, answer.text
    found = {each["name"]: each["data"] for each in answer.json()["outputs"]}
    assert found == {"name": ["red tulip"], "scores": [1.5, 1.0], "count": [2]}
    answer = infer(http, "sums", *sums_of(times=3))
    assert answer.json()["outputs"] == [
        {"name": "result", "datatype": "FP64", "shape": [3], "data": [9.0, 21.0, 1.0]}
    ]
    assert infer(http, "sums", *sums_of(on=False)).json()["outputs"][0]["shape"] == [0]


def sums_of(times: int = 1, *, on: bool = True) -> list[Any]:
    return [
        tensor("x", "FP32", [1, 2, 3, 4], [2, 2]),
        tensor("times", "INT64", [times]),
        tensor("on", "BOOL", [on]),
        tensor("words", "BYTES", ["ä"]),
    ]


def test_bytes_are_sent_as_they_are(http: httpx.Client) -> None:
    file = BytesIO()
    Pillow.new("RGB", (3, 5)).save(file, "BMP")
    picture = file.getvalue()
    json = (
        b'{"inputs": [{"name": "data", "datatype": "BYTES", "shape": [1], "data": ["aGk="]},'
        b' {"name": "picture", "datatype": "BYTES", "shape": [1],'
        b' "parameters": {"binary_data_size": %d}}]}' % (len(picture) + 4)
    )
    answer = http.post(
        "/v2/models/size/infer",
        content=json + len(picture).to_bytes(4, "little") + picture,
        headers={"Inference-Header-Content-Length": str(len(json))},
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["outputs"][0]["data"] == ["aGk=5"]


@pytest.mark.parametrize(
    ("model", "inputs", "status", "text"),
    [
        ("sums", sums_of()[:3], 400, "the model takes the inputs"),
        ("sums", [tensor("x", "FP64", [1, 2], [1, 2]), *sums_of()[1:]], 400, "is FP32, got FP64"),
        ("sums", [tensor("x", "FP32", [1, 2]), *sums_of()[1:]], 400, "has the shape"),
        ("sums", sums_of(times=-1), 409, "no"),
        ("nested", [tensor("flower", "BYTES", ["{}"])], 404, "'flower' (Flower) has no tensor"),
        ("found", [tensor("x", "INT64", [1])], 404, "has parameters outside of the body"),
        ("anything", [tensor("x", "INT64", [1])], 404, "'result' (Any) has no tensor"),
        (
            "species",
            [
                tensor("size", "FP64", [-1]),
                tensor("color", "BYTES", ["green"]),
                tensor("kind", "BYTES", ["rose"]),
            ],
            422,
            "greater than 0",
        ),
    ],
)
def test_what_does_not_fit_is_refused_and_says_why(
    http: httpx.Client, model: str, inputs: list[Any], status: int, text: str
) -> None:
    answer = infer(http, model, *inputs)
    assert (answer.status_code, text in answer.json()["error"]) == (status, True), answer.text


def test_an_input_with_a_default_may_be_left_out(http: httpx.Client) -> None:
    name = tensor("name", "BYTES", ["a"])
    answer = infer(http, "greeting", name)
    assert answer.json()["outputs"][0]["data"] == ["hello ahello a!"], answer.text
    others = tensor("times", "INT64", [1]), tensor("end", "BYTES", ["."])
    answer = infer(http, "greeting", name, *others, tensor("marks", "BYTES", ["?"]))
    assert answer.json()["outputs"][0]["data"] == ["hello a.?"]
    inputs = http.get("/v2/models/greeting/config").json()["input"]
    assert [each.get("optional", False) for each in inputs] == [False, True, True, True]
    assert http.get("/v2/models/greeting").json()["inputs"][2]["datatype"] == "BYTES"
    for wrong in (others, (name, tensor("naming", "BYTES", ["b"]))):
        refused = infer(http, "greeting", *wrong)
        assert refused.status_code == 400
        assert "optional are ['end', 'marks', 'times']" in refused.json()["error"]
