"""NaN, infinities and large integers through a whole service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

from penstock import App, Array, Model, op
from penstock.testing import client
from tests.kit.onnx_models import scale

DATA = '[[1.5, NaN, "Infinity"], [null, -Infinity, 2]]'
TWICE = [[3.0, None, "Infinity"], [None, "-Infinity", 4.0]]


def strictly(text: str) -> Any:
    """Parse JSON without Python's additions."""
    return json.loads(text, parse_constant=pytest.fail)


def test_a_model_s_routes_take_each_other_s_answers(tmp_path: Path) -> None:
    app = App("numbers")
    app.graph("/m", Model(scale(tmp_path / "m.onnx", 2.0)), name="m")
    with client(app) as http:
        answer = http.post("/m", content=f'{{"x": {DATA}}}')
        assert answer.status_code == 200, answer.text
        assert strictly(answer.text)["y"] == TWICE
        again = http.post("/m", json={"x": strictly(answer.text)["y"]})
        assert strictly(again.text)["y"] == [[6.0, None, "Infinity"], [None, "-Infinity", 8.0]]
        text = http.post("/m", json={"x": DATA})  # as old clients send lists, in a text
        assert strictly(text.text)["y"] == TWICE
        refused = http.post("/m", json={"x": [["a", 1, 2]]})
        assert (refused.status_code, refused.json()["error"]) == (400, "input_mismatch")


def test_functions_get_exact_integers_and_their_answers_are_sent_or_refused() -> None:
    @op()
    def echo(feed: dict[str, Any]) -> dict[str, Any]:
        return {**feed, "big": np.array([1, np.inf]), "turned": np.arange(2).astype(">i8")}

    app = App("numbers")
    app.graph("/echo", echo, name="echo")

    @app.route("/sum")
    def total(x: Annotated[np.ndarray, Array("int64", (None,))]) -> int:
        return int(x.sum())

    with client(app) as http:
        answer = http.post("/echo", content='{"x": 9007199254740993, "y": NaN}').text
        assert strictly(answer) == {
            "x": 9007199254740993,
            "y": None,
            "big": [1.0, "Infinity"],
            "turned": [0, 1],
        }
        refused = http.post("/echo", json={"x": 2**70})
        assert (refused.status_code, refused.json()["error"]) == (500, "wrong_type")
        assert http.post("/sum", content='{"x": [9007199254740993, 0.0]}').json() == 2**53 + 1
        assert http.post("/sum", content='{"x": [9007199254740994.0]}').status_code == 422
