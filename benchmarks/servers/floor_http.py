"""The HTTP floor: a bare ASGI callable under uvicorn that parses the JSON and answers the echo, or
with ``--graph inference`` the price, which is computed once.

It has none of Penstock's additions: routes, checks, deadlines, a graph, a worker, an id.
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


def echo_of(document: dict[str, Any]) -> dict[str, Any]:
    """The echo's five members."""
    return {
        "err_no": 0,
        "err_msg": "",
        "key": document["key"],
        "value": document["value"],
        "tensors": [],
    }


def price_of(document: dict[str, Any]) -> dict[str, Any]:
    """The answer of a model by the Open Inference Protocol."""
    rows = document["inputs"][0]["shape"][0]
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
    document = orjson.loads(body)
    found = price_of(document) if "inputs" in document else echo_of(document)
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
