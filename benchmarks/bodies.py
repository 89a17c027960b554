"""The small request of the echoes and a large one, and their right answers."""

from __future__ import annotations

import orjson

from penstock.protocols.pb import Request, Response

TEXT = "The quick brown fox jumps over the lazy dog."
LARGE_BYTES = 5 << 20


def echo_json() -> bytes:
    """The body of a POST."""
    return orjson.dumps({"key": ["x"], "value": [TEXT]})


def is_echo_json(answer: bytes) -> bool:
    """Whether this body answers it."""
    right = {"err_no": 0, "err_msg": "", "key": ["x"], "value": [TEXT], "tensors": []}
    return bool(orjson.loads(answer) == right)


def is_sum_json(answer: bytes) -> bool:
    """Whether a computing op answers with this body."""
    found = orjson.loads(answer)
    return found["err_no"] == 0 and "sum" in found["key"]


def is_size_json(answer: bytes) -> bool:
    """Whether ops that hand a large array on answer with this body."""
    return bool(orjson.loads(answer)["value"] == [str(LARGE_BYTES)])


def echo_message(text: str = TEXT) -> bytes:
    """A call's message."""
    request = Request(name="bench", method="prediction", key=["x"], value=[text])
    return request.SerializeToString()


def large_message() -> bytes:
    """The same with a text of 5 MiB."""
    return echo_message((TEXT * (LARGE_BYTES // len(TEXT) + 1))[:LARGE_BYTES])


def is_echo_message(answer: bytes) -> bool:
    """Whether this message answers the small one."""
    return Response.FromString(answer) == Response(key=["x"], value=[TEXT])


def is_large_message(answer: bytes) -> bool:
    """Whether this message answers the large one."""
    sent = Request.FromString(large_message())
    return Response.FromString(answer) == Response(key=sent.key, value=sent.value)
