"""curl: HTTP/1.1, HTTP/2 with prior knowledge, and both over TLS by ALPN."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.peers.programs import run
from tests.peers.site import Site

VERSIONS = {
    "http/1.1": (["--http1.1"], "1.1"),
    "h2c": (["--http2-prior-knowledge"], "2"),
    "tls http/1.1": (["--http1.1"], "1.1"),
    "tls h2": (["--http2"], "2"),
}


class Access(NamedTuple):
    """curl's options and URL for a protocol. ``version`` is the HTTP version it must have used."""

    options: list[str]
    url: str
    version: str


@pytest.fixture(params=VERSIONS)
def access(request: pytest.FixtureRequest, site: Site) -> Access:
    options, version = VERSIONS[request.param]
    if request.param.startswith("tls"):
        options = [*options, "--cacert", str(site.certificate)]
        return Access(options, f"https://localhost:{site.tls}", version)
    port = site.h2c if version == "2" else site.http
    return Access(options, f"http://127.0.0.1:{port}", version)


@pytest.fixture
def reusing_access(access: Access) -> Access:
    """An access with which curl can reuse a connection.

    Debian's curl 7.88 cannot with prior knowledge: with any server (nghttpd too) it fails with
    error 16 before it sends the second request. Over TLS this is tested with HTTP/2.
    """
    if "--http2-prior-knowledge" in access.options and curl_version() < (8, 0):
        pytest.skip("a curl before 8.0 uses no h2c connection twice, whoever the server is")
    return access


def curl_version() -> tuple[int, ...]:
    words = run("curl", "--version").good().split()
    return tuple(int(part) for part in words[1].split(b".")[:2])


def curl(*arguments: object, given: bytes = b"") -> bytes:
    return run("curl", "-sS", "--max-time", "20", *arguments, given=given).good()


def request_body(text: str) -> str:
    return json.dumps({"key": ["x"], "value": [text]})


def value_of(answer: bytes) -> str:
    reply = json.loads(answer)
    assert reply["err_no"] == 0
    return str(reply["value"][0])


def test_a_reply_has_the_requested_http_version(access: Access) -> None:
    format_of_facts = "\n%{http_version} %{http_code} %{content_type}"
    out = curl(
        *access.options,
        "-w",
        format_of_facts,
        "-d",
        request_body("hello"),
        f"{access.url}/echo/prediction",
    )
    body, facts = out.rsplit(b"\n", 1)
    assert value_of(body) == "hello"
    assert facts.decode() == f"{access.version} 200 application/json"


def test_curl_sends_many_requests_on_one_connection(reusing_access: Access) -> None:
    urls = [f"{reusing_access.url}/livez?[1-50]", "-o", "/dev/null"]
    out = curl(*reusing_access.options, "-w", "%{http_code} %{num_connects}\n", *urls).decode()
    lines = out.splitlines()
    assert lines == ["200 1"] + ["200 0"] * 49


def test_a_large_body_is_echoed(access: Access, tmp_path: Path) -> None:
    text = "0123456789abcdef" * (8 << 16)
    body = tmp_path / "body"
    body.write_text(request_body(text))
    # Over HTTP/1.1 curl asks with "Expect: 100-continue" first.
    out = curl(*access.options, "--data-binary", f"@{body}", f"{access.url}/echo/prediction")
    assert value_of(out) == text


def test_a_body_without_content_length_is_echoed(access: Access) -> None:
    # From a pipe: chunked over HTTP/1.1, no content-length over HTTP/2.
    text = "piece" * 30_000
    arguments = ["-X", "POST", "-H", "Content-Type: application/json", "-T", "-"]
    out = curl(
        *access.options,
        *arguments,
        f"{access.url}/echo/prediction",
        given=request_body(text).encode(),
    )
    assert value_of(out) == text


def test_parallel_requests_get_their_own_replies(reusing_access: Access, tmp_path: Path) -> None:
    urls = [f"{reusing_access.url}/echo/prediction"]
    bodies = []
    for number in range(60):
        bodies += (
            ["--next", "-sS", *reusing_access.options] if number else [*reusing_access.options]
        )
        bodies += ["-d", request_body(f"nonce {number}"), "-o", f"{tmp_path}/{number}", *urls]
    run("curl", "-sS", "--parallel", *bodies).good()
    for number in range(60):
        assert value_of((tmp_path / str(number)).read_bytes()) == f"nonce {number}"
