"""A replica that answers something else than its protocol's answers, beside one that works.

Each kind of answer in each protocol: an idempotent call finds the other replica, any other call
fails with a typed error and is not sent twice, and after some failures the replica is asked last.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pytest

from penstock.client import Answer, CallFailed, Endpoint, Variant
from penstock.protocols.standard_messages import general_model_messages, inference_messages
from penstock.protocols.status import GrpcCode
from tests.kit import frames as f
from tests.kit.baidu_std import Closed, Connection, field, frame
from tests.kit.baidu_std import answer as message
from tests.kit.grpc_server import HEAD, answer, only
from tests.kit.http2 import Link
from tests.service.scripts import until

from .conftest import TIMEOUT, Service, echo
from .test_http1 import Server as HttpServer
from .test_http1 import good, whole

FEED: Final = {"x": np.float32([[1, 2]])}
CALLS: Final = 40

Serve = Callable[..., Any]
_OIP, _GENERAL = inference_messages("ModelInfer")[1], general_model_messages()[1]
_REPLIES: Final = {
    "oip": _OIP(model_name="m").SerializeToString(),
    "h2:grpc": _GENERAL(outputs=[{"engine_name": "m"}]).SerializeToString(),
    "baidu_std": _GENERAL(outputs=[{"engine_name": "m"}]).SerializeToString(),
}


class Raw:
    """A server whose bytes a function writes, of each connection in a thread."""

    def __init__(self, serve: Callable[[socket.socket, Callable[[], None]], None]) -> None:
        self.calls = 0
        self._serve = serve
        self._links: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _count(self) -> None:
        self.calls += 1

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                link, _ = self._listener.accept()
                self._links.append(link)
                threading.Thread(target=self._run, args=(link,), daemon=True).start()

    def _run(self, link: socket.socket) -> None:
        with link, suppress(OSError, AssertionError, Closed):
            self._serve(link, self._count)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for each in (self._listener, *self._links):
            each.close()


def grpc_bytes(make: Callable[[int], bytes | None]) -> Raw:
    """``make`` makes the answer on a stream; None closes the connection."""

    def serve(link: socket.socket, count: Callable[[], None]) -> None:
        peer = Link(link, serves=True)
        peer.greet()
        for stream in range(1, 1000, 2):
            peer.answer(stream)
            count()
            reply = make(stream)
            if reply is None:
                return
            peer.send(reply)

    return Raw(serve)


def baidu_std(make: Callable[[int], bytes | None]) -> Raw:
    """``make`` makes the answer to a correlation id."""

    def serve(link: socket.socket, count: Callable[[], None]) -> None:
        peer = Connection(link)
        while True:
            request = peer.read()
            count()
            reply = make(request.id)
            if reply is None:
                return
            link.sendall(reply)

    return Raw(serve)


_HTML: Final = (b"content-type", b"text/html")
_OK: Final = (b":status", b"200")
GRPC: Final[dict[str, Callable[[int], bytes | None]]] = {
    "no message of the service": lambda at: answer(at, f.message(b"\xff")),
    "a page": lambda at: (
        f.headers(at, f.block((_OK, _HTML))) + f.data(at, b"<html>") + f.data(at, b"", end=True)
    ),
    "status 404": lambda at: only(at, (b":status", b"404"), _HTML),
    "status 500": lambda at: only(at, (b":status", b"500"), _HTML),
    "a message that is cut": lambda at: answer(at, f.message(b"good")[:-2]),
    "two messages": lambda at: answer(at, f.message(b"") * 2),
    "no message": lambda at: answer(at, b""),
    "no trailers": lambda at: f.headers(at, f.block(HEAD)) + f.data(at, f.message(b""), end=True),
    "no status": lambda at: answer(at, f.message(b""), trailers=((b"x", b"y"),)),
    "no frame": lambda at: b"\xff" * 64,
    "nothing": lambda at: None,
}
HTTP: Final[dict[str, bytes | None]] = {
    "a page": whole(b"<html>", 200, "Content-Type: text/html"),
    "JSON of something else": whole(b'{"ok": true}'),
    "status 404": whole(b"<html>", 404),
    "status 500": whole(b"<html>", 500),
    "no status line": b"nonsense\r\n\r\n",
    "a length that is none": b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    "nothing": None,
}
BAIDU_STD: Final[dict[str, Callable[[int], bytes | None]]] = {
    "no message of the service": lambda at: message(at, b"\xff"),
    "nothing that was compressed": lambda at: message(at, b"\xff", more=field(3, 2)),
    "an unknown compression": lambda at: message(at, b"\xff", more=field(3, 9)),
    "no result": lambda at: frame(field(4, at)),
    "a longer attachment": lambda at: message(at, b"\xff", more=field(5, 9)),
    "no frame": lambda at: b"\xff" * 64,
    "nothing": lambda at: None,
}
EVERY: Final = [
    *(("pipeline", each) for each in GRPC),
    ("oip", "no message of the service"),
    ("h2:grpc", "no message of the service"),
    *(("http:oip", each) for each in HTTP),
    ("http:oip_binary", "a page"),
    *(("baidu_std", each) for each in BAIDU_STD),
]


@pytest.fixture
def closing() -> Iterator[list[Any]]:
    made: list[Any] = []
    yield made
    for each in made:
        each.close()


def servers(protocol: str, kind: str, closing: list[Any], serve: Serve) -> list[Any]:
    """The bad one and the good one, with ``address`` and, of the bad one, ``count``."""
    if protocol.startswith("http:"):
        bad: Any = HttpServer(lambda *_: HTTP[kind])
        works: Any = HttpServer(good)
    elif protocol == "baidu_std":
        bad = baidu_std(BAIDU_STD[kind])
        works = baidu_std(lambda at: message(at, _REPLIES["baidu_std"]))
    else:
        bad = grpc_bytes(GRPC[kind])
        reply = _REPLIES.get(protocol)
        works = serve(echo if reply is None else lambda *_: reply)
    closing += [each for each in (bad, works) if not isinstance(each, Service)]
    return [bad, works]


def address(server: Any) -> str:
    found: str = server.endpoint if isinstance(server, Service) else server.address
    return found


def calls_of(server: Any) -> int:
    if isinstance(server, Service):
        return server.received.qsize()
    return len(server.requests) if isinstance(server, HttpServer) else server.calls


@pytest.mark.parametrize(("protocol", "kind"), EVERY, ids=[f"{p}: {k}" for p, k in EVERY])
def test_a_replica_that_answers_nonsense(
    protocol: str, kind: str, closing: list[Any], serve: Serve
) -> None:
    bad, works = servers(protocol, kind, closing, serve)
    options = {
        "protocol": protocol,
        "load_balance_strategy": "rr",
        "rpc_timeout_ms": 1000 * int(TIMEOUT),
        "pack_tensor_format": True,
    }
    variant = Variant("v", [address(bad), address(works)])

    def ended(made: Endpoint, number: int) -> Answer[Any] | CallFailed:
        try:
            if number % 3 == 0:
                return made.predict(FEED)
            if number % 3 == 1:
                return made.predict_future(FEED).result(TIMEOUT)
            return asyncio.run(made.predict_async(FEED))
        except CallFailed as failed:
            return failed

    with Endpoint("m", [variant], idempotent=True, **options) as made:  # type: ignore[arg-type]
        for number in range(12):
            found = ended(made, number)
            assert isinstance(found, Answer), found
            assert found.replica == address(works)
    assert calls_of(bad) > 0
    before = calls_of(bad), calls_of(works)
    with Endpoint("m", [variant], **options) as made:  # type: ignore[arg-type]
        ends = [ended(made, number) for number in range(CALLS)]
    failed = [each for each in ends if isinstance(each, CallFailed)]
    assert all(address(bad) in str(each) for each in failed), failed
    assert {each.status for each in failed} <= {*GrpcCode} - {GrpcCode.DEADLINE_EXCEEDED}
    # None was sent twice. Five fail until the replica is asked last, and one for each second.
    assert calls_of(bad) - before[0] == len(failed)
    assert calls_of(works) - before[1] == CALLS - len(failed)
    assert 1 <= len(failed) < CALLS // 2


@pytest.mark.parametrize("protocol", ["pipeline", "http:oip", "baidu_std"])
def test_a_call_to_a_replica_that_hangs_ends_at_its_deadline_and_is_sent_once(
    protocol: str, closing: list[Any]
) -> None:
    def hangs(*_: object) -> bytes:
        return b""

    makers: dict[str, Callable[[], Any]] = {
        "pipeline": lambda: grpc_bytes(hangs),
        "http:oip": lambda: HttpServer(hangs),
        "baidu_std": lambda: baidu_std(hangs),
    }
    server = makers[protocol]()
    closing.append(server)
    variant = Variant("v", [server.address])
    with Endpoint(
        "m", [variant], protocol=protocol, pack_tensor_format=True, idempotent=True
    ) as made:
        forms: list[Callable[[], Any]] = [
            lambda: made.predict(FEED, timeout=0.5),
            lambda: made.predict_future(FEED, timeout=0.5).result(TIMEOUT),
            lambda: asyncio.run(made.predict_async(FEED, timeout=0.5)),
        ]
        for form in forms:
            with pytest.raises(CallFailed, match=server.address) as failed:
                form()
            assert failed.value.status is GrpcCode.DEADLINE_EXCEEDED
            assert failed.value.sent
    until(lambda: calls_of(server) == len(forms), "the last call at the server")
