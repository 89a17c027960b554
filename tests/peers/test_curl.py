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


class Way(NamedTuple):
    """How curl reaches the routes. ``version`` is the one it must have spoken."""

    options: list[str]
    url: str
    version: str


@pytest.fixture(params=VERSIONS)
def way(request: pytest.FixtureRequest, site: Site) -> Way:
    options, version = VERSIONS[request.param]
    if request.param.startswith("tls"):
        options = [*options, "--cacert", str(site.certificate)]
        return Way(options, f"https://localhost:{site.tls}", version)
    port = site.h2c if version == "2" else site.http
    return Way(options, f"http://127.0.0.1:{port}", version)


@pytest.fixture
def reusing(way: Way) -> Way:
    """A way on which curl can use a connection twice.

    Debian's curl 7.88 cannot with prior knowledge: of a connection to any server (nghttpd too) it
    says error 16 before it sends the second request. Over TLS the same is tested with HTTP/2.
    """
    if "--http2-prior-knowledge" in way.options and curl_version() < (8, 0):
        pytest.skip("a curl before 8.0 uses no h2c connection twice, whoever the server is")
    return way


def curl_version() -> tuple[int, ...]:
    words = run("curl", "--version").good().split()
    return tuple(int(part) for part in words[1].split(b".")[:2])


def curl(*arguments: object, given: bytes = b"") -> bytes:
    return run("curl", "-sS", "--max-time", "20", *arguments, given=given).good()


def question(text: str) -> str:
    return json.dumps({"key": ["x"], "value": [text]})


def value_of(answer: bytes) -> str:
    reply = json.loads(answer)
    assert reply["err_no"] == 0
    return str(reply["value"][0])


def test_an_echo_by_the_version_that_was_asked_for(way: Way) -> None:
    written = "\n%{http_version} %{http_code} %{content_type}"
    out = curl(*way.options, "-w", written, "-d", question("hello"), f"{way.url}/echo/prediction")
    body, facts = out.rsplit(b"\n", 1)
    assert value_of(body) == "hello"
    assert facts.decode() == f"{way.version} 200 application/json"


def test_one_connection_serves_many_requests(reusing: Way) -> None:
    urls = [f"{reusing.url}/livez?[1-50]", "-o", "/dev/null"]
    out = curl(*reusing.options, "-w", "%{http_code} %{num_connects}\n", *urls).decode()
    lines = out.splitlines()
    assert lines == ["200 1"] + ["200 0"] * 49


def test_a_large_body_goes_both_ways(way: Way, tmp_path: Path) -> None:
    text = "0123456789abcdef" * (8 << 16)
    body = tmp_path / "body"
    body.write_text(question(text))
    # Over HTTP/1.1 curl asks with "Expect: 100-continue" first.
    out = curl(*way.options, "--data-binary", f"@{body}", f"{way.url}/echo/prediction")
    assert value_of(out) == text


def test_a_body_without_an_announced_length(way: Way) -> None:
    # From a pipe: chunked over HTTP/1.1, no content-length over HTTP/2.
    text = "piece" * 30_000
    arguments = ["-X", "POST", "-H", "Content-Type: application/json", "-T", "-"]
    out = curl(
        *way.options, *arguments, f"{way.url}/echo/prediction", given=question(text).encode()
    )
    assert value_of(out) == text


def test_requests_at_once_are_not_mixed_up(reusing: Way, tmp_path: Path) -> None:
    urls = [f"{reusing.url}/echo/prediction"]
    bodies = []
    for number in range(60):
        bodies += ["--next", "-sS", *reusing.options] if number else [*reusing.options]
        bodies += ["-d", question(f"nonce {number}"), "-o", f"{tmp_path}/{number}", *urls]
    run("curl", "-sS", "--parallel", *bodies).good()
    for number in range(60):
        assert value_of((tmp_path / str(number)).read_bytes()) == f"nonce {number}"
