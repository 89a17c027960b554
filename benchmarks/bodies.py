"""The echoes' small request and a large one, and their expected answers."""

from __future__ import annotations

import orjson
import ormsgpack

from penstock.protocols.pb import Request, Response

TEXT = "The quick brown fox jumps over the lazy dog."
LARGE_BYTES = 5 << 20


def echo_json() -> bytes:
    """The body of the small request, as JSON."""
    return orjson.dumps({"key": ["x"], "value": [TEXT]})


def is_echo_json(answer: bytes) -> bool:
    """Whether this body is the right answer to ``echo_json``."""
    right = {"err_no": 0, "err_msg": "", "key": ["x"], "value": [TEXT], "tensors": []}
    return bool(orjson.loads(answer) == right)


def is_sum_json(answer: bytes) -> bool:
    """Whether this body is the right answer of a computing op."""
    found = orjson.loads(answer)
    return found["err_no"] == 0 and "sum" in found["key"]


def is_size_json(answer: bytes) -> bool:
    """Whether this body is the right answer of ops that pass on a large array."""
    return bool(orjson.loads(answer)["value"] == [str(LARGE_BYTES)])


def echo_message(text: str = TEXT) -> bytes:
    """The message of the small request."""
    request = Request(name="bench", method="prediction", key=["x"], value=[text])
    return request.SerializeToString()


def large_message() -> bytes:
    """The message of the large request, with a text of 5 MiB."""
    return echo_message((TEXT * (LARGE_BYTES // len(TEXT) + 1))[:LARGE_BYTES])


def is_echo_message(answer: bytes) -> bool:
    """Whether this message is the right answer to the small one."""
    return Response.FromString(answer) == Response(key=["x"], value=[TEXT])


def is_large_message(answer: bytes) -> bool:
    """Whether this message is the right answer to the large one."""
    sent = Request.FromString(large_message())
    return Response.FromString(answer) == Response(key=sent.key, value=sent.value)


FLOWER = {"length": 4.7, "width": 1.4, "names": ["Iris", "versicolor"], "count": 3}
FEATURES = [0.0137, -0.1136, 0.2553, -0.0692, 0.0582, -0.0727, -0.1583]
WEIGHTS = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def typed_json() -> bytes:
    """The body of a pydantic model, as JSON."""
    return orjson.dumps(FLOWER)


def is_typed_json(answer: bytes) -> bool:
    """Whether this body is an equal model."""
    return bool(orjson.loads(answer) == FLOWER)


PIECES = 100
"""Of an answer in pieces."""


def pieces_json() -> bytes:
    """The body of a request for so many pieces."""
    return orjson.dumps({"count": PIECES})


def is_pieces(answer: bytes) -> bool:
    """Whether this body has all pieces, as events."""
    events = answer.split(b"\n\n")
    found = [orjson.loads(each.removeprefix(b"data: ")) for each in events[:-1]]
    return found == [{"text": "piece", "index": index} for index in range(PIECES)]


def regress_body(*, packed: bool) -> bytes:
    """One row of features, as JSON or msgpack."""
    value = {"x": FEATURES}
    return ormsgpack.packb(value) if packed else orjson.dumps(value)


def is_price(answer: bytes, *, packed: bool) -> bool:
    """Whether this body is the model's output for ``FEATURES``."""
    found = ormsgpack.unpackb(answer) if packed else orjson.loads(answer)
    right = sum(weight * x for weight, x in zip(WEIGHTS, FEATURES, strict=True))
    return bool(abs(found["price"] - right) < 1e-4)
