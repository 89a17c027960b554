"""The protocol of the original's model server (``GeneralModelService``), independent of the
encoding: requests, their tensors as arrays, and answers.

A tensor has the number of its element type. Each type has one field for its data: a list of
numbers, a list of texts, or raw bytes (little-endian, row by row). Inconsistent tensors are
refused.

Source: ``docs/compatibility.md`` (the model server's protocol). Pure; safe from any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.errors import InputMismatch, PackageError, WrongType
from penstock.protocols import oip
from penstock.protocols.oip import BF16, BYTES, DTYPES, InferRequest, OutTensor
from penstock.protocols.tensors import MAX_AXES, DecodeBudget
from penstock.request import Feed
from penstock.tensor import LOD_SUFFIX, Signature, TensorSpec, lod_offsets

SERVICE: Final = "GeneralModelService"
METHODS: Final = ("inference", "debug")
MAX_TENSORS: Final = 1_000
"""Maximum tensors, or requested outputs, of one request."""

MAX_LOD: Final = 100_000
"""Maximum offsets of one tensor."""

TEXTS: Final = "data"
RAW: Final = "tensor_content"


class ElementType(NamedTuple):
    """An element type: its name (a datatype of ``oip``, or a complex type), and its data field."""

    name: str
    field: str


TYPES: Final[dict[int, ElementType]] = {
    0: ElementType("INT64", "int64_data"),
    1: ElementType("FP32", "float_data"),
    2: ElementType("INT32", "int_data"),
    3: ElementType("FP64", "float64_data"),
    4: ElementType("INT16", RAW),
    5: ElementType("FP16", RAW),
    6: ElementType(BF16, RAW),
    7: ElementType("UINT8", RAW),
    8: ElementType("INT8", RAW),
    9: ElementType("BOOL", "bool_data"),
    10: ElementType("COMPLEX64", "complex64_data"),
    11: ElementType("COMPLEX128", "complex128_data"),
    20: ElementType(BYTES, TEXTS),
}
CODES: Final = {each.name: code for code, each in TYPES.items()}
NUMBERS: Final[dict[str, np.dtype[Any]]] = {
    "int64_data": np.dtype("<i8"),
    "float_data": np.dtype("<f4"),
    "int_data": np.dtype("<i4"),
    "float64_data": np.dtype("<f8"),
    "uint32_data": np.dtype("<u4"),
    "bool_data": np.dtype("?"),
    "complex64_data": np.dtype("<f4"),
    "complex128_data": np.dtype("<f8"),
}
"""The fields of numbers, and their dtypes in memory."""


@dataclass(slots=True)
class InTensor:
    """A received tensor, not validated.

    Attributes:
        name: the input's name inside the model.
        alias: its public name.
        elem_type: the number of its element type.
        shape: dimensions.
        lod: offsets.
        data: the data fields that are not empty: arrays, lists of texts or bytes.
    """

    name: str = ""
    alias: str = ""
    elem_type: int = 0
    shape: list[int] = field(default_factory=list)
    lod: list[int] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class GeneralRequest:
    """A request.

    Attributes:
        tensors: the inputs.
        fetch: aliases of the requested outputs; empty for all.
        profile: whether the answer has profile times.
        log_id: the caller's trace id, which the answer repeats.
        model: the model's name, if the service has several.
    """

    tensors: list[InTensor] = field(default_factory=list)
    fetch: list[str] = field(default_factory=list)
    profile: bool = False
    log_id: int = 0
    model: str = ""


@dataclass(slots=True, kw_only=True)
class Output:
    """One tensor of an answer, or of a client's request.

    Attributes:
        name: the name inside the model.
        tensor: the tensor, under its alias.
        lod: offsets; empty for none.
    """

    name: str
    tensor: OutTensor
    lod: list[int]


@dataclass(slots=True, kw_only=True)
class GeneralResponse:
    """An answer.

    Attributes:
        outputs: the tensors of each engine, by its name.
        profile: begin and end of decoding and of inference, in microseconds of one clock; None if
            not requested.
        log_id: the request's trace id.
        err_no: 0 for success.
        err_msg: the error's text.
    """

    outputs: Mapping[str, Sequence[Output]] = field(default_factory=dict)
    profile: Sequence[int] | None = None
    log_id: int = 0
    err_no: int = 0
    err_msg: str = ""


def listed(what: str, numbers: oip.Array) -> list[int]:
    """Convert a shape or lod to a list, which needs far more memory than its array.

    Raises:
        PackageError: there are too many numbers.
    """
    most = MAX_AXES if what == "shape" else MAX_LOD
    if numbers.size > most:
        raise PackageError(f"a {what} has {numbers.size} numbers, which are more than {most}")
    return numbers.tolist()  # type: ignore[no-any-return]


def feed_of(request: GeneralRequest, signature: Signature, budget: DecodeBudget) -> Feed:
    """Convert a request's tensors to a feed.

    An input is found by the tensor's name or its alias. Texts for an input of bytes (uint8) become
    one array, with a NUL byte after each text, as in the original.

    Raises:
        PackageError: there is no tensor, or one is inconsistent or of an unsupported type.
        InputMismatch: the tensors are not the model's inputs.
        TooLarge: the arrays would take too much memory.
    """
    if not request.tensors:
        raise PackageError("the request has no tensor")
    infer = InferRequest()
    lods: Feed = {}
    for tensor in request.tensors:
        spec = _spec_of(signature.inputs, tensor)
        name = tensor.name or tensor.alias if spec is None else spec.alias
        where = f"tensor {name[:64]!r}"
        datatype, array = _array(where, tensor, spec, budget)
        infer.add(name, datatype, array)
        if tensor.lod:
            lods[name + LOD_SUFFIX] = _lod(where, tensor.lod, array)
    oip.fit(infer, signature)
    return infer.feed | lods


def output_of(tensor: InTensor, budget: DecodeBudget) -> Output:
    """Decode a tensor of an answer, for clients.

    Raises:
        PackageError: the tensor is inconsistent, or of an unsupported type.
        TooLarge: its array would take too much memory.
    """
    alias = tensor.alias or tensor.name
    where = f"tensor {alias[:64]!r}"
    datatype, array = _array(where, tensor, None, budget)
    lod = _lod(where, tensor.lod, array).tolist() if tensor.lod else []
    return Output(name=tensor.name, tensor=OutTensor(alias, datatype, array), lod=lod)


def _spec_of(specs: Sequence[TensorSpec], tensor: InTensor) -> TensorSpec | None:
    for name in (tensor.name, tensor.alias):
        for spec in specs:
            if name and name in (spec.name, spec.alias):
                return spec
    return None


def _array(
    where: str, tensor: InTensor, spec: TensorSpec | None, budget: DecodeBudget
) -> tuple[str, oip.Array]:
    row = TYPES.get(tensor.elem_type)
    if row is None:
        raise PackageError(f"{where}: the element type {tensor.elem_type} is unknown")
    datatype, its_field = row
    if datatype not in DTYPES:
        raise PackageError(f"{where}: the element type {datatype} is not supported")
    for each in tensor.data:
        if each != its_field:
            raise PackageError(f"{where}: {datatype} belongs into {its_field}, not into {each}")
    data = tensor.data.get(its_field)
    if its_field == RAW:
        return datatype, oip.from_raw(where, datatype, tensor.shape, data or b"", budget)
    if its_field == TEXTS:
        if spec is not None and spec.dtype == np.uint8:
            raw = b"".join(each.encode() + b"\0" for each in data or ())
            return "UINT8", np.frombuffer(raw, np.uint8)
        texts = np.empty(len(data or ()), object)
        texts[:] = data or ()
        return datatype, oip.shaped(where, texts, tensor.shape or [texts.size])
    array = np.empty(0, NUMBERS[its_field]) if data is None else data
    return datatype, oip.shaped(where, array, tensor.shape)


def _lod(where: str, lod: list[int], array: oip.Array) -> oip.Array:
    try:
        offsets = lod_offsets(lod)
    except ValueError as error:
        raise PackageError(f"{where}: {error}; only one level is supported") from None
    if array.shape[:1] != (offsets[-1],):
        raise PackageError(
            f"{where}: the lod ends at {offsets[-1]}, but the shape is {[*array.shape]}"
        )
    return np.array(offsets, np.int32)


def outputs_of(
    request: GeneralRequest, signature: Signature, engine: str, value: Feed
) -> dict[str, list[Output]]:
    """Return the tensors of an answer, in the requested or declared order.

    Args:
        request: the request.
        signature: the graph's signature.
        engine: the answering engine; empty for several, whose names with a slash precede the names
            of their outputs.
        value: the graph's result.

    Raises:
        InputMismatch: a requested output does not exist, or is requested twice.
        WrongType: a value is not a tensor of a supported type.
    """
    specs = signature.outputs or [_spec(name) for name in value if not name.endswith(LOD_SUFFIX)]
    by_engine: dict[str, list[tuple[str, TensorSpec]]] = {}
    for spec in specs:
        owner = engine or spec.alias.partition("/")[0]
        by_engine.setdefault(owner, []).append((spec.alias, _inside(spec, "" if engine else owner)))
    return {
        owner: [_output(key, spec, value) for key, spec in _chosen(request.fetch, found)]
        for owner, found in by_engine.items()
    }


def _spec(name: str) -> TensorSpec:
    return TensorSpec(name=name, alias=name, dtype=np.dtype(object), shape=None)


def _inside(spec: TensorSpec, owner: str) -> TensorSpec:
    """Return an output's spec under its names in its own engine."""
    if not owner:
        return spec
    return replace(spec, alias=spec.alias.removeprefix(f"{owner}/"))


def _chosen(
    fetch: Sequence[str], found: Sequence[tuple[str, TensorSpec]]
) -> Sequence[tuple[str, TensorSpec]]:
    if not fetch:
        return found
    chosen = []
    for name in fetch:
        for key, spec in found:
            if name in (spec.alias, spec.name):
                chosen.append((key, spec))
                break
        else:
            raise _unknown(name, [spec for _, spec in found])
    if len({key for key, _ in chosen}) < len(chosen):
        raise InputMismatch("an output is requested twice")
    return chosen


def _unknown(name: str, specs: Sequence[TensorSpec]) -> InputMismatch:
    there = ", ".join(repr(each.alias[:64]) for each in specs[:_SHOWN])
    return InputMismatch(f"there is no output {name[:64]!r}, only [{there}]")


_SHOWN: Final = 16


def _output(key: str, spec: TensorSpec, value: Feed) -> Output:
    tensor = oip.out_tensor(key, value, spec)._replace(name=spec.alias)
    if tensor.datatype not in CODES:
        raise WrongType(f"output {key!r}: an array of {tensor.array.dtype} cannot be sent")
    lod = value.get(key + LOD_SUFFIX)
    return Output(name=spec.name, tensor=tensor, lod=[] if lod is None else lod_offsets(lod))
