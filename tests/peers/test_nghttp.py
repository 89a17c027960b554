"""nghttp and h2load of nghttp2: unusual but legal frames, and many requests."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest

from penstock.protocols.pb import Request, Response
from tests.peers.programs import run
from tests.peers.site import INFERENCE, Site

TEXT = "penstock " * 5000
UNUSUAL = {
    "plain": [],
    "padded frames": ["--padding=200"],
    "small windows": ["--window-bits=10", "--connection-window-bits=16"],
    "large windows": ["--window-bits=24", "--connection-window-bits=26"],
    "no header table": ["--header-table-size=0", "--encoder-header-table-size=0"],
    "large header table": ["--header-table-size=65536", "--encoder-header-table-size=65536"],
    "table size that changes": ["--header-table-size=10", "--header-table-size=4096"],
    "weights and no dependencies": ["--weight=200", "--no-dep"],
    "trailers": ["--trailer=x-sum: 12"],
    "no content-length": ["--no-content-length"],
    "many header fields": [f"--header=x-{number}: {'v' * number}" for number in range(1, 80)],
}


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("nghttp") / "body"
    file.write_text(json.dumps({"key": ["x"], "value": [TEXT]}))
    return file


@pytest.fixture(scope="module")
def grpc_body(tmp_path_factory: pytest.TempPathFactory) -> Path:
    message = Request(name="echo", key=["x"], value=["hello"]).SerializeToString()
    file = tmp_path_factory.mktemp("nghttp-grpc") / "body"
    file.write_bytes(struct.pack("!BI", 0, len(message)) + message)
    return file


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_frames_are_understood(site: Site, body: Path, name: str) -> None:
    url = f"http://127.0.0.1:{site.h2c}/echo/prediction"
    answer = run("nghttp", "--data", body, *UNUSUAL[name], url).good()
    assert json.loads(answer)["value"] == [TEXT]


def test_a_grpc_call_has_its_trailers(site: Site, grpc_body: Path) -> None:
    headers = ["--header=content-type: application/grpc", "--header=te: trailers"]
    url = f"http://127.0.0.1:{site.rpc}{INFERENCE}"
    out = run("nghttp", "--verbose", *headers, "--data", grpc_body, url).good()
    assert re.search(rb"recv \(stream_id=\d+\) grpc-status: 0", out)
    plain = run("nghttp", *headers, "--data", grpc_body, url).good()
    assert Response.FromString(plain[5:]).value == ["hello"]


def h2load(total: int, *arguments: object) -> None:
    """Have h2load send so many requests, and judge its counts."""
    out = run("h2load", f"-n{total}", *arguments, timeout=40).good().decode()
    counts = {name: int(count) for count, name in re.findall(r"(\d+) (\w+)[,\n]", out)}
    classes = re.search(r"status codes: (\d+) 2xx", out)
    assert classes is not None, out
    assert counts["succeeded"] == int(classes[1]) == total, out
    assert counts["failed"] == counts["errored"] == counts["timeout"] == 0, out


LOADS: dict[str, tuple[int, list[str]]] = {
    "one stream": (1000, ["-c1", "-m1"]),
    "many streams": (4000, ["-c4", "-m100"]),
    "small windows": (400, ["-c4", "-m20", "-w10", "-W16"]),
    "small frames": (1000, ["-c4", "-m20", "-f16384"]),
}


@pytest.mark.parametrize("name", LOADS)
def test_h2load_has_every_call_answered(site: Site, grpc_body: Path, name: str) -> None:
    total, options = LOADS[name]
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    h2load(total, *options, *headers, "-d", grpc_body, f"http://127.0.0.1:{site.rpc}{INFERENCE}")


@pytest.mark.parametrize("way", ["h2c", "tls", "http/1.1"])
def test_h2load_has_every_request_to_the_routes_answered(site: Site, body: Path, way: str) -> None:
    url, options = {
        "h2c": (f"http://127.0.0.1:{site.h2c}", ["-m20"]),
        "tls": (f"https://localhost:{site.tls}", ["-m20"]),
        "http/1.1": (f"http://127.0.0.1:{site.http}", ["--h1"]),
    }[way]
    h2load(500, "-c5", *options, "-d", body, f"{url}/echo/prediction")
