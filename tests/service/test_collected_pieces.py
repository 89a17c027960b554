"""Callers that do not stream get the pieces of an answer at once, by every protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.services.process import running

pytestmark = pytest.mark.real

SCRIPT = """
from collections.abc import Iterator
from typing import Annotated

import numpy as np
from penstock import App, Array, Service, Signature, op, run

@op()
def rows(feed):
    for n in range(int(np.asarray(feed["x"], int).sum())):
        yield {"row": np.full(2, n, np.float32)}

signature = Signature(inputs={"x": ("INT64", [-1])}, outputs={"row": ("FP32", [2])})
app = App("typed")

@app.post("/growing")
def growing(upto: int) -> Iterator[Annotated[np.ndarray, Array("float32", (None,))]]:
    for n in range(upto):
        yield np.zeros(n, np.float32)

run(Service("rows", rows, signature=signature), app)
"""


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    script = tmp_path_factory.mktemp("collected") / "service.py"
    script.write_text(SCRIPT)
    with running(script) as server, httpx.Client(base_url=server.http_url, timeout=30) as http:
        yield http


def infer(http: httpx.Client, model: str, name: str, value: int, **more: Any) -> httpx.Response:
    tensor = {"name": name, "datatype": "INT64", "shape": [1], "data": [value]}
    return http.post(f"/v2/models/{model}/infer", json={"inputs": [tensor], **more})


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_graph_s_pieces_are_one_tensor_with_an_axis_of_pieces(
    http: httpx.Client, count: int
) -> None:
    (row,) = infer(http, "rows", "x", count).json()["outputs"]
    values = [float(n) for n in range(count) for _ in range(2)]
    assert row == {"name": "row", "datatype": "FP32", "shape": [count, 2], "data": values}


def test_the_pipeline_protocol_gets_them_as_one_array(http: httpx.Client) -> None:
    body = {"key": ["x"], "value": ["2"]}
    answer = http.post("/rows/prediction", json=body).json()
    assert answer["value"] == ["array([[0., 0.],\n       [1., 1.]], dtype=float32)"], answer


def test_pieces_of_different_shapes_are_refused(http: httpx.Client) -> None:
    answer = infer(http, "growing", "upto", 3)
    assert answer.status_code == 400
    assert "the pieces of the output 'result' are not one tensor" in answer.json()["error"]
    assert infer(http, "growing", "upto", 1).json()["outputs"][0]["shape"] == [1, 0]


@pytest.mark.parametrize("end", ["generate", "generate_stream"])
def test_a_model_s_description_has_an_example_for_generate_that_works(
    http: httpx.Client, end: str
) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    content = paths[f"/v2/models/rows/{end}"]["post"]["requestBody"]["content"]["application/json"]
    assert content["schema"]["required"] == ["x"]
    (example,) = content["examples"].values()
    answer = http.post(f"/v2/models/rows/{end}", json=example["value"])
    assert answer.status_code == 200, answer.text
    responses = paths[f"/v2/models/rows/{end}"]["post"]["responses"]["200"]["content"]
    assert answer.headers["content-type"] in responses
