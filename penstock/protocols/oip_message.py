"""The Open Inference Protocol over gRPC, for servers and clients.

An answer has raw bytes or typed contents like its request, except that FP16 and BF16 are always raw
bytes.

Source: the Open Inference Protocol (gRPC). Pure; safe from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.errors import PackageError, Undecodable
from penstock.protocols import oip
from penstock.protocols.oip import BF16, BYTES, MAX_TENSORS, InferRequest, OutTensor
from penstock.protocols.protobuf import (
    FIXED32,
    FIXED64,
    LENGTH,
    VARINT,
    Buffer,
    TooManyFields,
    Walker,
    decode_text,
    encode_field,
    join_bytes,
    pack_numbers,
    read_varint,
    varint,
)
from penstock.protocols.tensors import MAX_AXES, DecodeBudget, numbers_of
from penstock.request import Feed

_MOST_FIELDS: Final = 100_000
_SMALL: Final = 16 << 10
_LONGEST_KEPT: Final = 256
"""Maximum bytes of an input's or output's message that is cached."""
_FIXED: Final = {
    name: dtype.newbyteorder("<")
    for name, dtype in oip.DTYPES.items()
    if name not in ("BOOL", BF16, BYTES)
}
"""Datatypes for which all bytes are valid."""


class _Contents(NamedTuple):
    """The field of typed contents for a datatype."""

    number: int
    dtype: np.dtype[Any]


_CONTENTS: Final[dict[str, _Contents]] = {
    "BOOL": _Contents(1, np.dtype("?")),
    **{name: _Contents(2, np.dtype("<i4")) for name in ("INT8", "INT16", "INT32")},
    "INT64": _Contents(3, np.dtype("<i8")),
    **{name: _Contents(4, np.dtype("<u4")) for name in ("UINT8", "UINT16", "UINT32")},
    "UINT64": _Contents(5, np.dtype("<u8")),
    "FP32": _Contents(6, np.dtype("<f4")),
    "FP64": _Contents(7, np.dtype("<f8")),
}
_FIELDS: Final = {each.number: each for each in _CONTENTS.values()}
_BYTES: Final = 8
_TEXT: Final = varint(_BYTES << 3 | LENGTH)
_BOOL_PARAM: Final = 1
_INT64_PARAM: Final = 2
_UINT64_PARAM: Final = 5
_MODEL, _VERSION, _ID, _INPUT, _OUTPUT, _RAW_INPUT = (
    number << 3 | LENGTH for number in (1, 2, 3, 5, 6, 7)
)


class _Tensor:
    """One received input, not validated."""

    __slots__ = ("contents", "datatype", "name", "shape", "texts")

    def __init__(self) -> None:
        self.name = self.datatype = ""
        self.shape: list[tuple[int, int, int]] = []
        self.contents: dict[int, list[tuple[int, int, int]]] = {}
        self.texts: list[bytes] = []


def decode(data: bytes) -> tuple[InferRequest, bool]:
    """Decode a ``ModelInferRequest``; return the request, and whether it has raw bytes.

    Raises:
        Undecodable: the bytes are not such a message, or it has too many fields.
        PackageError: a tensor is inconsistent, or an unsupported extension is requested.
        TooLarge: the numbers would take too much memory.
    """
    try:
        if len(data) <= _SMALL:
            usual = _read_raw(data)
            if usual is not None:
                return usual, True
        return _decode(data)
    except TooManyFields:
        raise Undecodable(
            f"the message has more than {_MOST_FIELDS} fields: numbers must be packed, and many"
            " texts sent as raw bytes"
        ) from None
    except (ValueError, IndexError):
        raise Undecodable("the bytes are not a ModelInferRequest message") from None


def _read_raw(data: bytes) -> InferRequest | None:
    """Fast path for a small message with raw bytes; None for any other message.

    A caller's requests usually differ only in raw bytes and ids: descriptions of tensors are
    cached.
    """
    model = version = request_id = ""
    inputs: list[_Described] = []
    raws: list[bytes] = []
    outputs: list[str] = []
    at, size = 0, len(data)
    try:
        while at < size:
            tag = data[at]
            length = data[at + 1]
            at += 2
            if length > 0x7F:
                length, at = read_varint(data, at - 1)
            content = data[at : at + length]
            at += length
            if tag == _RAW_INPUT:
                raws.append(content)
            elif tag == _MODEL:
                model = content.decode()
            elif tag == _VERSION:
                version = content.decode()
            elif tag == _ID:
                request_id = content.decode()
            elif length > _LONGEST_KEPT:
                return None
            elif tag == _INPUT and (described := _described(content)) is not None:
                inputs.append(described)
            elif tag == _OUTPUT and (output := _wanted(content)) is not None:
                outputs.append(output)
            else:
                return None
    except (ValueError, IndexError):
        return None
    if at > size or not raws or len(raws) != len(inputs) or len(outputs) > MAX_TENSORS:
        return None
    feed: Feed = {}
    datatypes: dict[str, str] = {}
    for (name, datatype, dtype, shape, octets), raw in zip(inputs, raws):  # noqa: B905 - as long
        if name in feed or octets != len(raw):
            return None
        feed[name] = np.ndarray(shape, dtype, raw)
        datatypes[name] = datatype
    if len(feed) > MAX_TENSORS:
        return None
    wanted = tuple(outputs) or None
    return InferRequest(request_id, feed, datatypes, wanted, {}, False, model, version)


class _Described(NamedTuple):
    """The description of an input with raw bytes."""

    name: str
    datatype: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    octets: int


@lru_cache(maxsize=1024)
def _described(message: bytes) -> _Described | None:
    """Decode an input whose datatype has only valid bytes; None for any other."""
    try:
        tensor = _tensor(Walker(message, _MOST_FIELDS), 0, len(message))
        numbers = numbers_of(message, np.dtype("<i8"), tensor.shape, DecodeBudget(0))
    except (PackageError, ValueError, IndexError):
        return None
    dtype = _FIXED.get(tensor.datatype)
    shape = tuple(numbers.tolist())
    if (
        dtype is None
        or tensor.contents
        or tensor.texts
        or len(shape) > MAX_AXES
        or min(shape, default=1) < 1
    ):
        return None
    return _Described(tensor.name, tensor.datatype, dtype, shape, prod(shape) * dtype.itemsize)


@lru_cache(maxsize=1024)
def _wanted(message: bytes) -> str | None:
    """Decode the name of a requested output; None if its message needs validation."""
    try:
        return _output(Walker(message, _MOST_FIELDS), 0, len(message))
    except (PackageError, ValueError, IndexError):
        return None


def _decode(data: bytes) -> tuple[InferRequest, bool]:
    found = InferRequest()
    walker = Walker(data, _MOST_FIELDS)
    budget = DecodeBudget(len(data))
    tensors: list[_Tensor] = []
    raws: list[memoryview] = []
    outputs: list[str] = []
    view = memoryview(data)
    for number, wire_type, begin, end in walker.fields(0, len(data)):
        if wire_type != LENGTH:
            continue
        if number == 7:
            raws.append(view[begin:end])
        elif number == 5:
            tensors.append(_tensor(walker, begin, end))
        elif number == 6:
            outputs.append(_output(walker, begin, end))
        elif number == 1:
            found.model = decode_text(data, begin, end)
        elif number == 2:
            found.version = decode_text(data, begin, end)
        elif number == 3:
            found.id = decode_text(data, begin, end)
        elif number == 4:
            name, value = _parameter(walker, begin, end)
            if name in oip.SCHEDULING:
                setattr(found, name, value)
            elif name == oip.EMPTY_FINAL:
                found.empty_final = bool(value)
        if max(len(raws), len(tensors), len(outputs)) > MAX_TENSORS:
            raise Undecodable(f"the request has more than {MAX_TENSORS} tensors")
    found.outputs = tuple(outputs) or None
    _add_arrays(found, data, "input", tensors, raws, budget)
    return found, bool(raws)


def _add_arrays(
    found: InferRequest,
    data: bytes,
    kind: str,
    tensors: Sequence[_Tensor],
    raws: Sequence[memoryview],
    budget: DecodeBudget,
) -> None:
    """Add the arrays of these tensors to the request."""
    if raws and len(raws) != len(tensors):
        raise PackageError(f"there are {len(tensors)} {kind}s, and raw bytes of {len(raws)}")
    for index, tensor in enumerate(tensors):
        where = f"{kind} {tensor.name[:64]!r}"
        shape = numbers_of(data, np.dtype("<i8"), tensor.shape, budget).tolist()
        if raws:
            if tensor.contents or tensor.texts:
                raise PackageError(f"{where} has both typed contents and raw bytes")
            array = oip.from_raw(where, tensor.datatype, shape, raws[index], budget)
        else:
            array = oip.shaped(where, _typed(data, where, tensor, budget), shape)
        found.add(tensor.name, tensor.datatype, array)


def _tensor(walker: Walker, start: int, stop: int) -> _Tensor:
    tensor = _Tensor()
    data = walker.data
    for number, wire_type, begin, end in walker.fields(start, stop):
        if number == 3:
            tensor.shape.append((wire_type, begin, end))
        elif wire_type != LENGTH:
            continue
        elif number == 1:
            tensor.name = decode_text(data, begin, end)
        elif number == 2:
            tensor.datatype = decode_text(data, begin, end)
        elif number == 4:
            _parameter(walker, begin, end)
        elif number == 5:
            for field, kind, first, last in walker.fields(begin, end):
                if field == _BYTES and kind == LENGTH:
                    tensor.texts.append(data[first:last])
                elif field in _FIELDS and kind in (LENGTH, VARINT, FIXED32, FIXED64):
                    tensor.contents.setdefault(field, []).append((kind, first, last))
    return tensor


def _output(walker: Walker, start: int, stop: int) -> str:
    name = ""
    for number, wire_type, begin, end in walker.fields(start, stop):
        if number == 1 and wire_type == LENGTH:
            name = decode_text(walker.data, begin, end)
        elif number == 2 and wire_type == LENGTH:
            _parameter(walker, begin, end)
    return name


def _parameter(walker: Walker, start: int, stop: int) -> tuple[str, int]:
    """Decode a parameter: its name, and its integer, or whether it is true.

    Raises:
        PackageError: it is one of an unsupported extension, whatever its value; or one of
            ``oip.SCHEDULING`` without an integer from 0 to 2^63 - 1; or ``oip.EMPTY_FINAL``
            without true or false.
    """
    name, value = "", None
    for number, wire_type, begin, end in walker.fields(start, stop):
        if number == 1 and wire_type == LENGTH:
            name = decode_text(walker.data, begin, end)
            if name in oip.NOT_HERE:
                raise PackageError(f"{oip.NOT_HERE[name]} is not available here")
        elif number == 2 and wire_type == LENGTH:
            value = _integer(walker, begin, end)
    if name in oip.SCHEDULING and (type(value) is not int or value >= 2**63):
        raise PackageError(f"the parameter {name} is an integer from 0 to 2^63 - 1")
    if name == oip.EMPTY_FINAL and type(value) is not bool:
        raise PackageError(f"the parameter {name} is true or false")
    return name, value or 0


def _integer(walker: Walker, start: int, stop: int) -> int | None:
    """Decode an ``InferParameter``; None if its value is no integer, true or false."""
    found: int | None = None
    for number, wire_type, value, _ in walker.fields(start, stop):
        if wire_type != VARINT:
            found = None
        elif number == _BOOL_PARAM:
            found = value != 0
        else:
            found = value if number in (_INT64_PARAM, _UINT64_PARAM) else None
    return found


def _typed(data: bytes, where: str, tensor: _Tensor, budget: DecodeBudget) -> oip.Array:
    """Decode typed contents to a flat array."""
    dtype = oip.dtype_of(where, tensor.datatype)
    if tensor.datatype == BYTES:
        if tensor.contents:
            raise PackageError(f"{where}: the contents of BYTES are bytes_contents")
        texts = np.empty(len(tensor.texts), object)
        texts[:] = tensor.texts
        return texts
    row = _CONTENTS.get(tensor.datatype)
    if row is None:
        raise PackageError(f"{where}: {tensor.datatype} is sent as raw bytes only")
    if tensor.texts or tensor.contents.keys() - {row.number}:
        raise PackageError(f"{where}: the contents are not those of {tensor.datatype}")
    wide = numbers_of(data, row.dtype, tensor.contents.get(row.number, []), budget)
    if dtype.itemsize < row.dtype.itemsize and wide.size:
        limits = np.iinfo(dtype)
        if wide.min() < limits.min or wide.max() > limits.max:
            raise PackageError(f"{where}: a value is outside of {limits.min} to {limits.max}")
    return wide.astype(dtype, copy=False)


def encode(
    request: InferRequest,
    raw: bool,
    model: str,
    version: str,
    outputs: Sequence[OutTensor],
    final: bool | None = None,
) -> bytes:
    """Encode a ``ModelInferResponse``.

    Args:
        request: the request.
        raw: whether the request had raw bytes.
        model: the model's name.
        version: the model's version.
        outputs: the tensors.
        final: whether it is the last response to its request; None outside of streams.
    """
    return encode_with(head_of(request.id, model, version, final), raw, outputs)


def encode_with(head: bytes, raw: bool, outputs: Sequence[OutTensor]) -> bytes:
    """The same; the head is that of ``head_of``, which the pieces of an answer share."""
    return _message(head, raw, outputs, raws=6)


def head_of(request_id: str, model: str, version: str, final: bool | None = None) -> bytes:
    """Encode what a response has besides its tensors; the arguments are those of ``encode``."""
    head = _of_model(model, version)
    if request_id:
        head = b"".join([head, *encode_field(3, [request_id.encode()])])
    return head if final is None else head + _FINAL[final]


_FINAL: Final[dict[bool, bytes]] = {
    final: b"".join(
        encode_field(
            4,
            [
                *encode_field(1, [oip.FINAL.encode()]),
                *encode_field(2, [bytes((_BOOL_PARAM << 3 | VARINT, final))]),
            ],
        )
    )
    for final in (False, True)
}
"""The parameter ``oip.FINAL`` of a response."""


def in_stream(response: bytes) -> bytes:
    """Encode a ``ModelStreamInferResponse`` with this ``ModelInferResponse``."""
    return b"".join((_RESPONSE, varint(len(response)), response))


_RESPONSE: Final = varint(2 << 3 | LENGTH)


def stream_error(text: str, request_id: str, model: str, version: str) -> bytes:
    """Encode a ``ModelStreamInferResponse`` with an error, which is the last response to its
    request.
    """
    message = encode_field(1, [text.encode(errors="replace")])
    return b"".join([*message, in_stream(head_of(request_id, model, version, True))])


def id_of(data: bytes) -> str:
    """The id of a ``ModelInferRequest`` that may be undecodable; empty if it has none."""
    found = ""
    try:
        for number, wire_type, begin, end in Walker(data, _MOST_FIELDS).fields(0, len(data)):
            if number == 3 and wire_type == LENGTH:
                found = decode_text(data, begin, end)
    except (ValueError, IndexError):
        return ""
    return found


def encode_request(
    request_id: str, model: str, inputs: Sequence[OutTensor], outputs: Sequence[str]
) -> bytes:
    """Encode a client's ``ModelInferRequest`` with raw bytes.

    Args:
        request_id: repeated by the answer; may be empty.
        model: the model's name.
        inputs: the tensors.
        outputs: names of the requested outputs; empty for all.
    """
    return _message(head_of(request_id, model, ""), True, inputs, _wanted_fields(outputs), raws=7)


def _wanted_fields(outputs: Sequence[str]) -> list[Buffer]:
    return [
        piece for name in outputs for piece in encode_field(6, encode_field(1, [name.encode()]))
    ]


def encode_request_apart(
    request_id: str, model: str, inputs: Sequence[OutTensor], outputs: Sequence[str]
) -> bytes:
    """The same without raw bytes, which are sent in another way."""
    return _apart(head_of(request_id, model, ""), inputs, _wanted_fields(outputs))


def encode_response_apart(head: bytes, outputs: Sequence[OutTensor]) -> bytes:
    """A ``ModelInferResponse`` without raw bytes, which are sent in another way; the head is that
    of ``head_of``.
    """
    return _apart(head, outputs)


def _apart(head: bytes, tensors: Sequence[OutTensor], wanted: Sequence[Buffer] = ()) -> bytes:
    pieces: list[Buffer] = [head]
    for each in tensors:
        pieces += encode_field(5, [_about(each.name, each.datatype, each.array.shape)])
    return join_bytes([*pieces, *wanted])


class OutputDescription(NamedTuple):
    """The description of an output."""

    name: str
    datatype: str
    shape: tuple[int, ...]


def decode_response_apart(data: bytes) -> list[OutputDescription]:
    """Decode the descriptions of the outputs of a ``ModelInferResponse`` without raw bytes.

    Raises:
        Undecodable: the bytes are not such a message, or it has too many fields.
        TooLarge: the numbers would take too much memory.
    """
    walker = Walker(data, _MOST_FIELDS)
    budget = DecodeBudget(len(data))
    found: list[OutputDescription] = []
    try:
        for number, wire_type, begin, end in walker.fields(0, len(data)):
            if number == 5 and wire_type == LENGTH:
                tensor = _tensor(walker, begin, end)
                shape = numbers_of(data, np.dtype("<i8"), tensor.shape, budget).tolist()
                found.append(OutputDescription(tensor.name, tensor.datatype, tuple(shape)))
    except (ValueError, IndexError):
        raise Undecodable("the bytes are not a ModelInferResponse message") from None
    return found


def decode_response(data: bytes) -> dict[str, oip.Array]:
    """Decode the outputs of a ``ModelInferResponse``; elements of BYTES are bytes.

    Raises:
        Undecodable: the bytes are not such a message, or it has too many fields.
        PackageError: a tensor is inconsistent.
        TooLarge: the numbers would take too much memory.
    """
    found = InferRequest()
    tensors: list[_Tensor] = []
    raws: list[memoryview] = []
    walker = Walker(data, _MOST_FIELDS)
    view = memoryview(data)
    try:
        for number, wire_type, begin, end in walker.fields(0, len(data)):
            if number == 6 and wire_type == LENGTH:
                raws.append(view[begin:end])
            elif number == 5 and wire_type == LENGTH:
                tensors.append(_tensor(walker, begin, end))
        _add_arrays(found, data, "output", tensors, raws, DecodeBudget(len(data)))
    except (ValueError, IndexError):
        raise Undecodable("the bytes are not a ModelInferResponse message") from None
    return found.feed


def _message(
    head: bytes,
    raw: bool,
    tensors: Sequence[OutTensor],
    wanted: Sequence[Buffer] = (),
    *,
    raws: int,
) -> bytes:
    """Encode a request or a response, which differ in the field number of raw bytes."""
    # Called for each piece of an answer: the fields are written in place.
    pieces: list[Buffer] = [head]
    for each in tensors:
        raw = raw or each.datatype in _ONLY_RAW
    behind: list[Buffer] = []
    for each in tensors:
        about = _about(each.name, each.datatype, each.array.shape)
        if raw:
            octets = oip.to_raw(each)
            behind += (_TAGS[raws], varint(len(octets)), octets)
            pieces += (_TENSOR, varint(len(about)), about)
        else:
            contents = _contents(each)
            inner = len(contents[0]) if len(contents) == 1 else sum(map(len, contents))
            size = varint(inner)
            pieces += (_TENSOR, varint(len(about) + 1 + len(size) + inner), about)
            pieces += (_TENSOR_CONTENTS, size, *contents)
    return join_bytes([*pieces, *wanted, *behind])


_ONLY_RAW: Final = (BF16, "FP16")
_TENSOR: Final = varint(5 << 3 | LENGTH)
"""The tag of an input, and of an output."""
_TENSOR_CONTENTS: Final = _TENSOR
_TAGS: Final = {number: varint(number << 3 | LENGTH) for number in (6, 7)}


@lru_cache(maxsize=1024)
def _of_model(model: str, version: str) -> bytes:
    return b"".join([*encode_field(1, [model.encode()]), *encode_field(2, [version.encode()])])


@lru_cache(maxsize=1024)
def _about(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    """Encode the description of a tensor."""
    texts = [*encode_field(1, [name.encode()]), *encode_field(2, [datatype.encode()])]
    return b"".join([*texts, *encode_field(3, [*map(varint, shape)])])


def _contents(tensor: OutTensor) -> list[Buffer]:
    flat = tensor.array.reshape(-1)
    if tensor.datatype == BYTES:
        found: list[Buffer] = []
        for each in flat.tolist():
            text = each if isinstance(each, bytes) else str(each).encode()
            found += (_TEXT, varint(len(text)), text)
        return found
    row = _CONTENTS[tensor.datatype]
    return encode_field(row.number, pack_numbers(flat, row.dtype))
