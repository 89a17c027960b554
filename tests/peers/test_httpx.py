"""httpx over HTTP/2, in clear and over TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.peers.site import Site


@pytest.fixture(params=["h2c", "tls"])
async def client(request: pytest.FixtureRequest, site: Site) -> AsyncIterator[httpx.AsyncClient]:
    trust = ssl.create_default_context(cafile=str(site.certificate))
    sealed = request.param == "tls"
    base = f"https://localhost:{site.tls}" if sealed else f"http://127.0.0.1:{site.h2c}"
    async with httpx.AsyncClient(
        http1=sealed, http2=True, verify=trust, base_url=base, trust_env=False, timeout=20
    ) as made:
        yield made


def question(text: str) -> dict[str, list[str]]:
    return {"key": ["x"], "value": [text]}


async def test_an_echo(client: httpx.AsyncClient) -> None:
    answer = await client.post("/echo/prediction", json=question("hello"))
    assert (answer.http_version, answer.status_code) == ("HTTP/2", 200)
    assert answer.json()["value"] == ["hello"]
    assert answer.headers["content-type"] == "application/json"


async def test_probes_and_unknown_paths(client: httpx.AsyncClient) -> None:
    assert (await client.get("/livez")).status_code == 200
    assert (await client.head("/readyz")).content == b""
    assert (await client.get("/nothing")).status_code == 404
    wrong = await client.get("/echo/prediction")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


async def test_requests_at_once_are_not_mixed_up(client: httpx.AsyncClient) -> None:
    async def ask(number: int) -> None:
        answer = await client.post("/echo/prediction", json=question(f"nonce {number}"))
        assert answer.json()["value"] == [f"nonce {number}"]

    await asyncio.gather(*(ask(number) for number in range(300)))


async def test_a_streamed_body_of_8_mib(client: httpx.AsyncClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"key": ["x"], "value": ["'
        for _ in range(128):
            yield b"x" * 65_536
        yield b'"]}'

    answer = await client.post("/echo/prediction", content=pieces())
    assert answer.json()["value"] == ["x" * (8 << 20)]


async def test_a_wrong_body_is_told_so(client: httpx.AsyncClient) -> None:
    answer = await client.post("/echo/prediction", content=b"{")
    assert answer.status_code == 400
    assert (await client.post("/echo/prediction", json=question("next"))).status_code == 200
