"""Streams over HTTP for threads and for an event loop, against a scripted server."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.client import CallFailed, NotConnected, stream, stream_async
from penstock.client.http_request import Encoded
from penstock.client.http_stream import AsyncHttpPieces, HttpPieces
from penstock.protocols.status import GrpcCode
from tests.kit.certificates import make_certificate

TIMEOUT = 30.0
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def event(data: bytes) -> bytes:
    text = b"data: %b\n\n" % data
    return b"%x\r\n%b\r\n" % (len(text), text)


class Peer:
    """The server's end of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.request = b""
        while b"\r\n\r\n" not in self.request:
            self.request += connection.recv(65536)

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def wait_for_end(self) -> None:
        """Wait until the client has disconnected."""
        try:
            while self._connection.recv(65536):
                pass
        except ConnectionResetError:
            pass


@contextmanager
def served(act: Callable[[Peer], None], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server that does this with one connection; at the end it has returned."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(TIMEOUT)

        def serve() -> None:
            accepted, _ = listener.accept()
            accepted.settimeout(TIMEOUT)
            with accepted if tls is None else tls.wrap_socket(accepted, server_side=True) as made:
                act(Peer(made))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            scheme = "http" if tls is None else "https"
            yield f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/spell"
        finally:
            thread.join(TIMEOUT)
            assert not thread.is_alive()


class Both:
    """The two clients, used in the same way."""

    def __init__(self, asynchronous: bool) -> None:
        self.asynchronous = asynchronous

    def pieces(self, url: str, *arguments: Any, **options: Any) -> list[Any]:
        """All pieces."""
        if not self.asynchronous:
            with stream(url, *arguments, **options) as pieces:
                return [*pieces]

        async def read() -> list[Any]:
            async with stream_async(url, *arguments, **options) as pieces:
                return [each async for each in pieces]

        return asyncio.run(read())

    def first(self, url: str, end: Callable[[], object] = lambda: None, **options: Any) -> Any:
        """The first piece; then something happens, and the stream is closed."""
        if not self.asynchronous:
            with stream(url, **options) as pieces:
                piece = next(pieces)
                end()
                return piece

        async def read() -> Any:
            async with stream_async(url, **options) as pieces:
                piece = await anext(pieces)
                end()
                return piece

        return asyncio.run(read())


@pytest.fixture(params=[False, True], ids=["threads", "asyncio"])
def client(request: pytest.FixtureRequest) -> Both:
    return Both(request.param)


def test_a_piece_is_there_when_it_has_arrived(client: Both) -> None:
    received = threading.Event()

    def act(peer: Peer) -> None:
        peer.send(HEAD + event(b'{"n":1}'))
        assert received.wait(TIMEOUT)  # nothing else is sent before
        peer.wait_for_end()

    with served(act) as url:
        assert client.first(url, received.set) == {"n": 1}


def test_the_request_has_what_was_given(client: Both) -> None:
    requests: list[bytes] = []

    def act(peer: Peer) -> None:
        requests.append(peer.request)
        peer.send(HEAD + END)

    fields = [("X-Mine", "é"), ("Accept", "application/x-ndjson")]
    with served(act) as url:
        assert client.pieces(f"{url}?a=1", {"b": 2}, headers=fields, token="secret") == []
    head, _, body = requests.pop().partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    assert first == b"POST /spell?a=1 HTTP/1.1"
    assert {b"x-mine: \xe9", b"accept: application/x-ndjson", b"content-length: 8"} < {*lines}
    assert b"authorization: Bearer secret" in lines
    assert body == b'{"b": 2}'


def test_a_request_without_a_body_is_a_get_and_another_body_is_sent_as_it_is() -> None:
    requests: list[bytes] = []

    def act(peer: Peer) -> None:
        requests.append(peer.request)
        peer.send(HEAD + END)

    with served(act) as url:
        assert [*stream(url)] == []
    assert requests[0].startswith(b"GET /spell HTTP/1.1\r\n")
    assert b"content-length" not in requests[0]
    with served(act) as url:
        assert [*stream(url, body=Encoded(b"x", "text/plain"), method="PUT")] == []
    assert requests[1].startswith(b"PUT /spell HTTP/1.1\r\n")
    assert b"content-type: text/plain\r\n" in requests[1]


def test_a_complete_answer_ends_and_stays_at_its_end(client: Both) -> None:
    with served(lambda peer: peer.send(HEAD + event(b"1") + event(b"2") + END)) as url:
        assert client.pieces(url) == [1, 2]
    with served(lambda peer: peer.send(HEAD + event(b"1") + END)) as url, stream(url) as pieces:
        assert [*pieces, *pieces] == [1]
    assert [*pieces] == []


def test_a_truncated_answer_fails_behind_its_pieces_each_time() -> None:
    with served(lambda peer: peer.send(HEAD + event(b"1"))) as url, stream(url) as pieces:
        assert next(pieces) == 1
        for _ in range(2):
            with pytest.raises(CallFailed, match="after 1 piece: the answer was cut off"):
                next(pieces)


def test_an_error_before_the_first_piece_has_its_status_and_a_hint(client: Both) -> None:
    refusal = b"HTTP/1.1 401 X\r\ncontent-length: 0\r\n\r\n"
    with served(lambda peer: peer.send(refusal)) as url:
        with pytest.raises(CallFailed, match="HTTP 401; give a key or token") as caught:
            client.pieces(url)
    assert caught.value.status is GrpcCode.UNAUTHENTICATED


def test_comments_do_not_prolong_the_time_for_a_piece(client: Both) -> None:
    def act(peer: Peer) -> None:
        peer.send(HEAD + event(b"1"))
        try:
            while True:
                peer.send(b"f\r\n: keep-alive\n\n\n\r\n")
        except OSError:  # the client has left
            pass

    with served(act) as url:
        with pytest.raises(CallFailed, match=r"no piece came within 0\.2 s") as caught:
            client.pieces(url, timeout=0.2)
    assert caught.value.status is GrpcCode.DEADLINE_EXCEEDED


def test_nobody_who_listens_is_a_failed_call(client: Both, dead_endpoint: str) -> None:
    with pytest.raises(CallFailed, match=r"refused|failed") as caught:
        client.pieces(f"http://{dead_endpoint}/")
    assert caught.value.status is GrpcCode.UNAVAILABLE
    with pytest.raises(CallFailed):
        client.pieces(f"http://{'x' * 70}.invalid/")


@pytest.mark.parametrize(
    ("url", "headers", "words"),
    [
        ("ftp://x/", [], "write http://HOST:PORT/PATH"),
        ("http:///x", [], "write http://HOST:PORT/PATH"),
        ("http://me@x/", [], "write http://HOST:PORT/PATH"),
        ("http://x:99999/", [], "Port"),
        ("http://x/a b", [], "without spaces"),
        ("http://x/é", [], "without spaces"),
        ("http://x/", [("a", "b\r\nc: d")], "cannot be sent"),
        ("http://x/", [("a", "\u20ac")], "latin-1"),
    ],
)
def test_what_cannot_be_sent_is_refused_at_once(
    client: Both, url: str, headers: list[tuple[str, str]], words: str
) -> None:
    with pytest.raises(NotConnected, match=words):
        client.pieces(url, headers=headers)


def test_wrong_options_are_refused_at_once(client: Both) -> None:
    for timeout in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="timeout must be a positive number"):
            client.pieces("http://x/", timeout=timeout)
    with pytest.raises(TypeError):
        client.pieces("http://x/", {1, 2})
    with pytest.raises(NotConnected, match="/nowhere: "):
        client.pieces("https://x/", ca_file="/nowhere")


def test_tls_checks_the_certificate(client: Both, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with served(lambda peer: peer.send(HEAD + event(b"1") + END), context) as url:
        assert client.pieces(url, ca_file=str(certificate)) == [1]


def test_a_dropped_iterator_cancels_its_call() -> None:
    with served(lambda peer: (peer.send(HEAD + event(b"1")), peer.wait_for_end())[0]) as url:
        pieces: HttpPieces[Any] | None = stream(url)
        assert next(pieces) == 1
        pieces = None
    with served(lambda peer: (peer.send(HEAD + event(b"1")), peer.wait_for_end())[0]) as url:

        async def drop() -> None:
            pieces: AsyncHttpPieces[Any] | None = stream_async(url)
            assert await anext(pieces) == 1
            pieces = None
            gc.collect()
            await asyncio.sleep(0)

        asyncio.run(drop())


def test_closing_by_another_thread_wakes_the_one_that_waits() -> None:
    with served(lambda peer: (peer.send(HEAD + event(b"1")), peer.wait_for_end())[0]) as url:
        pieces = stream(url, timeout=None)
        assert next(pieces) == 1
        failures: list[CallFailed] = []
        waits = threading.Event()

        def wait() -> None:
            waits.set()
            try:
                next(pieces)
            except CallFailed as error:
                failures.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        assert waits.wait(TIMEOUT)
        pieces.close()
        thread.join(TIMEOUT)
    assert [each.status for each in failures] == [GrpcCode.CANCELLED]


def test_a_closed_stream_never_looks_complete() -> None:
    sent = HEAD + event(b"1") + event(b"2") + END
    with served(lambda peer: peer.send(sent)) as url:
        pieces = stream(url)
        assert next(pieces) == 1
        pieces.close()
        pieces.close()
        with pytest.raises(CallFailed, match="cancelled by the caller"):
            next(pieces)
    unused = stream("http://127.0.0.1:1/")
    unused.close()
    with pytest.raises(CallFailed, match="cancelled by the caller"):
        next(unused)


def test_cancelling_a_task_that_waits_cancels_the_call() -> None:
    with served(lambda peer: (peer.send(HEAD + event(b"1")), peer.wait_for_end())[0]) as url:

        async def cancel() -> None:
            pieces = stream_async(url, timeout=None)
            assert await anext(pieces) == 1
            task = asyncio.ensure_future(anext(pieces))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(CallFailed, match="cancelled by the caller"):
                await anext(pieces)

        asyncio.run(cancel())


def test_an_early_refusal_of_a_large_body_is_read() -> None:
    refusal = b"HTTP/1.1 413 X\r\ncontent-length: 9\r\n\r\ntoo large"
    with served(lambda peer: peer.send(refusal)) as url:
        with pytest.raises(CallFailed, match=r"HTTP 413|reset"):
            [*stream(url, body=Encoded(b"x" * 20_000_000, "text/plain"))]
