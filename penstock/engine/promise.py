"""Checks a graph's results against its declared signature.

Declared outputs are promises to callers: each must be there, with its dtype, rank and sizes; sizes
of one name, also those of the inputs, are equal. A result of another dtype is cast if every value
is kept, apart from the rounding of floats; a number becomes an array with one element. Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WrongType
from penstock.request import Feed
from penstock.runtimes.model_input import described_tensor
from penstock.tensor import Signature, TensorSpec, widened

_MOST_AXES = 16


class Promise:
    """The declared outputs of a graph.

    Args:
        op: the op that makes the results, for errors.
        signature: what is declared.
    """

    def __init__(self, op: str, signature: Signature) -> None:
        self._op = op
        self._outputs = signature.outputs
        self._named = tuple(each for each in signature.inputs if any(each.axes))

    def sizes_of(self, feed: Feed) -> dict[str, int]:
        """The sizes of the inputs' named axes, by name; of arrays and nested lists."""
        sizes: dict[str, int] = {}
        for spec in self._named:
            shape = _shape_of(feed.get(spec.alias))
            if len(shape) == len(spec.axes):
                for axis, size in zip(spec.axes, shape, strict=True):
                    if axis is not None:
                        sizes.setdefault(axis, size)
        return sizes

    def kept(self, result: Feed, sizes: dict[str, int]) -> Feed:
        """Return the result with its outputs as declared; the same object if nothing is cast.

        Args:
            result: the last op's dict.
            sizes: of the request's inputs, see ``sizes_of``.

        Raises:
            WrongType: an output is missing, or is not as declared; the text has the op, the output,
                and what was wanted and given.
        """
        found = result
        for spec in self._outputs:
            name = spec.alias
            if name not in result:
                raise WrongType(f"op {self._op!r}: the declared output {name!r} is missing")
            value = result[name]
            array = self._array(spec, value)
            if spec.shape is not None:
                self._check_shape(spec, array, sizes)
            if array is not value:
                if found is result:
                    found = {**result}
                found[name] = array
        return found

    def _array(self, spec: TensorSpec, value: Any) -> NDArray[Any]:
        array: NDArray[Any] = value
        if type(value) is not np.ndarray:
            try:
                texts = spec.dtype.kind in "OSU"
                array = np.asarray(value, object if texts else None)
            except (ValueError, TypeError, OverflowError):
                raise self._broken(spec, f"a {type(value).__name__}") from None
            if array.ndim == 0 and spec.shape and all(size in (None, 1) for size in spec.shape):
                array = array.reshape((1,) * len(spec.shape))
        if array.dtype == spec.dtype:
            return array
        cast = _cast(array, spec.dtype)
        if cast is None:
            raise self._broken(spec, described_tensor(array.dtype, array.shape))
        return cast

    def _check_shape(self, spec: TensorSpec, array: NDArray[Any], sizes: dict[str, int]) -> None:
        wanted, given = spec.shape or (), array.shape
        fits = len(wanted) == len(given)
        if fits:
            for size, found in zip(wanted, given, strict=True):
                if size is not None and size != found:
                    fits = False
        if not fits:
            raise self._broken(spec, described_tensor(array.dtype, given))
        for axis, found in zip(spec.axes, given, strict=False):
            if axis is not None and sizes.setdefault(axis, found) != found:
                shape = described_tensor(array.dtype, given)
                raise self._broken(spec, f"{shape}, where {axis!r} is {sizes[axis]}")

    def _broken(self, spec: TensorSpec, got: str) -> WrongType:
        wanted = described_tensor(spec.dtype, spec.shape)
        return WrongType(
            f"op {self._op!r}: the output {spec.alias!r} is declared as {wanted}, got {got}"
        )


def _cast(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Cast an array if that is safe; else None."""
    array = widened(array)
    theirs, ours = array.dtype.kind, dtype.kind
    if ours in "OSU":
        # A service sends texts and bytes alike; ``protocols.oip`` checks the elements.
        return array if theirs in "OSU" else None
    if theirs in "biu" and ours in "iu":
        cast = array.astype(dtype)
        return cast if np.array_equal(cast, array) else None
    if theirs in "biuf" and ours in "fc":
        try:
            with np.errstate(over="raise"):
                return array.astype(dtype)
        except FloatingPointError:
            return None
    return array.astype(dtype) if theirs == ours and theirs in "bc" else None


def _shape_of(value: Any) -> tuple[int, ...]:
    """The shape of an array, or of nested lists by their first elements."""
    if isinstance(value, np.ndarray):
        return tuple(value.shape)
    shape: list[int] = []
    while isinstance(value, list) and len(shape) < _MOST_AXES:
        shape.append(len(value))
        value = value[0] if value else None
    return tuple(shape)
