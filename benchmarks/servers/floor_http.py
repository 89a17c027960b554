"""The HTTP floor: a bare ASGI callable under uvicorn that parses the JSON and answers the echo, or
with ``--graph inference`` the price, which it knows beforehand.

What it leaves out is what Penstock adds: routes, checks, deadlines, a graph, a worker, an id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import uvicorn

from benchmarks.inference import right_price
from benchmarks.servers.options import server_options

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def echo_of(asked: dict[str, Any]) -> dict[str, Any]:
    """The echo's five members."""
    return {
        "err_no": 0,
        "err_msg": "",
        "key": asked["key"],
        "value": asked["value"],
        "tensors": [],
    }


def price_of(asked: dict[str, Any]) -> dict[str, Any]:
    """What a model of the Open Inference Protocol answers."""
    rows = asked["inputs"][0]["shape"][0]
    tensor = {"name": "price", "datatype": "FP32", "shape": [rows, 1], "data": [right_price()]}
    return {"model_name": "price", "model_version": "1", "outputs": [tensor]}


async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Read the body, parse it, answer."""
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
    found = price_of(asked) if "inputs" in asked else echo_of(asked)
    answer = orjson.dumps(found)
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
