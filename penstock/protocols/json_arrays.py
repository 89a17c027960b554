"""Arrays for a model's inputs from what callers send without types: nested lists, numbers, texts.

Pure; safe from any thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import InputMismatch
from penstock.protocols import json_numbers
from penstock.protocols.array_text import parse_array


def array_of(name: str, value: Any, dtype: np.dtype[Any] | None) -> Any:
    """Convert nested lists, a number, or a text such as ``"[[1, 2]]"`` to an array; arrays are
    returned as they are.

    Args:
        name: of the input, for the error.
        value: to convert.
        dtype: of the input; None if it is not known.

    Raises:
        InputMismatch: it is no array.
    """
    try:
        if isinstance(value, np.ndarray):
            return value
        if isinstance(value, str):
            return parse_array(value)
        if dtype is not None and dtype.kind in "iuf":
            if isinstance(value, (list, int, float)):
                return json_numbers.array(value, dtype)
        elif _has_texts(value):
            return np.array(value, object)
        if isinstance(value, (list, int, float, np.generic)):
            return np.array(value)
        raise ValueError(f"it is of type {type(value).__name__}: send numbers, or a .npy file")
    except (ValueError, TypeError, OverflowError) as error:
        raise InputMismatch(f"{name!r} is no array: {error}") from error


def _has_texts(value: Any) -> bool:
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, str)
