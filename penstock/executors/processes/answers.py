"""Reads the answers to many batches of one sample at once, where all of them are simple.

That is how answers mostly come when many batches travel together: each ran well, and gave scalars.
What is anything else, or breaks a rule, is left to be read one by one, where it is judged. A sender
who cuts its values elsewhere than between its frames gives other answers, but none that it could
not have given anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import inf
from operator import itemgetter, sub
from struct import Struct
from struct import error as StructError
from typing import Final

import ormsgpack

from penstock.executors.processes.frame import LENGTH, SCALARS
from penstock.request import Outcome

_ARRAY: Final = Struct(">BI")
_ARRAY_CODE: Final = 0xDD
_PLAIN: Final = itemgetter(slice(LENGTH.size, None))
_NO_PARTS: Final = {LENGTH.size}
_LISTS: Final = {list}
_FOUR: Final = {4}
_FLOATS: Final = {float}
_DICTS: Final = {dict}
_NONES: Final = {type(None)}
_TRUTHS: Final = {bool}


def simple_answers(
    bodies: Sequence[bytes | memoryview],
) -> list[tuple[float, Outcome]] | None:
    """How long each batch took, and the outcome of its only sample; None where one is not simple.

    Args:
        bodies: of the answers, one frame each.
    """
    try:
        lengths = chain.from_iterable(map(LENGTH.unpack_from, bodies))
        if set(map(sub, map(len, bodies), lengths)) != _NO_PARTS:
            return None
        head = _ARRAY.pack(_ARRAY_CODE, len(bodies))
        values = ormsgpack.unpackb(b"".join((head, *map(_PLAIN, bodies))))
    except (StructError, ormsgpack.MsgpackDecodeError):  # too short; extensions, or no values
        return None
    if set(map(type, values)) != _LISTS or set(map(len, values)) != _FOUR:
        return None
    ran, outputs, errors, jumps = zip(*values, strict=True)
    if set(map(type, ran)) != _FLOATS or not (min(ran) >= 0.0 and sum(ran) < inf):
        return None
    if set(map(type, outputs)) != _DICTS or set(map(type, errors)) != _NONES:
        return None
    if set(map(type, jumps)) != _TRUTHS:
        return None
    if not SCALARS.issuperset(map(type, chain.from_iterable(map(dict.values, outputs)))):
        return None
    return list(zip(ran, map(Outcome, outputs, errors, jumps), strict=True))
