"""Answers to batches of one sample, where they are simple: written, and read, with few steps.

That is how answers mostly are when many batches travel together: each ran well, and gave scalars.
What is anything else, or breaks a rule, is left to crossing.py and the general codec, where it is
judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import inf
from struct import error as StructError
from typing import Final

import ormsgpack

from penstock.executors.processes.frame import LENGTH, SCALARS, packed
from penstock.request import Outcome

_LISTS: Final = {list}
_FOUR: Final = {4}
_FLOATS: Final = {float}
_DICTS: Final = {dict}
_NONES: Final = {type(None)}
_TRUTHS: Final = {bool}


def simple_answer(ran: float, outcomes: Sequence[Outcome]) -> bytes | None:
    """The plain part of the answer to a batch that took so many seconds; None if it is not simple.

    What is in it is what ``outcomes_out`` has.
    """
    if len(outcomes) != 1:
        return None
    (one,) = outcomes
    value = one.value
    if one.error is not None or type(value) is not dict:
        return None
    if not SCALARS.issuperset(map(type, value.values())):
        return None
    return packed([ran, value, None, one.jump])  # a key that is no text is no text to it, either


def simple_answers(body: bytes | memoryview) -> list[tuple[float, Outcome]] | None:
    """How long each batch took, and the outcome of its only sample; None where one is not simple.

    Args:
        body: of the frame of all of them.
    """
    try:
        (length,) = LENGTH.unpack_from(body)
        if len(body) != LENGTH.size + length:
            return None
        values = ormsgpack.unpackb(body[LENGTH.size :])
    except (StructError, ormsgpack.MsgpackDecodeError):  # too short; extensions, or no values
        return None
    if type(values) is not list or not values:
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
