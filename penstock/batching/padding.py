"""Decides which feeds of different sizes share a batch, pads them, and crops the outputs.

Sizes are those of all axes but the first, which is the rows. Pure arithmetic on shapes, and copies
of arrays.

The rule: a feed joins a batch if, for each of its arrays, padding costs little. ``p`` is the number
of elements of a row at the common size, ``a`` at the batch's size so far, ``b`` at the feed's size:
either ``p - a`` and ``p - b`` are at most ``max_elements``, or ``a / p`` and ``b / p`` are at least
``min_similarity``. The batch then has the common size, with which the next feed is compared. Equal
sizes always join.

Source: ``docs/compatibility.md`` (requests of different sizes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InferenceFailed
from penstock.request import Feed
from penstock.tensor import TensorSpec

Shape: TypeAlias = tuple[int, ...]
"""Sizes of an array's axes, without the first."""
Fixed: TypeAlias = tuple[int | None, ...]
"""The same sizes, with None for the axes that may be padded."""
Axes: TypeAlias = tuple[str | None, ...]
"""Names of an array's axes, the first included; None where an axis is never padded."""

_NUMBERS = "biufc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """How an op's feeds are padded.

    Attributes:
        inputs: axes of each input that may be padded, by name; axes of one name have one size in a
            request. None: all axes of all inputs, and no output is cropped.
        outputs: axes of outputs; one that has the name of an input's axis is cropped to that axis's
            size in the request.
        values: the padding value, by input; 0 by default.
        sizes: each size is rounded up to a multiple of this number, or to the next of these
            ascending numbers; None: no rounding.
        max_elements, min_similarity: see the module.
    """

    inputs: Mapping[str, Axes] | None = None
    outputs: Mapping[str, Axes] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    sizes: int | tuple[int, ...] | None = None
    max_elements: int = 1024
    min_similarity: Fraction = Fraction(1, 2)

    def of_model(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Padding:
        """A copy that uses the model's variable axes where no axes are declared.

        Raises:
            ValueError: a name is not the model's, or a value is none of its input's datatype.
        """
        self._check(inputs, outputs)
        if self.inputs is not None:
            return self
        return replace(self, inputs=_axes(inputs), outputs=self.outputs or _axes(outputs))

    def kept(self) -> list[str]:
        """Outputs with a variable axis that has no input axis's name: that axis is not cropped."""
        named = {axis for axes in (self.inputs or {}).values() for axis in axes}
        return [name for name, axes in self.outputs.items() if {*axes} - named - {None}]

    def axes_of(self, name: Any, value: NDArray[Any]) -> Axes | None:
        """Which axes of an input may be padded; None where none may."""
        if value.ndim < 2 or value.dtype.kind not in _NUMBERS:
            return None
        if self.inputs is None:
            return (None, *[f"{name}.{axis}" for axis in range(1, value.ndim)])
        axes = self.inputs.get(name)
        return axes if axes is not None and len(axes) == value.ndim and any(axes[1:]) else None

    def measure(self, feed: Feed) -> dict[str, tuple[Shape, Fixed]]:
        """The shapes, rounded up, of the inputs that may be padded, and the sizes of their axes
        that may not be; none if axes of one name differ in size.
        """
        shapes: dict[str, tuple[Shape, Fixed]] = {}
        named: dict[str, int] = {}
        for name, value in feed.items():
            axes = self.axes_of(name, value) if type(value) is np.ndarray else None
            if axes is None:
                continue
            shape: list[int] = []
            fixed: list[int | None] = []
            for axis, size in zip(axes[1:], value.shape[1:], strict=True):
                if axis is None:
                    shape.append(size)
                    fixed.append(size)
                elif named.setdefault(axis, size) != size:
                    return {}
                else:
                    shape.append(size if self.sizes is None else self._rounded(size))
                    fixed.append(None)
            shapes[name] = tuple(shape), tuple(fixed)
        return shapes

    def join(self, batch: Sequence[Shape], feed: Sequence[Shape]) -> Sequence[Shape] | None:
        """The shapes of a batch after a feed joins it; None if it may not."""
        if batch == feed:
            return batch
        joined = [tuple(map(max, one, other)) for one, other in zip(batch, feed, strict=True)]
        for both, one, other in zip(joined, batch, feed, strict=True):
            p, a, b = prod(both), prod(one), prod(other)
            if p - min(a, b) > self.max_elements and not self._is_similar(min(a, b), p):
                return None
        return joined

    def pad(self, name: str, arrays: Sequence[NDArray[Any]], shape: Shape) -> NDArray[Any]:
        """Concatenate the arrays of an input, each padded at the end of its axes."""
        rows = sum(map(len, arrays))
        first = arrays[0]
        value = self.values.get(name, 0)
        if value:
            joined = np.full((rows, *shape), value, dtype=first.dtype)
        else:
            joined = np.zeros((rows, *shape), dtype=first.dtype)
        at = 0
        for array in arrays:
            inside = (slice(at, at + len(array)), *map(slice, array.shape[1:]))
            joined[inside] = array
            at += len(array)
        return joined

    def cut(self, result: Feed, feed: Feed, padded: Mapping[str, Shape]) -> Feed:
        """A request's part of a result, cropped to the sizes that it has without padding.

        Args:
            result: its rows of the outputs.
            feed: its inputs.
            padded: the padded shapes.

        Raises:
            InferenceFailed: an output that is to be cropped has another size than the padded input.
        """
        if not any(map(self.outputs.get, result)):
            return result
        sizes: dict[str, tuple[int, int]] = {}
        for name, shape in padded.items():
            for axis, own, got in zip(
                self.axes_of(name, feed[name]) or (), feed[name].shape, (0, *shape), strict=True
            ):
                if axis is not None:
                    sizes[axis] = (own, got)
        return {name: self._cut(name, value, sizes) for name, value in result.items()}

    def _cut(self, name: str, value: Any, sizes: Mapping[str, tuple[int, int]]) -> Any:
        axes = self.outputs.get(name)
        if axes is None or not isinstance(value, np.ndarray) or value.ndim != len(axes):
            return value
        inside = [slice(None)] * value.ndim
        for index, axis in enumerate(axes):
            own, got = sizes.get(axis, (0, 0)) if axis is not None and index else (0, 0)
            if own == got:
                continue
            if value.shape[index] != got:
                raise InferenceFailed(
                    f"output {name!r}: axis {index} ({axis!r}) has the size {value.shape[index]}"
                    f" where that of the padded input is {got}: it does not follow the input, so"
                    f" declare the op's pad.inputs and pad.outputs with other names"
                )
            inside[index] = slice(own)
        return value[tuple(inside)]

    def _is_similar(self, smaller: int, larger: int) -> bool:
        limit = self.min_similarity
        return smaller * limit.denominator >= larger * limit.numerator

    def _rounded(self, size: int) -> int:
        sizes = self.sizes
        if sizes is None:
            return size
        if isinstance(sizes, int):
            return -(-size // sizes) * sizes
        return next((each for each in sizes if each >= size), size)

    def _check(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        for key, given, specs in (
            ("inputs", self.inputs or {}, inputs),
            ("values", self.values, inputs),
            ("outputs", self.outputs, outputs),
        ):
            known = {name for spec in specs for name in (spec.alias, spec.name)}
            if unknown := [name for name in given if name not in known]:
                there = [spec.alias for spec in specs]
                raise ValueError(f"pad.{key}: the model has no {unknown[0]!r}, only {there}")
        for spec in inputs:
            value = self.values.get(spec.alias, self.values.get(spec.name, 0))
            if spec.dtype.kind in _NUMBERS and not _holds(spec.dtype, value):
                raise ValueError(f"pad.values.{spec.alias}: {value} is no {spec.dtype.name}")


def filled_in(measured: Sequence[tuple[Sequence[Shape], int, int]]) -> tuple[int, int]:
    """How many elements a batch has, and how many of them are padding.

    Args:
        measured: for each of its requests: the shapes, the rows, and its own elements.
    """
    sizes = [
        tuple(map(max, *each, each[0]))
        for each in zip(*[one for one, _, _ in measured], strict=True)
    ]
    elements = sum(map(prod, sizes)) * sum(rows for _, rows, _ in measured)
    return elements, elements - sum(own for _, _, own in measured)


def _axes(specs: Sequence[TensorSpec]) -> dict[str, Axes]:
    """The model's variable axes, by their names if they have any."""
    found: dict[str, Axes] = {}
    for spec in reversed(specs):  # should one's alias be another's real name, the alias wins
        if spec.shape is None:
            continue
        names = spec.axes or (None,) * len(spec.shape)
        axes = tuple(
            name or f"{spec.name}.{index}" if index and size is None else None
            for index, (size, name) in enumerate(zip(spec.shape, names, strict=True))
        )
        if any(axes):
            found.setdefault(spec.name, axes)
            found[spec.alias] = axes
    return found


def _holds(dtype: np.dtype[Any], value: float) -> bool:
    if dtype.kind not in "iub":
        return True
    limits = np.iinfo(dtype) if dtype.kind != "b" else None
    low, high = (0, 1) if limits is None else (int(limits.min), int(limits.max))
    return low <= value <= high and value == int(value)
