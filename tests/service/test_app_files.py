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
import ormsgpack
import pytest
from PIL import Image as Pillow
from pydantic import AfterValidator, BaseModel

from penstock import App, Image, Media, op
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


class Named(BaseModel):
    name: str
    picture: Annotated[np.ndarray, Image()]


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

    @app.route("/turned")
    def turned(picture: Picture) -> Annotated[np.ndarray, Image()]:
        return np.rot90(picture)

    @app.route("/turned_together", batch=4)
    def turned_together(picture: list[Picture]) -> list[Annotated[np.ndarray, Image()]]:
        return [Pillow.fromarray(np.rot90(each)) for each in picture]  # type: ignore[misc]

    @app.route("/turned_later")
    async def turned_later(picture: Picture) -> Annotated[np.ndarray, Image()]:
        return np.rot90(picture)

    @app.route("/named")
    def named(picture: Picture) -> Named:
        return Named(name="a", picture=picture)

    @app.route("/no_picture")
    def no_picture(x: int) -> Annotated[np.ndarray, Image()]:
        return np.zeros((2, 2, 3))

    @app.route("/speak")
    def speak(text: str) -> Annotated[bytes, Media("audio/wav")]:
        return b"RIFF" + text.encode()

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


def _opened(data: bytes) -> Pillow.Image:
    return Pillow.open(io.BytesIO(data))


@pytest.mark.parametrize("path", ["/turned", "/turned_together", "/turned_later"])
@pytest.mark.parametrize(
    ("accept", "kind", "form"),
    [
        ("*/*", "image/png", "PNG"),
        ("image/jpeg", "image/jpeg", "JPEG"),
        ("image/webp, */*;q=0.8", "image/webp", "WEBP"),
        ("image/avif, image/*", "image/png", "PNG"),
    ],
)
def test_an_image_is_answered_in_an_accepted_format(
    http: httpx.Client, path: str, accept: str, kind: str, form: str
) -> None:
    answer = http.post(path, content=_png(), headers={**PNG, "accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
    assert answer.headers["x-content-type-options"] == "nosniff"
    image = _opened(answer.content)
    assert (image.format, image.size) == (form, (2, 4))


def test_an_image_is_base64_in_json_and_bytes_in_msgpack(http: httpx.Client) -> None:
    headers = {**PNG, "accept": "application/json"}
    whole = http.post("/turned", content=_png(), headers=headers).json()
    assert _opened(base64.b64decode(whole, validate=True)).size == (2, 4)
    assert http.post("/turned", json={"picture": whole}).headers["content-type"] == "image/png"
    member = http.post("/named", content=_png(), headers=headers).json()
    assert _opened(base64.b64decode(member["picture"], validate=True)).format == "PNG"
    headers["accept"] = "application/msgpack"
    for path in ("/turned", "/named"):
        found = ormsgpack.unpackb(http.post(path, content=_png(), headers=headers).content)
        assert _opened(found["picture"] if path == "/named" else found).format == "PNG"


def test_an_array_that_is_no_picture_fails_its_request(http: httpx.Client) -> None:
    answer = http.post("/no_picture", json={"x": 1})
    assert (answer.status_code, answer.json()["error"]) == (500, "hook_failed")


def test_bytes_with_a_media_type_are_answered_as_they_are(http: httpx.Client) -> None:
    answer = http.post("/speak", json={"text": "hi"})
    assert (answer.headers["content-type"], answer.content) == ("audio/wav", b"RIFFhi")
    text = http.post("/speak", json={"text": "hi"}, headers={"accept": "application/json"})
    assert text.json() == base64.b64encode(b"RIFFhi").decode()


def test_openapi_has_the_types_of_files_in_answers(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]

    def given(path: str) -> dict[str, Any]:
        found: dict[str, Any] = paths[path]["post"]["responses"]["200"]["content"]
        return found

    assert list(given("/turned"))[:2] == ["image/png", "image/jpeg"]
    assert given("/turned")["application/json"]["schema"]["contentEncoding"] == "base64"
    assert list(given("/speak")) == ["audio/wav", "application/json", "application/msgpack"]
    assert given("/speak")["application/json"]["schema"]["contentMediaType"] == "audio/wav"
    assert list(given("/named")) == ["application/json", "application/msgpack"]
