"""One input of a model: checks and casts its values.

Values are checked before a library gets them, so that errors are clear: dtypes, ranks and fixed
dimensions here, names in ``Model``. Pure.

Casts: a value of the input's dtype passes unchanged. Otherwise

* float64, float16, bfloat16, integers and bool are cast to any float (existing ops feed float64
  arrays, numpy's default); values beyond the float's range are refused, rounding is allowed;
* integers and bool are cast to any integer dtype that can hold every value;
* real numbers are cast to complex;
* everything else is refused: float to integer, number to bool, text to number and back.

A text input takes arrays of ``str``, or of ``bytes`` in UTF-8, or lists that start with a text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InputMismatch, WrongType
from penstock.tensor import LOD_SUFFIX, TensorSpec, lod_offsets, widened

NOT_NPDATA = "feed_batch must be npdata"
"""Begin of the error text for a value that is not an array; existing clients test it."""

SHOWN = 16  # maximum names in an error: a caller may have sent any number
_SHOWN_LENGTH = 64


def can_take(wanted: TensorSpec, given: TensorSpec) -> bool:
    """Whether some arrays of one model's output fit an input, as far as the two models declare."""
    if not _casts(given.dtype.kind, wanted.dtype.kind):
        return False
    if wanted.shape is None or given.shape is None or wanted.shape_is_hint or given.shape_is_hint:
        return True
    return len(wanted.shape) == len(given.shape) and all(
        None in pair or pair[0] == pair[1] for pair in zip(wanted.shape, given.shape, strict=True)
    )


def _casts(theirs: str, ours: str) -> bool:
    """Whether arrays of one kind may be cast to another, if their values fit."""
    if theirs in "OSU" or ours in "OSU":
        return theirs in "OSU" and ours in "OSU"
    return (
        theirs == ours or (theirs in "biu" and ours in "iu") or (theirs in "biuf" and ours in "fc")
    )


class ModelInput:
    """Checks and casts the values of one input. Immutable; thread-safe.

    Args:
        spec: the input's spec in the model.

    Attributes:
        takes_offsets: whether it takes the offsets of a lod.
    """

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.name = spec.name
        self.alias = spec.alias
        self.dtype = spec.dtype
        shape = spec.shape
        self._rank = None if shape is None else len(shape)
        self._fixed = tuple(
            (axis, size) for axis, size in enumerate(shape or ()) if size is not None
        )
        self._is_text = spec.dtype == object
        self.takes_offsets = spec.name.endswith(LOD_SUFFIX) and self._rank == 1

    def fit(self, value: Any) -> NDArray[Any]:
        """Return the value for the session; the same array object if nothing has to change.

        Raises:
            WrongType: the value is neither an array nor a list that starts with a text.
            InputMismatch: the dtype, or, unless the shape is a hint, the rank or a fixed dimension
                does not fit.
        """
        if type(value) is not np.ndarray:
            value = self._as_array(value)
        elif self.takes_offsets:
            value = self._offsets(value)
        if not (self.spec.shape_is_hint or self._has_shape(value.shape)):
            raise self._wrong_shape(value.shape)
        if self._is_text or value.dtype != self.dtype:
            value = self._cast(value)
        array: NDArray[Any] = value
        return array

    def unexpected(self, shape: tuple[int, ...]) -> InputMismatch | None:
        """The error of a shape that differs from the declared one."""
        return None if self._has_shape(shape) else self._wrong_shape(shape)

    def _has_shape(self, shape: tuple[int, ...]) -> bool:
        if self._rank is None:
            return True
        if len(shape) != self._rank:
            return False
        for axis, size in self._fixed:  # noqa: SIM110 - a generator costs as much again
            if shape[axis] != size:
                return False
        return True

    def as_batch(self, value: Any, *, batch: bool) -> Any:
        """Convert a value of ``LocalPredictor.predict`` before it is checked.

        Lists of numbers become arrays; without ``batch``, a batch axis of one row is added.
        """
        if isinstance(value, list):
            texts = self._is_text or (value and isinstance(value[0], str))
            try:
                value = np.array(value, dtype=object if texts else None)
            except (ValueError, OverflowError) as error:
                raise WrongType(f"{NOT_NPDATA}: input {self.alias!r}: {error}") from error
            if value.size == 0 and value.dtype != self.dtype:
                value = value.astype(self.dtype)  # an empty list has no type of its own
        if not batch and isinstance(value, np.ndarray):
            value = value[np.newaxis]
        return value

    def _as_array(self, value: Any) -> NDArray[Any]:
        if isinstance(value, np.ndarray):  # a subclass, which may redefine shapes
            return np.asarray(value)
        if isinstance(value, list):
            if value and self.takes_offsets:
                return self._offsets(value)
            if value and isinstance(value[0], str):
                return np.array(value, dtype=object)
            what = f"a list of {type(value[0]).__name__}" if value else "an empty list"
        else:
            what = type(value).__name__
        raise WrongType(
            f"{NOT_NPDATA}: input {self.alias!r} must be an ndarray or a list of texts, not {what}"
        )

    def _offsets(self, value: Any) -> NDArray[Any]:
        try:
            return np.array(lod_offsets(value), dtype=self.dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputMismatch(f"input {self.alias!r}: {error}") from error

    def _cast(self, value: NDArray[Any]) -> NDArray[Any]:
        if self._is_text:
            return self._as_texts(value)
        value = widened(value)
        theirs, ours = value.dtype.kind, self.dtype.kind
        if theirs in "biu" and ours in "iu":
            if np.can_cast(value.dtype, self.dtype) or self._holds(value):
                return value.astype(self.dtype)
            raise self._mismatch(value, "with values out of its range")
        if theirs == ours == "b" or (theirs in "biuf" and ours in "fc") or theirs == ours == "c":
            try:
                with np.errstate(over="raise"):
                    return value.astype(self.dtype)
            except FloatingPointError:
                raise self._mismatch(value, "with values out of its range") from None
        raise self._mismatch(value)

    def _holds(self, value: NDArray[Any]) -> bool:
        if value.size == 0:
            return True
        limits = np.iinfo(self.dtype)
        return int(value.min()) >= limits.min and int(value.max()) <= limits.max

    def _as_texts(self, value: NDArray[Any]) -> NDArray[Any]:
        kind = value.dtype.kind
        if kind == "U":
            return value.astype(object)
        if kind not in "OS":
            raise self._mismatch(value)
        texts = value.ravel().tolist()
        if all(type(text) is str for text in texts):
            return value
        decoded = np.empty(len(texts), dtype=object)
        for index, text in enumerate(texts):
            try:
                decoded[index] = text.decode() if isinstance(text, bytes) else text
            except UnicodeDecodeError:
                raise self._mismatch(value, "that are not UTF-8") from None
            if not isinstance(decoded[index], str):
                raise self._mismatch(value, f"holding a {type(text).__name__}")
        return decoded.reshape(value.shape)

    def _wrong_shape(self, shape: tuple[int, ...]) -> InputMismatch:
        """Make the error of a shape, without the dtype, which may be one that is cast."""
        return InputMismatch(
            f"invalid arg list: input {self.alias!r} expected the shape"
            f" {_dimensions(self.spec.shape or ())}, got {_dimensions(shape)}"
        )

    def _mismatch(self, value: NDArray[Any], why: str = "") -> InputMismatch:
        expected = described(np.dtype(str) if self._is_text else self.dtype, self.spec.shape)
        got = described(value.dtype, value.shape)
        return InputMismatch(
            f"invalid arg list: input {self.alias!r} expected {expected}, got {got}"
            + (f" {why}" if why else "")
        )


def _dimensions(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def described(dtype: np.dtype[Any], shape: tuple[int | None, ...] | None) -> str:
    """Format a dtype and shape: ``float32[?, 13]``."""
    name = {"U": "str", "S": "bytes"}.get(dtype.kind, dtype.name)
    if shape is None:
        return f"{name} of any rank"
    return name + _dimensions(shape)


def described_tensor(dtype: np.dtype[Any], shape: tuple[int | None, ...] | None) -> str:
    """The same for an input or output, whose dtype is object if it holds texts: ``str[?]``."""
    return described(np.dtype(str) if dtype.kind == "O" else dtype, shape)


def shown(names: Iterable[Any]) -> str:
    """Names as a text of limited length."""
    texts = sorted(str(name)[:_SHOWN_LENGTH] for name in names)
    shown = ", ".join(repr(text) for text in texts[:SHOWN])
    more = len(texts) - SHOWN
    return f"[{shown}{f' and {more} more' if more > 0 else ''}]"
