"""One call from the shell, to servers that misbehave."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.client import CallFailed, calls
from penstock.client.calls import ask_http, lacks_name


@contextmanager
def answering(status: int, body: bytes, **headers: str) -> Iterator[str]:
    """A server with the same response to every request."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def call(target: str) -> object:
    return ask_http(target, {"a": "1"}, name="x", method="y", log_id=0, timeout=10)


def test_a_reply_is_its_json() -> None:
    with answering(200, b'{"err_no": 0}') as target:
        assert call(target) == {"err_no": 0}


@pytest.mark.parametrize(
    ("status", "body", "headers", "words"),
    [
        (200, b"not json", {}, "the reply is no JSON"),
        (200, b"[" * 200_000, {}, "the reply is no JSON"),
        (200, b"[1]", {}, "the reply is no JSON object"),
        (503, b'{"error": "closing"}', {}, 'HTTP 503: {"error": "closing"}'),
        (307, b"", {"location": "http://127.0.0.1:1/"}, "HTTP 307"),
        (302, b"", {"location": "file:///etc/passwd"}, "HTTP 302"),
    ],
)
def test_an_invalid_reply_is_a_failed_call(
    status: int, body: bytes, headers: dict[str, str], words: str
) -> None:
    with answering(status, body, **headers) as target:
        with pytest.raises(CallFailed) as caught:
            call(target)
    assert words in str(caught.value)


def test_a_reply_over_the_limit_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_REPLY_BYTES", 10)
    with answering(200, b'{"err_no": 0}') as target:
        with pytest.raises(CallFailed, match="the reply is too large"):
            call(target)


@pytest.mark.parametrize(
    ("reply", "name", "expected"),
    [
        ({"err_no": 3002}, "", True),
        ({"err_no": 3002}, "x", False),
        ({"err_no": 51}, "", False),
        ({"err_no": 0}, "", False),
        ({}, "", False),
    ],
)
def test_only_a_refused_call_without_a_name_needs_a_name(
    reply: dict[str, object], name: str, expected: bool
) -> None:
    assert lacks_name(reply, name) is expected
