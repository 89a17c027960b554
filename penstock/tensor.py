"""Names, dtypes and shapes of tensors, and how a lod splits rows into sequences.

A lod ("level of detail") is a list of offsets into axis 0: ``[0, 3, 7]`` cuts seven rows into two
sequences of three and four. Only one level is used, as in the original. A value ``x`` has its lod
under the name ``x.lod`` beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

LOD_SUFFIX = ".lod"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One input or output of a model.

    Attributes:
        name: its name inside the model.
        alias: its public name; equal to ``name`` unless a configuration says otherwise.
        dtype: numpy dtype; ``object`` for texts.
        shape: every dimension, batch axis included; None where it varies. None as a whole when
            even the rank is unknown.
        is_lod: whether a lod splits its rows into sequences.
        bf16: whether it is BF16 on the wire; numpy lacks it, so its arrays are float32.
        shape_is_hint: whether the model may accept arrays of other ranks and sizes, so that they
            are not checked before it runs.
        axes: the model's names of its dimensions, None for those without; empty if no dimension has
            a name.
        optional: whether a request may leave it out.
    """

    name: str
    alias: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None
    is_lod: bool = False
    bf16: bool = False
    shape_is_hint: bool = False
    axes: tuple[str | None, ...] = field(default=(), compare=False)
    optional: bool = False


Declared: TypeAlias = (
    Mapping[str, tuple[Any, Sequence[int | str | None] | None]] | Iterable[TensorSpec]
)


class Signature:
    """The inputs and outputs of a model or a service.

    Args:
        inputs: by name, a datatype and a shape: ``{"x": ("FP32", [-1, 13])}``. Datatypes
            are numpy's, or those of the Open Inference Protocol: ``BOOL``, ``UINT8`` to ``UINT64``,
            ``INT8`` to ``INT64``, ``FP16``, ``BF16`` (float32 here), ``FP32``, ``FP64``, ``BYTES``
            (texts; ``bytes`` for bytes). A dimension varies where it is -1, None or a name; those
            of one name are equal: ``{"x": ("FP32", ["n", 13])}``. A shape of None is any. Specs are
            taken as they are.
        outputs: the same.

    Attributes:
        input_specs: the inputs by alias.
        output_specs: the outputs by alias.

    Raises:
        ValueError: a datatype or a shape is none.
    """

    __slots__ = ("input_specs", "inputs", "output_specs", "outputs")

    def __init__(self, *, inputs: Declared, outputs: Declared = ()) -> None:
        self.inputs = _specs(inputs)
        self.outputs = _specs(outputs)
        self.input_specs = {each.alias: each for each in self.inputs}
        self.output_specs = {each.alias: each for each in self.outputs}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Signature):
            return NotImplemented
        return (self.inputs, self.outputs) == (other.inputs, other.outputs)

    def __hash__(self) -> int:
        return hash((self.inputs, self.outputs))

    def __repr__(self) -> str:
        return f"<Signature {list(self.inputs)} -> {list(self.outputs)}>"


def _specs(declared: Declared) -> tuple[TensorSpec, ...]:
    if not isinstance(declared, Mapping):
        return tuple(declared)
    return tuple(_spec(name, *given) for name, given in declared.items())


def _spec(name: str, datatype: Any, shape: Sequence[int | str | None] | None) -> TensorSpec:
    known = _DTYPES.get(datatype, datatype) if isinstance(datatype, str) else datatype
    try:
        dtype = np.dtype(known)
    except TypeError:
        raise ValueError(f"{name}: {datatype!r} is no datatype") from None
    if dtype.kind == "U":
        dtype = np.dtype(object)
    sizes, axes = None, []
    if shape is not None:
        axes = [each if isinstance(each, str) else None for each in shape]
        sizes = tuple(
            None if each is None or isinstance(each, str) or each < 0 else int(each)
            for each in shape
        )
    return TensorSpec(
        name=name,
        alias=name,
        dtype=dtype,
        shape=sizes,
        bf16=datatype == "BF16",
        axes=tuple(axes) if any(axes) else (),
    )


_DTYPES = {
    "BOOL": "bool",
    "FP16": "float16",
    "BF16": "float32",
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": "object",
    **{
        f"{kind}INT{bits}": f"{kind.lower()}int{bits}"
        for kind in ("", "U")
        for bits in (8, 16, 32, 64)
    },
}


def described(signature: Signature) -> dict[str, list[dict[str, Any]]]:
    """A signature as plain values, for JSON and for other processes."""
    return {
        side: [
            {
                "name": spec.alias,
                "dtype": spec.dtype.name,
                "shape": None if spec.shape is None else list(spec.shape),
                "shape_is_hint": spec.shape_is_hint,
                "bf16": spec.bf16,
            }
            for spec in specs
        ]
        for side, specs in (("inputs", signature.inputs), ("outputs", signature.outputs))
    }


def specs_of(described: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    """Inputs or outputs from plain values of ``described``, without the names inside the model."""
    return tuple(
        TensorSpec(
            name=each["name"],
            alias=each["name"],
            dtype=np.dtype(each["dtype"]),
            shape=None if each["shape"] is None else tuple(each["shape"]),
            shape_is_hint=each["shape_is_hint"],
            bf16=each["bf16"],
        )
        for each in described
    )


def difference(old: Signature | None, new: Signature | None) -> str | None:
    """Why callers of one signature could not call another one, in a few words; None if they can.

    Every request that the old one takes must be good for the new one, and every answer of the new
    one must be as the old one says; inputs that a request may leave out may be added.

    Args:
        old: the one that callers know; None if it is not known: then there is nothing to break.
        new: the other one.
    """
    if old is None:
        return None
    if new is None:
        return "it declares no inputs"
    for side, before, after in (
        ("input", old.input_specs, new.input_specs),
        ("output", old.output_specs, new.output_specs),
    ):
        for name in before:
            if name not in after:
                return f"it has no {side} {name!r}"
        for name, spec in after.items():
            if name in before:
                narrow, wide = (before[name], spec) if side == "input" else (spec, before[name])
                if not _fits(narrow, wide):
                    return f"{side} {name!r} is {_shown(spec)}, and was {_shown(before[name])}"
            elif side == "output" or not spec.optional:
                return f"{side} {name!r} is new"
    return None


def _fits(narrow: TensorSpec, wide: TensorSpec) -> bool:
    """Whether every tensor of one spec is one of another."""
    if (narrow.dtype, narrow.bf16, narrow.is_lod) != (wide.dtype, wide.bf16, wide.is_lod):
        return False
    if narrow.optional and not wide.optional:
        return False
    if wide.shape is None or wide.shape_is_hint:
        return True
    if narrow.shape is None or len(narrow.shape) != len(wide.shape):
        return False
    return all(most in (None, size) for size, most in zip(narrow.shape, wide.shape, strict=True))


def _shown(spec: TensorSpec) -> str:
    shape = (
        "?" if spec.shape is None else ", ".join("?" if x is None else str(x) for x in spec.shape)
    )
    kind = "bfloat16" if spec.bf16 else "text" if spec.dtype.hasobject else spec.dtype.name
    return f"{kind} [{shape}]{' or none' * spec.optional}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredTensor:
    """An input or output as declared.

    Attributes:
        name: its name in requests.
        dtype: of its arrays.
        bf16: whether it is BF16 on the wire.
        shape: every dimension, batch axis included; None where it varies.
        inside: the shape that the model has instead; None if it is the same.
        batched: whether the first dimension is a batch axis that the declaration leaves out.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    inside: tuple[int | None, ...] | None = None
    bf16: bool = False
    batched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredTensors:
    """Those of a model; an empty tuple leaves them as they are.

    Attributes:
        source: what declares them, for messages.
    """

    inputs: tuple[DeclaredTensor, ...] = ()
    outputs: tuple[DeclaredTensor, ...] = ()
    source: str = ""


def widened(array: NDArray[Any]) -> NDArray[Any]:
    """An array of ml_dtypes' bfloat16 as float32; others unchanged."""
    # Compared by its name, so that the package is not needed.
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def lod_offsets(value: Any) -> list[int]:
    """The offsets as plain ints, from a list or an array of any shape (the wire gives ``(2, -1)``).

    Raises:
        ValueError: when they are no lod: fewer than two, not from 0 up, or decreasing.
    """
    offsets = [int(v) for v in np.asarray(value).reshape(-1)]
    if len(offsets) < 2 or offsets[0] != 0:
        raise ValueError(f"a lod starts at 0 and has at least two offsets, got {offsets[:8]}")
    if any(b < a for a, b in itertools.pairwise(offsets)):
        raise ValueError(f"a lod never decreases, got {offsets[:8]}")
    return offsets


def join_lods(lods: Sequence[list[int]]) -> list[int]:
    """Offsets of the concatenation: each lod shifted by the end of the one before."""
    joined = [0]
    for offsets in lods:
        base = joined[-1]
        joined.extend(base + offset for offset in offsets[1:])
    return joined


def cut_by_lod(
    value: NDArray[Any], offsets: list[int], start: int, stop: int
) -> tuple[NDArray[Any], list[int]]:
    """Sequences ``start`` to ``stop`` of a value (as a view), and their lod rebased to 0."""
    first, last = offsets[start], offsets[stop]
    return value[first:last], [offset - first for offset in offsets[start : stop + 1]]
