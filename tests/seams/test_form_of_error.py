"""An application from outside of the package, with its own form of error: a status and a text."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.api.application import Route, Section
from penstock.api.http import Http, HttpCall
from penstock.door.exchange import HttpReply
from tests.kit.http1 import connected, request
from tests.services.process import ROOT, running

pytestmark = pytest.mark.real
SCRIPT = """import sys; sys.path.insert(0, {root!r})
from penstock import Service, op
from tests.seams.test_form_of_error import Shouts
@op()
def echo(request):
    return request

Service("echo", echo, http_port=0, rpc_port=0, max_calls=1, applications=[Shouts]).run()
"""


def form(status: int, text: str) -> HttpReply:
    return HttpReply(status, (), f"! {status} {text}".encode())


class Shouts:
    def __init__(self, engine: object) -> None:
        pass

    def routes(self) -> Iterator[Route | Section]:
        yield Section("/shouts", lambda path: form(404, path), form)
        yield Http("POST", "/shouts/{word}", self._answer, refusal=form)

    def _answer(self, call: HttpCall, body: bytes) -> None:
        call.reply(200, (), call.values[0].upper().encode())


def test_an_application_has_its_own_form_of_error(tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(SCRIPT.format(root=str(ROOT)))
    with running(tmp_path / "service.py") as server, connected(server.http_port) as client:
        for method, path, answer in (
            (b"POST", b"/shouts/a", b"A"),
            (b"POST", b"/shouts/a/b", b"! 404 /shouts/a/b"),
            (b"GET", b"/shouts/a", b"! 405 GET is not answered here: use POST"),
            (b"POST", b"/shouts/%f", b"! 400 bad percent escape in the path"),
        ):
            client.send(request(b"", method=method, target=path))
            assert client.reply().body == answer
        client.send(request(b"", b"Content-Length: 9", b"Expect: 100-continue", length=False))
        assert client.reply().status == 100
        with connected(server.http_port) as another:
            another.send(request(b"", target=b"/shouts/a"))
            assert another.reply().body == b"! 503 too many requests are open; try again later"
