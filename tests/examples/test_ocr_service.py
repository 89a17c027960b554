"""The OCR example as a process, over HTTP and gRPC, compared with the reference."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock import PipelineClient
from tests.examples.ocr_judge import EXAMPLE, check_same_lines, example, reference_lines
from tests.services.process import ServiceProcess, direct, running

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

PICTURES = example().pictures
NAMES = [*PICTURES.GOOD, PICTURES.SCAN]
SCRIPT = EXAMPLE / "ocr_service.py"
PENSTOCK_RUN = (sys.executable, "-m", "penstock", "run")

Reply = tuple[int, str, dict[str, str]]
Send = Callable[[ServiceProcess, bytes], Reply]


@pytest.fixture(scope="module")
def server() -> Iterator[ServiceProcess]:
    with running(SCRIPT) as started:
        yield started
        assert started.stop() == 0
        assert started.leftovers() == []


def over_http(server: ServiceProcess, picture: bytes) -> Reply:
    image = base64.b64encode(picture).decode()
    body = json.dumps({"key": ["image"], "value": [image]}).encode()
    request = urllib.request.Request(f"{server.http_url}/ocr/prediction", body)
    with direct.open(request, timeout=60) as answer:
        assert answer.status == 200
        reply: dict[str, Any] = json.load(answer)
    values = dict(zip(reply.get("key") or [], reply.get("value") or [], strict=True))
    return reply["err_no"], reply["err_msg"], values


def over_grpc(server: ServiceProcess, picture: bytes) -> Reply:
    image = base64.b64encode(picture).decode()
    with PipelineClient() as client:
        client.connect([server.rpc_endpoint])
        reply = client.predict(feed_dict={"image": image}, timeout=60)
    return reply.err_no, reply.err_msg, dict(zip(reply.key, reply.value, strict=True))


PROTOCOLS = pytest.mark.parametrize("send", [over_http, over_grpc])


@PROTOCOLS
@pytest.mark.parametrize("name", NAMES)
def test_the_service_finds_the_same_lines_as_the_reference(
    server: ServiceProcess, folder: Path, name: str, send: Send
) -> None:
    err_no, err_msg, values = send(server, (folder / name).read_bytes())
    assert (err_no, err_msg) == (0, "")
    assert set(values) == {"result", "times"}
    check_same_lines(json.loads(values["result"]), reference_lines(folder / name))
    assert list(json.loads(values["times"])) == ["det", "cls", "rec"]


def test_penstock_run_serves_it_too(folder: Path) -> None:
    with running(SCRIPT, command=PENSTOCK_RUN) as server:
        test_the_service_finds_the_same_lines_as_the_reference(
            server, folder, "columns.png", over_http
        )
        test_the_service_finds_the_same_lines_as_the_reference(
            server, folder, PICTURES.SCAN, over_grpc
        )
        assert server.stop() == 0
        assert server.leftovers() == []


@PROTOCOLS
def test_a_picture_without_text_is_answered_with_an_empty_list(
    server: ServiceProcess, folder: Path, send: Send
) -> None:
    err_no, _, values = send(server, (folder / PICTURES.BLANK).read_bytes())
    assert err_no == 0
    assert json.loads(values["result"]) == []


@PROTOCOLS
@pytest.mark.parametrize(
    ("name", "number", "message"),
    [
        (PICTURES.NOT_A_PICTURE, 101, "not a picture"),
        (PICTURES.TOO_LARGE, 102, "at most 64 million"),
    ],
)
def test_bad_input_is_a_product_error_and_the_next_request_is_answered(
    server: ServiceProcess, folder: Path, send: Send, name: str, number: int, message: str
) -> None:
    err_no, err_msg, values = send(server, (folder / name).read_bytes())
    assert err_no == number
    assert message in err_msg
    assert values == {}
    assert send(server, (folder / "small.png").read_bytes())[0] == 0


def test_concurrent_requests_get_the_lines_of_their_own_pictures(
    server: ServiceProcess, folder: Path
) -> None:
    names = ["plain.png", "columns.png", PICTURES.BLANK, "downwards.png"] * 2
    sends = [over_http, over_grpc] * 4
    with ThreadPoolExecutor(len(names)) as pool:
        replies = list(
            pool.map(lambda name, send: send(server, (folder / name).read_bytes()), names, sends)
        )
    for name, (err_no, err_msg, values) in zip(names, replies, strict=True):
        assert err_no == 0, err_msg
        check_same_lines(json.loads(values["result"]), reference_lines(folder / name))


@pytest.mark.parametrize("client", ["http_client.py", "grpc_client.py"])
def test_a_client_without_its_picture_prints_one_line_of_error(client: str, tmp_path: Path) -> None:
    for missing, why in ((tmp_path / "a.png", "No such file"), (tmp_path, "Is a directory")):
        done = subprocess.run(
            [sys.executable, client, str(missing)],
            cwd=EXAMPLE,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2
        assert done.stderr.startswith(f"{missing}: {why}")
        assert len(done.stderr.splitlines()) == 1


def test_the_examples_clients_print_the_lines(server: ServiceProcess, folder: Path) -> None:
    picture = str(folder / "small.png")
    url = f"{server.http_url}/ocr/prediction"
    for command in (
        ["http_client.py", picture, "--url", url],
        ["grpc_client.py", picture, "--endpoint", server.rpc_endpoint],
    ):
        done = subprocess.run(
            [sys.executable, *command], cwd=EXAMPLE, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        for line in reference_lines(folder / "small.png"):
            assert line["text"] in done.stdout
