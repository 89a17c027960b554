"""The tensors of a typed function: its parameters and its answer, for the Open Inference Protocol.

    annotation                                 tensor
    Annotated[np.ndarray, Array(dtype, shape)] of this dtype and shape
    float, int, bool, str, bytes, an Image     FP64, INT64, BOOL, BYTES of the shape [1]
    list of float, int, bool, str or bytes     of the shape [-1]

A request has a tensor for each member, which may be left out if the member has a default. An answer
that is a model has one for each member, any other is the tensor ``result``; the tensors of a
function that yields are those of one piece. Functions with other types, or answers whose members
may be missing, have none.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import replace
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import numpy as np

from penstock.errors import WrongType
from penstock.request import Feed
from penstock.tensor import Signature as Tensors
from penstock.tensor import TensorSpec
from penstock.typed.annotations import element_of, models_of, unnamed
from penstock.typed.arrays import Array, Image
from penstock.typed.files import members_of_model, names_with_default
from penstock.typed.signature import Schema, Signature

RESULT: Final = "result"
"""The name of an answer that is not a model."""

_DTYPES: Final[Mapping[type, str]] = {
    float: "float64", int: "int64", bool: "bool", str: "object", bytes: "S",
}  # fmt: skip


class TypedTensors:
    """Converts between tensors and the values of a typed function.

    Args:
        request: of the function.
        response: of the function.

    Attributes:
        signature: the tensors.

    Raises:
        ValueError: a type has no tensor; the text names it.
    """

    def __init__(self, request: Schema, response: Schema) -> None:
        optional = _with_default(request)
        inputs = [_spec(name, kind, optional=name in optional) for name, kind in _members(request)]
        found = models_of(response.annotation)
        answers = _members(response) if found else [(RESULT, response.annotation)]
        self.signature = Tensors(
            inputs=inputs, outputs=[_spec(name, kind) for name, kind in answers]
        )
        self._outputs = [
            (each.alias, each.axes, np.dtype(object) if each.dtype.kind == "S" else each.dtype)
            for each in self.signature.outputs
        ]
        self._bytes = [each.alias for each in inputs if each.dtype.kind == "S"]
        self._scalars = [each.alias for each in inputs if each.axes == _ONE]
        self._lists = [each.alias for each in inputs if each.axes == _SEVERAL]

    def members(self, feed: Feed) -> Feed:
        """The members of a request, from tensors that fit the signature."""
        found = dict(feed)
        for name in self._bytes:  # texts in JSON are not the Base64 of bytes here
            if name in feed:
                raw = [each.encode() if isinstance(each, str) else each for each in feed[name].flat]
                feed[name] = np.array([*raw, None], object)[:-1]
        for name in self._scalars:
            if name in feed:
                found[name] = feed[name].reshape(-1).tolist()[0]
        for name in self._lists:
            if name in feed:
                found[name] = feed[name].tolist()
        return found

    def outputs(self, value: Feed) -> Feed:
        """The tensors of an answer.

        Raises:
            WrongType: a value does not fit, such as an integer beyond 64 bits.
        """
        found: Feed = {}
        for name, axes, dtype in self._outputs:
            given = value.get(name)
            if isinstance(given, enum.Enum):
                given = given.value
            try:
                if axes is _ONE:
                    found[name] = np.array([given], dtype)
                elif axes is _SEVERAL:
                    found[name] = np.array(given, dtype)
                else:
                    found[name] = np.asarray(given)
            except (TypeError, ValueError, OverflowError) as error:
                raise WrongType(f"the output {name!r} is no tensor: {error}") from None
        return found


_ONE: Final = ("one",)
_SEVERAL: Final = ("several",)
"""The names of the axes of scalars and of lists."""


def tensors_of(signature: Signature) -> TypedTensors | str:
    """The tensors of a function, or why it has none."""
    if signature.parameters is not None:
        return "has parameters outside of the body"
    try:
        return TypedTensors(signature.request, signature.response)
    except ValueError as error:
        return str(error)


def _members(schema: Schema) -> list[tuple[str, Any]]:
    found = models_of(schema.annotation)
    members = members_of_model(found[0]) if len(found) == 1 else []
    if not members or any(name is None for name, _ in members):
        raise ValueError("its parameters are not those of one model")
    return [(name, kind) for name, kind in members if name is not None]


def _with_default(schema: Schema) -> set[str | None]:
    """The members of a request that may be missing."""
    found = models_of(schema.annotation)
    return names_with_default(found[0]) if len(found) == 1 else set()


def _spec(name: str, kind: Any, *, optional: bool = False) -> TensorSpec:
    spec = _spec_of(name, kind, optional=optional)
    return replace(spec, optional=True) if optional else spec


def _spec_of(name: str, kind: Any, *, optional: bool) -> TensorSpec:
    base = unnamed(kind)
    marks: list[Any] = []
    while get_origin(base) is Annotated or (optional and _or_none(base) is not None):
        if get_origin(base) is Annotated:
            base, *more = get_args(base)
            marks += more
        else:
            base = _or_none(base)
        base = unnamed(base)
    array = next((each for each in marks if isinstance(each, Array)), None)
    if array is not None:
        dtype = np.dtype(array.dtype)
        sizes = (
            None
            if array.shape is None
            else tuple(each if isinstance(each, int) else None for each in array.shape)
        )
        return _tensor(name, np.dtype(object) if dtype.kind == "U" else dtype, sizes)
    if any(isinstance(each, Image) for each in marks):
        return _tensor(name, np.dtype("S"), (1,), _ONE)
    scalar = _scalar(base)
    if scalar is not None:
        return _tensor(name, np.dtype(scalar), (1,), _ONE)
    element = _scalar(unnamed(element_of(base)))
    if element is not None:
        return _tensor(name, np.dtype(element), (None,), _SEVERAL)
    raise ValueError(f"{name!r} ({getattr(base, '__name__', base)}) has no tensor")


def _or_none(kind: Any) -> Any:
    """The T of ``T | None``; None for any other type."""
    if get_origin(kind) not in (Union, UnionType):
        return None
    others = [each for each in get_args(kind) if each is not NoneType]
    return others[0] if len(others) == 1 else None


def _tensor(
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int | None, ...] | None,
    axes: tuple[str, ...] = (),
) -> TensorSpec:
    return TensorSpec(name=name, alias=name, dtype=dtype, shape=shape, axes=axes)


def _scalar(kind: Any) -> str | None:
    """The dtype of a scalar type; None for other types."""
    if get_origin(kind) is Annotated:
        return _scalar(get_args(kind)[0])
    if get_origin(kind) is Literal:
        kinds = {type(each) for each in get_args(kind)}
        return _DTYPES.get(kinds.pop()) if len(kinds) == 1 else None
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        kinds = {type(each.value) for each in kind}
        return _DTYPES.get(kinds.pop()) if len(kinds) == 1 else None
    return _DTYPES.get(kind) if isinstance(kind, type) else None
