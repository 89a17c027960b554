"""Short names of what an op is given: equal for equal inputs, and for no others.

A digest tells every octet of them. Its beginning is their outline, which tells of large parts only
how large they are and how they begin and end: who has another outline need not be read.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.request import Feed

OUTLINE: Final = 16
"""Octets of an outline."""
_WHOLE: Final = 16  # 128 bits: nobody finds two inputs of one digest
_GLANCE: Final = 256  # octets, or items, at either end of a part; a guess at what costs nothing
_DEEPEST: Final = 64

_Tell: TypeAlias = Callable[[Any], None]


def digest_of(inputs: dict[str, Feed]) -> bytes | None:
    """The digest of an op's inputs; None where they hold objects, which have no stable form.

    Costs a pass over all of their octets.
    """
    outline, whole = outline_of(inputs), blake2b(digest_size=_WHOLE)
    if outline is None:
        return None
    _tell(whole.update, inputs, 0, whole=True)
    return outline + whole.digest()


def outline_of(inputs: dict[str, Feed]) -> bytes | None:
    """The beginning of their digest, for little."""
    outline = blake2b(digest_size=OUTLINE)
    try:
        _tell(outline.update, inputs, 0, whole=False)
    except _Unstable:
        return None
    return outline.digest()


class _Unstable(Exception):
    """Met what has no stable form."""


def _tell(tell: _Tell, value: Any, depth: int, *, whole: bool) -> None:
    """Every value is told with its type and its length, so that no two are told alike."""
    kind = type(value)
    if kind is str:
        _tell_octets(tell, b"str", value.encode("utf-8", "surrogatepass"), whole=whole)
    elif kind is bytes:
        _tell_octets(tell, b"bytes", value, whole=whole)
    elif kind is np.ndarray or isinstance(value, np.generic):
        _tell_array(tell, kind.__name__, np.asarray(value), depth, whole=whole)
    elif value is None or kind in (bool, int, float):
        tell(f"{kind.__name__} {value!r} ".encode())
    elif kind in (dict, list, tuple) and depth < _DEEPEST:
        tell(f"{kind.__name__} {len(value)} ".encode())
        for item in value:
            _tell(tell, item, depth + 1, whole=whole)
            if kind is dict:
                _tell(tell, value[item], depth + 1, whole=whole)
    else:
        raise _Unstable


def _tell_octets(tell: _Tell, kind: bytes, octets: bytes, *, whole: bool) -> None:
    tell(b"%s %d " % (kind, len(octets)))
    if whole or len(octets) <= 2 * _GLANCE:
        tell(octets)
    else:
        tell(octets[:_GLANCE])
        tell(octets[-_GLANCE:])


def _tell_array(tell: _Tell, kind: str, array: NDArray[Any], depth: int, *, whole: bool) -> None:
    # The description of a record tells its fields, its str does not.
    tell(f"{kind} {array.dtype.descr} {array.shape} ".encode())
    if array.dtype == object:  # texts, as models give them
        _tell(tell, array.reshape(-1).tolist(), depth + 1, whole=whole)
    elif array.dtype.hasobject:
        raise _Unstable
    elif whole or array.size <= 2 * _GLANCE:
        tell(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    else:
        for end in (array.flat[:_GLANCE], array.flat[-_GLANCE:]):  # copies no more than that
            tell(end.view(np.uint8).data)
