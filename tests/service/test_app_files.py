"""Pictures, files and bytes of typed functions, through a whole service."""

from __future__ import annotations

import base64
import io
import subprocess
import threading
from collections.abc import Iterator
from typing import Annotated, Any

import httpx
import numpy as np
import pytest
from PIL import Image as Pillow
from pydantic import AfterValidator, BaseModel

from penstock import App, Image, op
from penstock.testing import client
from penstock.typed.decoded import DECODED

threads: dict[str, int] = {}


def _seen(picture: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    threads["decoded"] = threading.get_ident()
    return picture


Picture = Annotated[np.ndarray, Image(), AfterValidator(_seen)]


class Shot(BaseModel):
    picture: Picture


class Framed(BaseModel):
    shot: Shot


@op()
def mean(request: dict[str, Any]) -> dict[str, Any]:
    return {"mean": float(request["shot"]["picture"].mean())}


def _png(size: tuple[int, int] = (4, 2)) -> bytes:
    out = io.BytesIO()
    Pillow.new("RGB", size, (90, 90, 90)).save(out, "PNG")
    return out.getvalue()


def _app() -> App:
    app = App("files", max_inflight_bytes=2_000_000)

    @app.route("/later")
    async def later(picture: Picture) -> float:
        threads["loop"] = threading.get_ident()
        return float(picture.mean())

    app.graph("/framed", mean, request=Framed)
    return app


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with client(_app()) as http:
        yield http


PNG = {"content-type": "image/png"}


def test_a_coroutines_picture_is_not_decoded_on_the_loop(http: httpx.Client) -> None:
    assert http.post("/later", content=_png(), headers=PNG).json() == 90
    assert threads["decoded"] != threads["loop"]


def test_a_small_body_with_a_picture_for_a_graph_is_not_decoded_on_the_loop(
    http: httpx.Client,
) -> None:
    http.post("/later", content=_png(), headers=PNG)  # notes the loop
    body = {"shot": {"picture": base64.b64encode(_png()).decode()}}
    assert http.post("/framed", json=body).json() == {"mean": 90}
    assert threads["decoded"] != threads["loop"]


@pytest.mark.parametrize("path", ["/later", "/framed"])
def test_a_picture_beyond_the_bytes_in_flight_is_refused_and_one_that_waits_is_busy(
    http: httpx.Client, path: str
) -> None:
    def send(picture: bytes) -> httpx.Response:
        text = base64.b64encode(picture).decode()
        body = {"picture": text} if path == "/later" else {"shot": {"picture": text}}
        return http.post(path, json=body)

    refused = send(_png((500, 400)))
    assert (refused.status_code, refused.json()["error"]) == (422, "invalid_input")
    assert "max_inflight_bytes" in refused.json()["message"]
    with DECODED.decoding(1_990_000):
        busy = send(_png((100, 100)))
    assert (busy.status_code, busy.json()["error"]) == (429, "busy")
    assert send(_png((100, 100))).status_code == 200


def test_postscript_is_refused_and_starts_no_program(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", pytest.fail)
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n%%EOF\n"
    answer = http.post("/later", content=eps, headers={"content-type": "application/postscript"})
    assert answer.status_code == 422
    assert "it is none of PNG, JPEG" in answer.json()["message"]
