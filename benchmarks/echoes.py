"""The small request of the echoes, over HTTP and over gRPC, and its right answer."""

from __future__ import annotations

from pathlib import Path

import orjson

from penstock.protocols.pb import Request, Response

TEXT = "The quick brown fox jumps over the lazy dog."


def echo_json() -> bytes:
    """The body of a POST."""
    return orjson.dumps({"key": ["x"], "value": [TEXT]})


def echo_json_right(body: bytes, _models: Path) -> bool:
    """Whether this body answers it."""
    members = {"err_no": 0, "err_msg": "", "key": ["x"], "value": [TEXT], "tensors": []}
    return bool(orjson.loads(body) == members)


def echo_message() -> bytes:
    """A call's message."""
    request = Request(name="echo", method="prediction", key=["x"], value=[TEXT])
    return request.SerializeToString()


def echo_message_right(body: bytes, _models: Path) -> bool:
    """Whether this message answers it."""
    return Response.FromString(body) == Response(key=["x"], value=[TEXT])
