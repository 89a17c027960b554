"""Callers are admitted by a key, before their requests are read; instruments see who calls."""

import os
from pathlib import Path

import pytest

from penstock.api.application import Route
from penstock.door.exchange import Exchange
from penstock.errors import RequestError
from penstock.instrument import Instrument, RequestInfo
from penstock.protocols.status import STATUS, CustomExceptionCode, GrpcCode, Status
from tests.kit.http1 import connected
from tests.services.process import ROOT, running

pytestmark = pytest.mark.real
SCRIPT = """import sys; sys.path.insert(0, {root!r})
from penstock import Service, op
from tests.seams.test_admission import Keys, Teller
@op()
def echo(request):
    return request

Service("echo", echo, http_port=0, rpc_port=0, applications=[Keys], instruments=[Teller()]).run()
"""


class NoKey(RequestError):
    code = "no_key"


class Keys:
    def __init__(self, engine: object) -> None:
        STATUS[NoKey] = Status(CustomExceptionCode.CLIENT_ERROR, 401, GrpcCode.UNAUTHENTICATED)

    def routes(self) -> tuple[Route, ...]:
        return ()

    def admit(self, route: Route, exchange: Exchange) -> str | None:
        if not route.always and exchange.head.fields.get(b"x-key") != b"a1":
            raise NoKey("send a key")
        return "ann"

    def authenticate(self, user: str, password: str) -> bool:
        """Of the user's own: the service does not know it."""
        raise NotImplementedError


class Teller(Instrument):
    def admitted(self, request: RequestInfo, now: float) -> None:
        os.write(1, f"told {request.caller}\n".encode())


def test_a_caller_without_a_key_is_refused_before_its_body_is_sent(tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(SCRIPT.format(root=str(ROOT)))
    head = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n"
    refusal = {"error": "no_key", "message": "send a key"}
    with running(tmp_path / "service.py") as server:
        for key, answer in ((b"", refusal), (b"X-Key: a1\r\n", {"x": 1})):
            with connected(server.http_port) as client:
                client.send(head, key, b"\r\n", b'{"x":1}' if key else b"")
                assert client.reply().json() == answer
        assert "told ann" in server.log()
        with connected(server.http_port) as client:
            client.send(b"GET /unknown HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.reply().status == 404
