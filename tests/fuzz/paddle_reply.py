"""Replies as the client reads them, down to arrays."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from penstock.client import replies
from penstock.client.errors import CallFailed
from penstock.errors import PackageError, RequestError
from penstock.protocols import pb, tensors


def run(data: bytes) -> Hashable:
    try:
        response = replies.decode_reply(data)
    except CallFailed as failed:
        return failed.status
    try:
        replies.raise_for_error(response)
    except RequestError as error:
        return type(error).__name__
    try:
        arrays = replies.response_arrays(response)
    except PackageError as error:
        return str(error).partition(": ")[2][:24]
    size = sum(value.nbytes for value in arrays.values() if isinstance(value, np.ndarray))
    assert size <= 8 * len(data)
    return frozenset(
        value.dtype.kind if isinstance(value, np.ndarray) else "text" for value in arrays.values()
    )


def seed(**fields: Any) -> bytes:
    return pb.Response(**fields).SerializeToString()


KINDS = ("int64", "float32", "int32", "float64", "int16", "float16", "uint8", "int8", "bool")
SEEDS = [
    b"",
    seed(key=["a"], value=["1"]),
    seed(err_no=5000, err_msg="no"),
    seed(err_no=77, err_msg="unheard of"),
    *(seed(tensors=[tensors.encode("x", np.ones((2, 2), kind)).message()]) for kind in KINDS),
    seed(tensors=[tensors.encode("t", "some text").message()]),
    seed(tensors=[tensors.encode("n", np.ones(3), as_bytes=True).message()]),
    seed(
        tensors=[
            tensors.encode("l", np.ones((3, 1), "float32"), lod=[[0, 1, 2], [0, 2, 3]]).message()
        ]
    ),
]
WORDS = [data[:64] for data in SEEDS if data] + [b"\xff\xff\xff\xff\x0f"]
