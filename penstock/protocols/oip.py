"""The Open Inference Protocol's tensors and requests, independent of the encoding: datatypes,
arrays, bytes.

A tensor has a name, a datatype, a shape and data. The data is numbers or texts
(``oip_json``, ``oip_message``), or raw bytes: little-endian, row by row. A BYTES tensor's raw bytes
are a length of four bytes before each element.

numpy has no bfloat16: arrays of BF16 tensors are float32, and are rounded to BF16 on their way out.
Elements of BYTES tensors are texts, or bytes where a signature says so.

Source: the Open Inference Protocol, version 2; Triton's binary tensor data extension. Pure; safe
from any thread.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InputMismatch, PackageError, WrongType
from penstock.protocols.tensors import MAX_AXES, DecodeBudget
from penstock.request import Feed
from penstock.tensor import Signature, TensorSpec, widened

Array: TypeAlias = NDArray[Any]

BF16: Final = "BF16"
BYTES: Final = "BYTES"
MAX_TENSORS: Final = 1_000
"""Maximum inputs, or requested outputs, of one request."""
_ELEMENT: Final = np.dtype("V96")
"""Memory overhead of an element of a BYTES tensor, in bytes."""
_LENGTH: Final = 4
"""Bytes of the length before an element of a BYTES tensor."""
_LITTLE: Final = sys.byteorder == "little"
NOT_HERE: Final = {
    "classification": "classification",
    "sequence_id": "a sequence of requests",
    "sequence_start": "a sequence of requests",
    "sequence_end": "a sequence of requests",
    "shared_memory_region": "shared memory",
    "shared_memory_byte_size": "shared memory",
    "shared_memory_offset": "shared memory",
}
"""Parameters of unsupported extensions that change a request's meaning, with their extensions."""

SCHEDULING: Final = ("priority", "timeout")
"""Parameters of a request that ``InferRequest`` has as integers."""
EMPTY_FINAL: Final = "triton_enable_empty_final_response"
"""The parameter by which a caller asks for an empty response after the last piece of an answer."""
FINAL: Final = "triton_final_response"
"""The parameter of a stream's response that says whether it is the last one to its request."""

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    BF16: np.dtype(np.float32),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    BYTES: np.dtype(object),
}
"""Dtypes of arrays by datatype."""

_NAMES: Final = {dtype: name for name, dtype in DTYPES.items() if name != BF16}


class OutTensor(NamedTuple):
    """A tensor to send."""

    name: str
    datatype: str
    array: Array


@dataclass(slots=True)
class InferRequest:
    """A request.

    Attributes:
        id: the caller's id, which the answer repeats.
        feed: the inputs.
        datatypes: datatypes of the inputs, by name.
        outputs: names of the requested outputs; None for all.
        binary: names of outputs that are sent as raw bytes, in the JSON encoding.
        all_binary: whether outputs without a parameter are sent as raw bytes.
        model: the model's name; empty in the encoding that has it in the URL.
        version: the version that the caller names; empty for none.
        priority: the priority that the caller names; 0 for none.
        timeout: the time that the caller allows, in microseconds; 0 for none.
        empty_final: whether an empty response follows the last piece of an answer.
    """

    id: str = ""
    feed: Feed = field(default_factory=dict)
    datatypes: dict[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] | None = None
    binary: dict[str, bool] = field(default_factory=dict)
    all_binary: bool = False
    model: str = ""
    version: str = ""
    priority: int = 0
    timeout: int = 0
    empty_final: bool = False

    def add(self, name: str, datatype: str, array: Array) -> None:
        """Add an input.

        Raises:
            PackageError: an input of this name exists.
        """
        if name in self.feed:
            raise PackageError(f"two inputs are called {name[:64]!r}")
        self.feed[name] = array
        self.datatypes[name] = datatype


def dtype_of(where: str, datatype: str) -> np.dtype[Any]:
    """Return the dtype of a datatype's arrays.

    Raises:
        PackageError: the datatype is unknown.
    """
    dtype = DTYPES.get(datatype)
    if dtype is None:
        raise PackageError(f"{where}: unknown datatype {datatype[:64]!r}: it is one of {_KNOWN}")
    return dtype


_KNOWN: Final = ", ".join(DTYPES)


def elements(where: str, shape: Sequence[int]) -> int:
    """Return the number of elements of a shape.

    Raises:
        PackageError: the shape is invalid.
    """
    if len(shape) > MAX_AXES:
        raise PackageError(f"{where}: {len(shape)} axes are more than {MAX_AXES}")
    if shape and min(shape) < 0:
        raise PackageError(f"{where}: the shape {[*shape]} has a negative dimension")
    return prod(shape)


def shaped(where: str, array: Array, shape: Sequence[int]) -> Array:
    """Reshape an array.

    Raises:
        PackageError: the number of elements does not fit.
    """
    count = elements(where, shape)
    if count != array.size:
        raise PackageError(
            f"{where}: the shape {[*shape]} needs {count} elements, got {array.size}"
        )
    try:
        return array.reshape(shape)
    except ValueError:  # no elements, yet the other dimensions overflow numpy's own size
        raise PackageError(f"{where}: the shape {[*shape]} is too large") from None


def from_raw(
    where: str, datatype: str, shape: Sequence[int], raw: bytes | memoryview, budget: DecodeBudget
) -> Array:
    """Decode raw bytes to a read-only array; only BF16 and BYTES are copied.

    Raises:
        PackageError: datatype, shape and number of bytes do not fit.
        TooLarge: the array exceeds the budget.
    """
    dtype = dtype_of(where, datatype)
    count = elements(where, shape)
    if datatype == BYTES:
        return shaped(where, _texts_of(where, count, bytes(raw), budget), shape)
    size = 2 if datatype == BF16 else dtype.itemsize
    if count * size != len(raw):
        raise PackageError(
            f"{where}: {datatype} of shape {[*shape]} is {count * size} bytes, got {len(raw)}"
        )
    if datatype == BF16:
        wide = budget.array(count, np.dtype(np.uint32))
        wide[:] = np.frombuffer(raw, "<u2")
        wide <<= 16
        array = wide.view(np.float32)
    else:
        if datatype == "BOOL" and np.frombuffer(raw, np.uint8).max(initial=0) > 1:
            raise PackageError(f"{where}: a byte of BOOL is 0 or 1")
        array = np.frombuffer(raw, dtype.newbyteorder("<"))
    return shaped(where, array, shape)


def _texts_of(where: str, count: int, raw: bytes, budget: DecodeBudget) -> Array:
    if count * _LENGTH > len(raw):
        raise PackageError(f"{where}: the bytes end before {count} elements")
    budget.array(count, _ELEMENT)
    array = np.empty(count, object)
    at = 0
    for index in range(count):
        begin = at + _LENGTH
        at = begin + int.from_bytes(raw[at:begin], "little")
        if begin > len(raw) or at > len(raw):
            raise PackageError(f"{where}: the bytes end within element {index}")
        array[index] = raw[begin:at]
    if at != len(raw):
        raise PackageError(f"{where}: {len(raw) - at} bytes remain after {count} elements")
    return array


def to_raw(tensor: OutTensor) -> bytes:
    """The raw bytes of a tensor."""
    array = tensor.array
    if tensor.datatype == BYTES:
        return b"".join(_counted(each) for each in array.reshape(-1).tolist())
    if tensor.datatype == BF16:
        return rounded(array).tobytes()
    if not (array.dtype.isnative and _LITTLE):
        array = array.astype(array.dtype.newbyteorder("<"))
    return array.tobytes()  # row by row, whatever its memory layout


def _counted(element: Any) -> bytes:
    octets = element if isinstance(element, bytes) else str(element).encode()
    return len(octets).to_bytes(_LENGTH, "little") + octets


def rounded(array: Array) -> NDArray[np.uint16]:
    """Round an array to BF16, ties to even; return the bits."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    up = 0x7FFF + ((bits >> 16) & 1)
    halves: NDArray[np.uint16] = ((bits + up.astype(np.uint32)) >> 16).astype("<u2")
    nans = np.isnan(array)
    if nans.any():
        halves[nans] = 0x7FC0
    return halves


def fit(request: InferRequest, signature: Signature | None) -> None:
    """Check a request's inputs and outputs against a model's signature, and decode BYTES tensors to
    texts, unless the signature declares bytes.

    Args:
        request: its feed is changed in place.
        signature: the model's signature; None if unknown.

    Raises:
        InputMismatch: an input is missing or unknown, or has another datatype or shape; an output
            is unknown, or requested twice.
    """
    specs = {} if signature is None else signature.input_specs
    feed = request.feed
    if signature is not None:
        if feed.keys() != specs.keys():
            _check_names(specs, feed)
        for name, value in feed.items():
            _check(specs[name], request.datatypes[name], value)
        _check_outputs(request, signature)
    for name, value in feed.items():
        if value.dtype.kind == "O" and (name not in specs or specs[name].dtype.kind != "S"):
            feed[name] = _as_texts(name, value)


def _check_names(specs: dict[str, TensorSpec], feed: Feed) -> None:
    missing = {name for name, spec in specs.items() if not spec.optional} - feed.keys()
    if missing or not feed.keys() <= specs.keys():
        text = f"the model takes the inputs {_listed(specs)}, got {_listed(feed)}"
        optional = [name for name, spec in specs.items() if spec.optional]
        raise InputMismatch(f"{text}; optional are {_listed(optional)}" if optional else text)


def _check(spec: TensorSpec, datatype: str, array: Array) -> None:
    wanted = datatype_of(spec)
    # BF16 is held as float32 here, which is what a model of FP32 takes.
    if datatype != wanted and not {datatype, wanted} <= {BF16, "FP32"}:
        raise InputMismatch(f"input {spec.alias!r} is {wanted}, got {datatype}")
    shape = spec.shape
    if shape is None or spec.shape_is_hint:
        return
    got = array.shape
    fits = len(got) == len(shape)
    if fits:
        for size, there in zip(shape, got):  # noqa: B905 - as long, and the keyword costs more
            if size != there and size is not None:
                fits = False
    if not fits:
        raise InputMismatch(f"input {spec.alias!r} has the shape {dimensions(spec)}, got {[*got]}")


def _check_outputs(request: InferRequest, signature: Signature) -> None:
    if request.outputs is None:
        return
    if len(set(request.outputs)) < len(request.outputs):
        raise InputMismatch("an output is requested twice")
    if not signature.outputs:
        return
    there = signature.output_specs
    unknown = [name for name in request.outputs if name not in there]
    if unknown:
        raise InputMismatch(f"the model gives the outputs {_listed(there)}, not {_listed(unknown)}")


def _as_texts(name: str, array: Array) -> Array:
    texts = np.empty(array.size, object)
    for index, each in enumerate(array.reshape(-1).tolist()):
        try:
            texts[index] = each.decode() if isinstance(each, bytes) else each
        except UnicodeDecodeError:
            raise InputMismatch(f"input {name!r}: element {index} is not UTF-8") from None
    return texts.reshape(array.shape)


def datatype_of(spec: TensorSpec) -> str:
    """Return the datatype of a declared tensor."""
    if spec.bf16:
        return BF16
    return BYTES if spec.dtype.kind in "OSU" else _NAMES.get(spec.dtype, "")


def dimensions(spec: TensorSpec) -> list[int]:
    """Return its shape for the protocol: -1 for variable dimensions."""
    return [-1 if size is None else size for size in spec.shape or ()]


def answered(request: InferRequest, signature: Signature | None, value: Feed) -> list[OutTensor]:
    """Return the tensors of an answer, in the requested or declared order.

    Args:
        request: the request.
        signature: the model's signature; None if unknown.
        value: the graph's result.

    Raises:
        InputMismatch: a requested output does not exist.
        WrongType: a value is not a tensor.
    """
    specs = {} if signature is None else signature.output_specs
    names: Iterable[str] = request.outputs or specs or value
    return [out_tensor(name, value, specs.get(name)) for name in names]


def joined(
    request: InferRequest, signature: Signature | None, pieces: Sequence[Sequence[OutTensor]]
) -> list[OutTensor]:
    """Join the pieces of an answer: each tensor gets a first axis, that of the pieces.

    Args:
        request: the request.
        signature: the model's signature, of one piece; None if unknown.
        pieces: the tensors of each piece, as ``answered`` returns them.

    Raises:
        InputMismatch: the pieces of an output differ in shape or datatype, or the pieces in their
            outputs.
    """
    if not pieces:
        specs = {} if signature is None else signature.output_specs
        return [_no_pieces(specs[name]) for name in request.outputs or specs]
    found = []
    for tensors in by_output(pieces):
        name, datatype, array = tensors[0]
        for other in tensors:
            if other.datatype != datatype or other.array.shape != array.shape:
                raise InputMismatch(
                    f"the pieces of the output {name!r} are not one tensor: {datatype} of shape"
                    f" {[*array.shape]}, and {other.datatype} of shape {[*other.array.shape]}:"
                    f" {_ONE_BY_ONE}"
                )
        found.append(OutTensor(name, datatype, np.stack([each.array for each in tensors])))
    return found


def by_output(pieces: Sequence[Sequence[OutTensor]]) -> list[tuple[OutTensor, ...]]:
    """The tensors of each output, from those of each piece.

    Raises:
        InputMismatch: the pieces differ in their outputs.
    """
    names = [each.name for each in pieces[0]] if pieces else []
    for piece in pieces:
        others = [each.name for each in piece]
        if others != names:
            raise InputMismatch(
                f"the pieces of the answer have the outputs {names}, and {others}: {_ONE_BY_ONE}"
            )
    return [*zip(*pieces, strict=True)]


_ONE_BY_ONE: Final = "ask for them one by one, by ModelStreamInfer or generate_stream"


def _no_pieces(spec: TensorSpec) -> OutTensor:
    datatype = datatype_of(spec)
    shape = 0, *(0 if size is None else size for size in spec.shape or ())
    return OutTensor(spec.alias, datatype, np.empty(shape, DTYPES[datatype]))


def out_tensor(name: str, value: Feed, spec: TensorSpec | None) -> OutTensor:
    """Make one output; errors as in ``answered``."""
    if name not in value:
        if spec is not None:
            raise WrongType(f"the answer lacks the output {name!r}, which the service declares")
        raise InputMismatch(f"there is no output {name[:64]!r}, only {_listed(value)}")
    array = _tensor(name, value[name])
    if spec is not None and spec.bf16 and array.dtype == np.float32:
        return OutTensor(name, BF16, array)
    return _typed("output", name, array)


def sent(name: str, value: Array) -> OutTensor:
    """Make a tensor to send from an array.

    Raises:
        WrongType: the dtype has no datatype.
    """
    return _typed("input", name, value)


def _typed(what: str, name: str, array: Array) -> OutTensor:
    dtype = array.dtype
    kind = dtype.kind
    if kind in "OSU":
        return OutTensor(name, BYTES, array)
    if kind == "V" and dtype.name == "bfloat16":
        return OutTensor(name, BF16, widened(array))
    datatype = _NAMES.get(dtype if dtype.isnative else dtype.newbyteorder("="))
    if datatype is None:
        raise WrongType(f"{what} {name!r}: an array of {array.dtype} cannot be sent")
    return OutTensor(name, datatype, array)


_TEXTS: Final = frozenset((str, bytes))


def _tensor(name: str, value: Any) -> Array:
    """Convert a value to an array; a number or text that is no array has one axis."""
    if not isinstance(value, np.ndarray):
        if isinstance(value, (str, bytes)) or (
            isinstance(value, list) and value and isinstance(value[0], (str, bytes))
        ):
            listed = value if isinstance(value, list) else [value]
            value = np.empty(len(listed), object)
            value[:] = listed
        else:
            try:
                value = np.atleast_1d(np.asarray(value))
            except (ValueError, TypeError, OverflowError) as error:
                raise WrongType(f"output {name!r} is no tensor: {error}") from error
    if value.dtype.kind == "O":
        elements = value.reshape(-1).tolist()
        if not _TEXTS.issuperset(map(type, elements)) and not all(
            isinstance(each, (str, bytes)) for each in elements
        ):
            raise WrongType(
                f"output {name!r} is no tensor: it holds other things than numbers or texts"
            )
    array: Array = value
    return array


def blocks(array: Array, size: int) -> Iterator[Array]:
    """Split a flat array into pieces of ``size`` elements."""
    return (array[at : at + size] for at in range(0, array.size, size))


_SHOWN: Final = 16


def _listed(names: Iterable[Any]) -> str:
    texts = sorted(repr(str(name)[:64]) for name in names)
    more = len(texts) - _SHOWN
    return f"[{', '.join(texts[:_SHOWN])}{f' and {more} more' if more > 0 else ''}]"
