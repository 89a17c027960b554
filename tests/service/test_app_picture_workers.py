"""Pictures of typed functions in worker processes and in threads of a supervised service."""

from __future__ import annotations

import io
import json
import urllib.error
from collections.abc import Iterator
from urllib.request import Request

import pytest
from PIL import Image as Pillow

from tests.service.scripts import PENSTOCK
from tests.services.process import ServiceProcess, direct, running

pytestmark = pytest.mark.real

SCRIPT = """
from typing import Annotated

import numpy as np

from penstock import App, Image, Media

app = App("pictures", max_inflight_bytes=4_000_000)
Picture = Annotated[np.ndarray, Image()]


def dark(picture: Picture) -> Picture:
    picture //= 2
    return picture


def raw(picture: Picture) -> Annotated[bytes, Media("application/x-pixels")]:
    return picture[0, 0].tobytes()


app.route("/dark", executor="process", workers=2)(dark)
app.route("/raw", executor="process")(raw)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    path = tmp_path_factory.mktemp("pictures") / "app.py"
    path.write_text(SCRIPT)
    with running(path, command=PENSTOCK) as server:
        yield server
        assert server.stop() == 0


def send(
    server: ServiceProcess, path: str, side: int, form: str = "WEBP"
) -> tuple[int, str, bytes]:
    out = io.BytesIO()
    Pillow.new("RGB", (side, side), (200, 100, 50)).save(out, form, lossless=True)
    request = Request(server.http_url + path, out.getvalue(), {"Content-Type": "image/webp"})
    try:
        with direct.open(request, timeout=20) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read()


def test_a_worker_process_decodes_and_answers_pictures(server: ServiceProcess) -> None:
    status, kind, body = send(server, "/dark", 100)
    assert (status, kind) == (200, "image/png")
    with Pillow.open(io.BytesIO(body)) as image:
        assert image.getpixel((0, 0)) == (100, 50, 25)
    assert send(server, "/raw", 100) == (200, "application/x-pixels", bytes((200, 100, 50)))


def test_a_worker_process_has_a_part_of_the_bytes_in_flight(server: ServiceProcess) -> None:
    status, _, body = send(server, "/dark", 450)
    assert status == 422
    assert "2430000 bytes" in json.loads(body)["message"]
    assert "of 2000000 that may be in flight" in json.loads(body)["message"]
    assert send(server, "/raw", 450)[0] == 200
