"""What memory an array is a view of, and where in it it begins."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

_Owner = TypeVar("_Owner", bound=NDArray[Any])


def owner_of(array: NDArray[Any], kind: type[_Owner]) -> _Owner | None:
    """The nearest array of exactly this type that it is a view of, over however many views."""
    owner: Any = array.base
    while type(owner) is not kind:
        if type(owner) is memoryview:
            owner = owner.obj
        elif isinstance(owner, np.ndarray):
            owner = owner.base
        else:
            return None
    return owner


def distance(owner: NDArray[Any], array: NDArray[Any]) -> int | None:
    """Bytes from where the owner begins to where the array does.

    Args:
        owner: one piece of memory.
        array: stands in that, or claims to.

    Returns:
        None when it has gaps, is not in C order, or does not stand in the owner as a whole.
    """
    if not array.flags.c_contiguous:
        return None
    bytes_between = _address(array) - _address(owner)
    return bytes_between if 0 <= bytes_between <= owner.nbytes - array.nbytes else None


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
