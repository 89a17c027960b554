"""The bytes of .npy files: an array as numpy reads it, if it does, or a ValueError."""

from __future__ import annotations

import io
from collections.abc import Hashable
from tokenize import TokenError

import numpy as np

from penstock.protocols import npy

KINDS = ("<f4", ">f8", "<f2", "|i1", "<i8", ">u2", "|b1", "<c8", "<U3", "|S2")


def run(data: bytes) -> Hashable:
    try:
        array = npy.read(data)
    except ValueError as error:
        return str(error)[:32]
    assert array.nbytes <= len(data)
    assert not array.dtype.hasobject
    try:
        theirs = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except (ValueError, TokenError):  # the latter from Python 3.12 on
        return "read by us alone"  # such as 03 for 3, or rare blanks: harmless
    assert theirs.shape == array.shape
    assert theirs.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
    assert theirs.astype(array.dtype).tobytes() == array.tobytes()
    try:
        again = npy.read(npy.write(array))
    except TypeError as error:
        return str(error)[:32]
    assert again.tobytes() == array.tobytes()
    return array.dtype.kind, array.ndim


def seed(kind: str, version: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.ones((2, 3), kind), version)
    return file.getvalue()


SEEDS = [seed(kind, (1 + index % 3, 0)) for index, kind in enumerate(KINDS)]
WORDS = [
    b"'descr': ",
    b"'shape': ",
    b"'fortran_order': ",
    b"True",
    b"(2,)",
    b"()",
    b"|O",
    b"<M8",
    b"V4",
]
