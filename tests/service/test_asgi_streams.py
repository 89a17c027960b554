"""Answers in pieces under an ASGI server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from penstock import App

PIECE = 1000


async def test_a_server_that_takes_messages_slowly_holds_up_the_generator() -> None:
    app, made = App("streams"), 0
    closed = asyncio.Event()

    @app.post("/endless")
    async def endless(n: int) -> AsyncIterator[str]:
        nonlocal made
        try:
            while True:
                made += 1
                yield "x" * PIECE
                await asyncio.sleep(0)
        finally:
            closed.set()

    taken: list[dict[str, Any]] = []
    full, gone = asyncio.Event(), asyncio.Event()
    body = [{"type": "http.request", "body": b'{"n": 1}', "more_body": False}]

    async def receive() -> dict[str, Any]:
        if body:
            return body.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        taken.append(message)
        for _ in range(50):  # slower than the generator
            await asyncio.sleep(0)
        if len(taken) > 200:
            full.set()
            await gone.wait()

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/endless",
        "raw_path": b"/endless",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1234),
    }
    call = asyncio.ensure_future(app.asgi(scope, receive, send))
    await asyncio.wait_for(full.wait(), 30)
    seen = -1
    while seen != made:  # it stands after what is on its way, and unsent
        seen = made
        for _ in range(100):
            await asyncio.sleep(0)
    most = (64 << 10) // PIECE
    assert made <= len(taken) + 2 * most + 16
    gone.set()
    await asyncio.wait_for(closed.wait(), 30)
    await call
