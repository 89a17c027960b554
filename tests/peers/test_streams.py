"""Answers in pieces, read by Chromium, the page /docs and curl, also through nginx and haproxy."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.peers.browser import browsing
from tests.peers.front import haproxy, nginx, nginx_site
from tests.peers.programs import program
from tests.services.process import ServiceProcess, free_port, running

SERVICE = """
import asyncio, os, pathlib
from collections.abc import AsyncIterator
from penstock import App, HttpError

app = App("pieces")
gates = {}
folder = pathlib.Path(os.environ["FOLDER"])

def gate(key):
    return gates.setdefault(key, asyncio.Event())

@app.get("/letters")
async def letters(key: str, fails: bool = False) -> AsyncIterator[str]:
    try:
        yield "\\u00e9"
        await gate(key).wait()
        if fails:
            raise HttpError(418, "a teapot")
        yield "b"
    finally:
        (folder / key).touch()

@app.get("/go")
async def go(key: str) -> str:
    gate(key).set()
    return "gone on"

app.run()
"""
HAPROXY = """
frontend routes
  bind 127.0.0.1:{port}
  default_backend routes
backend routes
  timeout server 4s
  server service {behind}
"""


@dataclass(frozen=True)
class Front:
    """The service, directly or behind a proxy, and the folder in which ends are noted."""

    server: ServiceProcess
    port: int
    folder: Path
    name: str

    def key(self, name: str) -> str:
        return f"{name}-{self.name}".replace("/", "")

    def go(self, key: str) -> None:
        connection = HTTPConnection("127.0.0.1", self.server.http_port, timeout=30)
        connection.request("GET", f"/go?key={key}")
        assert connection.getresponse().status == 200
        connection.close()

    def until(self, right: Callable[[], bool]) -> None:
        # haproxy tells the service only at its own time limit.
        deadline = time.monotonic() + 50
        while not right():
            assert time.monotonic() < deadline
            self.server.is_ready()


@pytest.fixture(scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("pieces")
    script = folder / "service.py"
    script.write_text(SERVICE)
    with running(script, environment={"FOLDER": str(folder)}) as server:
        yield Front(server, server.http_port, folder, "direct")


@pytest.fixture(scope="module", params=["direct", "nginx", "haproxy", "haproxy-h2"])
def front(
    request: pytest.FixtureRequest, direct: Front, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    if request.param == "direct":
        yield direct
        return
    port, behind = free_port(), f"127.0.0.1:{direct.port}"
    if request.param == "nginx":
        proxy, config = nginx, nginx_site(listen=[f"127.0.0.1:{port}"], http=direct.port)
    else:
        behind += " proto h2" if request.param == "haproxy-h2" else ""
        proxy, config = haproxy, HAPROXY.format(port=port, behind=behind)
    with proxy(tmp_path_factory.mktemp("front") / "files", config, port):
        yield Front(direct.server, port, direct.folder, request.param)


def test_each_piece_passes_before_the_end(front: Front) -> None:
    key = front.key("passes")
    url = f"http://127.0.0.1:{front.port}/letters?key={key}"
    with subprocess.Popen([program("curl"), "-sN", url], stdout=subprocess.PIPE) as curl:
        assert curl.stdout is not None
        assert curl.stdout.readline() == 'data: "é"\n'.encode()
        front.go(key)
        assert curl.stdout.read() == b'\ndata: "b"\n\n'
    assert curl.returncode == 0


def test_an_answer_that_is_cut_off_never_looks_complete(front: Front) -> None:
    key = front.key("cut")
    front.go(key)
    url = f"http://127.0.0.1:{front.port}/letters?key={key}&fails=true"
    done = subprocess.run(
        [program("curl"), "-sN", url], capture_output=True, timeout=30, check=False
    )
    assert done.stdout.startswith('data: "é"\n\nevent: error\n'.encode())
    assert done.returncode != 0


def test_a_caller_that_leaves_cancels(front: Front) -> None:
    key = front.key("leaves")
    connection = HTTPConnection("127.0.0.1", front.port, timeout=30)
    connection.request("GET", f"/letters?key={key}")
    response = connection.getresponse()
    assert response.readline() == 'data: "é"\n'.encode()
    response.close()
    connection.close()
    front.until((front.folder / key).exists)


def test_an_event_source_reads_a_route_for_get(direct: Front, tmp_path: Path) -> None:
    with browsing(tmp_path) as page:
        page.open(f"http://127.0.0.1:{direct.port}/docs")
        page.until("document.querySelector('#routes')?.getAttribute('aria-busy') === 'false'")
        page.evaluate(
            "got = []; ended = 0;"
            "source = new EventSource('/letters?key=source');"
            "source.onmessage = (event) => got.push(JSON.parse(event.data));"
            "source.onerror = () => { ended += 1; source.close(); };"
        )
        page.until("got.length === 1")
        direct.go("source")
        page.until("ended === 1")
        assert page.evaluate("got") == ["é", "b"]


ROUTE = "document.getElementById('GET_letters')"


def test_the_page_of_routes_shows_pieces_while_they_arrive(direct: Front, tmp_path: Path) -> None:
    text = f"{ROUTE}.querySelector('.arriving')?.textContent"
    with browsing(tmp_path) as page:
        page.open(f"http://127.0.0.1:{direct.port}/docs")
        page.until("document.querySelector('#routes')?.getAttribute('aria-busy') === 'false'")
        page.evaluate(f"{ROUTE}.open = true")
        page.until(f"{ROUTE}.querySelector('form') !== null")

        def send(key: str, fails: str = "false") -> None:
            page.evaluate(f"{ROUTE}.querySelectorAll('input')[0].value = '{key}'")
            page.evaluate(f"{ROUTE}.querySelectorAll('input')[1].value = '{fails}'")
            page.evaluate(f"{ROUTE}.querySelector('button.send').click()")
            page.until(f"{text}?.includes('é')")

        def shown() -> str:
            page.until(f"{ROUTE}.querySelector('.status')?.textContent === '200 OK'")
            found: str = page.evaluate(f"{ROUTE}.querySelector('.answer').textContent")
            return found

        send("page")
        direct.go("page")
        assert shown() == 'data: "é"\n\ndata: "b"\n\n'
        send("page-cut", "true")
        direct.go("page-cut")
        assert "a teapot" in shown()
        page.until(f"{ROUTE}.textContent.includes('ended in the middle')")
        send("page-stops")
        page.evaluate(f"{ROUTE}.querySelector('button.stop').click()")
        assert shown() == 'data: "é"\n\n'
        direct.until((direct.folder / "page-stops").exists)
