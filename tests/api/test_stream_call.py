"""Signs of life in an answer in pieces, and its head alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from penstock import App, HttpError
from penstock.api import stream_call
from penstock.testing import client


async def test_a_comment_is_sent_while_there_is_no_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_call, "HEARTBEAT", 0.0)
    app, shown = App("silent"), asyncio.Event()

    @app.post("/late")
    async def late(n: int) -> AsyncIterator[int]:
        await shown.wait()
        yield n

    sent: list[dict[str, Any]] = []
    bodies = [{"type": "http.request", "body": b'{"n": 1}', "more_body": False}]

    async def receive() -> dict[str, Any]:
        if bodies:
            return bodies.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if b"keep-alive" in message.get("body", b""):
            shown.set()

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/late",
        "raw_path": b"/late",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1234),
    }
    await asyncio.wait_for(app.asgi(scope, receive, send), 30)
    assert sent[0]["status"] == 200
    assert b"".join(each.get("body", b"") for each in sent) == b": keep-alive\n\ndata: 1\n\n"


def test_the_head_alone_is_an_answer_and_ends_the_generator() -> None:
    app, ended = App("heads"), []

    @app.get("/typed")
    def typed(fails: bool = False) -> Iterator[int]:
        if fails:
            raise HttpError(418, "a teapot")
        try:
            while True:
                yield 1
        finally:
            ended.append("typed")

    with client(app) as http:
        got = http.head("/typed", params={"fails": False})
        assert (got.status_code, got.content) == (200, b"")
        assert got.headers["content-type"] == "text/event-stream"
        assert http.head("/typed", params={"fails": True}).status_code == 418
        counted = http.get("/metrics").text
    assert ended == ["typed"]
    for outcome, count in {"ok": 1, "cancelled": 0}.items():
        assert f'{{code="",outcome="{outcome}",service="typed",version="1"}} {count}.0' in counted
