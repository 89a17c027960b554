"""The HTTP floor: a bare ASGI callable under uvicorn that parses the JSON and answers the echo.

What it leaves out is what Penstock adds: routes, checks, deadlines, a graph, a worker, an id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import uvicorn

from benchmarks.servers.options import server_options

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Read the body, parse it, answer the five members."""
    body = b""
    if scope["method"] == "POST":
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
    else:
        body = b'{"key":[],"value":[]}'
    asked = orjson.loads(body)
    answer = orjson.dumps(
        {
            "err_no": 0,
            "err_msg": "",
            "key": asked["key"],
            "value": asked["value"],
            "tensors": [],
        }
    )
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(answer)).encode("ascii")),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


if __name__ == "__main__":
    options = server_options()
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=options.http_port,
        http="httptools",
        loop="uvloop",
        lifespan="off",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=60,
    )
