"""The Open Inference Protocol over HTTP: JSON, followed by raw bytes.

A body is a JSON object. The header ``Inference-Header-Content-Length`` is the size of the JSON if
raw bytes follow: those of the tensors with a parameter ``binary_data_size``, in order. A tensor's
data in JSON is a list, flat or nested like the shape. FP16 and BF16 are JSON numbers;
``json_numbers`` has the rule for NaN and infinities.

Source: the Open Inference Protocol (REST); Triton's binary tensor data extension. Pure; safe from
any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from penstock.errors import PackageError, Undecodable
from penstock.protocols import json_values as values
from penstock.protocols import oip
from penstock.protocols.json_numbers import loads, numbers_text
from penstock.protocols.json_values import LARGE, Span
from penstock.protocols.oip import BF16, BYTES, MAX_TENSORS, InferRequest, OutTensor
from penstock.protocols.protobuf import join_bytes
from penstock.protocols.tensors import MAX_AXES, DecodeBudget

JSON_SIZE: Final = "inference-header-content-length"
"""The header field with the size of the JSON, if raw bytes follow."""

_SIZE: Final = "binary_data_size"
_BLOCK: Final = 64 << 10
_DEEPEST: Final = 3
"""Nesting levels around a tensor's data."""


def decode(body: bytes, header: int | None = None) -> InferRequest:
    """Decode the request in a body.

    Args:
        body: the decompressed body.
        header: size of the JSON in bytes; None for all of the body.

    Raises:
        Undecodable: the body is not JSON, or a member has the wrong type.
        PackageError: a tensor is inconsistent, or an unsupported extension is requested.
        TooLarge: the numbers would take too much memory.
    """
    if header is None and len(body) <= _USUAL:
        usual = _read_usual(body)
        if usual is not None:
            return usual
    size = len(body) if header is None else header
    if size > len(body):
        raise PackageError(f"the body has {len(body)} bytes, and not {size} of JSON")
    try:
        return _Reader(body, size).request(header is not None)
    except (Undecodable, PackageError) as error:
        if header is None and _SIZE.encode() in body:
            raise error.with_text(f"{error}; {_NO_HEADER}") from None
        raise


def document_of(body: bytes) -> Any:
    """Parse a JSON document; a large one is a ``Span``.

    Raises:
        Undecodable: the body is none.
    """
    if len(body) > LARGE:
        return Span(body, 0, len(body))
    try:
        document = loads(body)
    except orjson.JSONDecodeError as error:
        raise Undecodable(
            f"the body is not a JSON document (line {error.lineno}, column {error.colno})"
        ) from None
    values.check_numbers(body)
    return document


_NO_HEADER: Final = (
    "raw bytes after the JSON need the header Inference-Header-Content-Length, the size of the JSON"
)


def _read_usual(body: bytes) -> InferRequest | None:
    """Fast path for a small body of numbers only; None for any other body.

    It takes a third of the general decoder's time.
    """
    found = InferRequest()
    try:
        document = orjson.loads(body)
        for each in document["inputs"]:
            name, shape, data = each["name"], each["shape"], each["data"]
            row = _RANGES[each["datatype"]]
            if type(data[0]) is list:
                if [len(data), *{*map(len, data)}] != shape:
                    return None
                data = [number for inner in data for number in inner]
            if (
                len(each) != 4
                or type(name) is not str
                or not row.types.issuperset(map(type, data))
                or not {int}.issuperset(map(type, shape))
                or len(shape) > MAX_AXES
                or min(shape, default=0) < 0
                or not row.low <= min(data)
                or not max(data) <= row.high
            ):
                return None
            found.add(name, each["datatype"], np.array(data, row.dtype).reshape(shape))
        if len(document) == 1 or (len(document) == 2 and type(document["id"]) is str):
            found.id = document.get("id", "")
            return found
    except (LookupError, TypeError, ValueError):
        return None
    return None


class _Range(NamedTuple):
    """The range of a datatype's numbers."""

    dtype: np.dtype[Any]
    types: frozenset[type]
    low: float
    high: float


_RANGES: Final[dict[str, _Range]] = {
    **{
        name: _Range(dtype, frozenset((int,)), np.iinfo(dtype).min, np.iinfo(dtype).max)
        for name, dtype in oip.DTYPES.items()
        if dtype.kind in "iu"
    },
    **{
        name: _Range(
            oip.DTYPES[name],
            frozenset((int, float)),
            float(np.finfo(oip.DTYPES[name]).min),
            float(np.finfo(oip.DTYPES[name]).max),
        )
        for name in ("FP32", "FP64")
    },
}
_USUAL: Final = 1_000
"""Bytes of a body below which no number can be too long."""


class _Reader:
    """Decodes one body."""

    def __init__(self, body: bytes, size: int) -> None:
        self._raw = memoryview(body)[size:]
        self._taken = 0
        self._budget = DecodeBudget(len(body))
        self._body = body[:size]

    def request(self, binary: bool) -> InferRequest:
        found = InferRequest()
        inputs = None
        document = document_of(self._body)
        for member, content in values.members_of(document, "the body", MAX_TENSORS):
            if values.is_null(content):
                continue
            if member == "id":
                found.id = values.as_text(content, "id")
            elif member == "inputs":
                inputs = values.as_list(content, "inputs", MAX_TENSORS)
            elif member == "outputs":
                self._outputs(found, content)
            elif member == "parameters":
                parameters = self._parameters(content, "parameters")
                found.all_binary = parameters.get("binary_data_output") is True
                found.priority = parameters.get("priority", 0)
                found.timeout = parameters.get("timeout", 0)
            else:
                values.check_depth(content, 1)
        if inputs is None:
            raise Undecodable(
                'the body has no "inputs": a list of tensors with a name, a shape, a'
                " datatype and data"
            )
        for index, each in enumerate(inputs):
            self._tensor(found, each, f"inputs[{index}]", "input")
        if binary and self._taken != len(self._raw):
            left = len(self._raw) - self._taken
            raise PackageError(f"{left} bytes remain after the last tensor")
        return found

    def response(self, *, binary: bool) -> dict[str, oip.Array]:
        found = InferRequest()
        outputs = None
        document = document_of(self._body)
        for member, content in values.members_of(document, "the body", MAX_TENSORS):
            if member == "outputs":
                outputs = values.as_list(content, "outputs", MAX_TENSORS)
            else:
                values.check_depth(content, 1)
        if outputs is None:
            raise Undecodable('the body has no "outputs"')
        for index, each in enumerate(outputs):
            self._tensor(found, each, f"outputs[{index}]", "output")
        if binary and self._taken != len(self._raw):
            raise PackageError("bytes remain after the last tensor")
        return found.feed

    def _tensor(self, found: InferRequest, value: Any, where: str, kind: str) -> None:
        name = datatype = shape = data = None
        size: int | None = None
        for member, content in values.members_of(value, where, MAX_TENSORS):
            if values.is_null(content):
                continue
            if member == "name":
                name = values.as_text(content, f"{where}.name")
            elif member == "datatype":
                datatype = values.as_text(content, f"{where}.datatype")
            elif member == "shape":
                listed = values.as_list(content, f"{where}.shape", MAX_AXES)
                shape = [
                    values.as_integer(each, f"{where}.shape[{axis}]", 0, 2**63 - 1)
                    for axis, each in enumerate(listed)
                ]
            elif member == "data":
                data = content
            elif member == "parameters":
                size = self._parameters(content, f"{where}.parameters").get(_SIZE)
            else:
                values.check_depth(content, _DEEPEST)
        if name is None or datatype is None or shape is None:
            raise Undecodable(f"{where} needs a name, a shape and a datatype")
        where = f"{kind} {name[:64]!r}"
        if size is not None and data is not None:
            raise PackageError(f"{where} has both data and raw bytes")
        if size is not None:
            array = oip.from_raw(where, datatype, shape, self._take(size, where), self._budget)
        elif data is None:
            raise Undecodable(f"{where} has no data")
        else:
            array = self._array(where, datatype, shape, data)
        found.add(name, datatype, array)

    def _outputs(self, found: InferRequest, value: Any) -> None:
        names = []
        for index, each in enumerate(values.as_list(value, "outputs", MAX_TENSORS)):
            where = f"outputs[{index}]"
            name = None
            parameters: dict[str, Any] = {}
            for member, content in values.members_of(each, where, MAX_TENSORS):
                if member == "name":
                    name = values.as_text(content, f"{where}.name")
                elif member == "parameters" and not values.is_null(content):
                    parameters = self._parameters(content, f"{where}.parameters")
                else:
                    values.check_depth(content, _DEEPEST)
            if name is None:
                raise Undecodable(f"{where} has no name")
            if type(binary := parameters.get("binary_data")) is bool:
                found.binary[name] = binary
            names.append(name)
        found.outputs = tuple(names) or None

    def _parameters(self, value: Any, where: str) -> dict[str, Any]:
        parameters = {}
        for name, content in values.members_of(value, where, MAX_TENSORS):
            if name in oip.NOT_HERE:
                raise PackageError(f"{where}: {oip.NOT_HERE[name]} is not available here")
            if name == _SIZE or (where == "parameters" and name in oip.SCHEDULING):
                parameters[name] = values.as_integer(content, f"{where}.{name}", 0, 2**63 - 1)
            elif name in ("binary_data", "binary_data_output"):
                parameters[name] = values.scalar_of(content, f"{where}.{name}", "true or false")
                if type(parameters[name]) is not bool:
                    raise values.wrong_type(f"{where}.{name}", "true or false", parameters[name])
            else:
                values.check_depth(content, _DEEPEST)
        return parameters

    def _take(self, size: int, where: str) -> memoryview:
        start, self._taken = self._taken, self._taken + size
        if self._taken > len(self._raw):
            raise PackageError(f"{where}: the body ends before its {size} bytes")
        return self._raw[start : self._taken]

    def _array(self, where: str, datatype: str, shape: Sequence[int], data: Any) -> oip.Array:
        dtype = oip.dtype_of(where, datatype)
        count = oip.elements(where, shape)
        if count > len(self._body):
            raise PackageError(
                f"{where}: the shape {[*shape]} needs {count} elements, more than the body holds"
            )
        array = self._budget.array(count, dtype)
        if datatype == BYTES:
            done = self._texts(where, data, array, shape, 0)
        else:
            done = self._numbers(f"{where}: data", data, array, shape, 0)
        if done != count:
            raise PackageError(f"{where}: the shape {[*shape]} needs {count} elements, got {done}")
        return oip.shaped(where, array, shape)

    def _numbers(
        self,
        where: str,
        data: Any,
        into: oip.Array,
        shape: Sequence[int],
        done: int,
        level: int = 1,
    ) -> int:
        """Copy numbers of a nested list into an array; return the number of elements so far."""
        inner = _inner(data, where, shape, level)
        if inner is None:
            part = values.as_array(data, where, into.dtype, self._budget)
            _check_nesting(where, part.size, shape, level)
            stop = done + part.size
            into[done : min(stop, into.size)] = part[: max(0, into.size - done)]
            return stop
        for each in inner:
            done = self._numbers(where, each, into, shape, done, level + 1)
        return done

    def _texts(
        self,
        where: str,
        data: Any,
        into: oip.Array,
        shape: Sequence[int],
        done: int,
        level: int = 1,
    ) -> int:
        inner = _inner(data, where, shape, level)
        if inner is not None:
            for each in inner:
                done = self._texts(where, each, into, shape, done, level + 1)
            return done
        texts = values.as_texts(data, f"{where}: data", max(1, into.size - done))
        _check_nesting(where, len(texts), shape, level)
        into[done : done + len(texts)] = texts
        return done + len(texts)


def _inner(data: Any, where: str, shape: Sequence[int], level: int) -> list[Any] | None:
    """Return the elements of a list of lists, as many as the shape has; None for other lists."""
    if type(data) is Span:
        inner = data.items(_MOST_LISTS, where) if data.holds_lists else None
    else:
        inner = data if type(data) is list and data and type(data[0]) is list else None
    if inner is not None and (level >= len(shape) or len(inner) != shape[level - 1]):
        raise _otherwise_nested(where, len(inner), shape, level)
    return inner


def _check_nesting(where: str, size: int, shape: Sequence[int], level: int) -> None:
    """Check an innermost list; a list without lists in it may have all elements."""
    if level > 1 and (level != len(shape) or size != shape[-1]):
        raise _otherwise_nested(where, size, shape, level)


def _otherwise_nested(where: str, size: int, shape: Sequence[int], level: int) -> PackageError:
    return PackageError(
        f"{where}: its nesting contradicts the shape {[*shape]}: a list at level {level} has {size}"
        f" elements"
    )


_MOST_LISTS: Final = 1_000_000


def encode(
    request: InferRequest, model: str, version: str, outputs: Sequence[OutTensor]
) -> tuple[bytes, int | None]:
    """Encode an answer; return the body, and the size of its JSON if raw bytes follow.

    Raises:
        TypeError: a text is not valid Unicode.
    """
    binary = {each.name: request.binary.get(each.name, request.all_binary) for each in outputs}
    return _encode(_head(request, model, version), outputs, binary)


def encode_request(
    inputs: Sequence[OutTensor],
    *,
    binary: bool,
    outputs: Sequence[str] = (),
    request_id: str = "",
) -> tuple[bytes, int | None]:
    """Encode a client's request; returns as ``encode``.

    Args:
        inputs: the tensors.
        binary: whether they, and the outputs, are raw bytes.
        outputs: names of the requested outputs; empty for all.
        request_id: repeated by the answer; may be empty.

    Raises:
        TypeError: a text is not valid Unicode.
    """
    members: dict[str, Any] = {}
    if request_id:
        members["id"] = request_id
    if binary:
        members["parameters"] = {"binary_data_output": True}
    if outputs:
        beside = {"parameters": {"binary_data": True}} if binary else {}
        members["outputs"] = [{"name": name, **beside} for name in outputs]
    before = orjson.dumps(members)[:-1]
    head = b'%b%b"inputs":[' % (before, b"," if members else b"")
    return _encode(head, inputs, dict.fromkeys((each.name for each in inputs), binary))


def decode_response(body: bytes, header: int | None = None) -> dict[str, oip.Array]:
    """Decode the outputs of an answer; elements of BYTES are texts, or bytes if they are raw.

    Args:
        body: of the answer.
        header: size of the JSON in bytes; None for all of the body.

    Raises:
        Undecodable: the body is not JSON, or a member has the wrong type.
        PackageError: a tensor is inconsistent.
        TooLarge: the numbers would take too much memory.
    """
    size = len(body) if header is None else min(header, len(body))
    return _Reader(body, size).response(binary=header is not None)


def _encode(
    head: bytes, tensors: Sequence[OutTensor], binary: Mapping[str, bool]
) -> tuple[bytes, int | None]:
    """Encode a body that begins with ``head``; ``binary`` selects tensors that are raw bytes."""
    raws: list[bytes] = []
    pieces = [head]
    for index, each in enumerate(tensors):
        if index:
            pieces.append(b",")
        pieces.append(_about(each.name, each.datatype, each.array.shape))
        if binary[each.name]:
            raws.append(oip.to_raw(each))
            pieces.append(b',"parameters":{"%b":%d}}' % (_SIZE.encode(), len(raws[-1])))
        else:
            pieces += (b',"data":[', *data_of(each), b"]}")
    pieces.append(b"]}")
    size = sum(map(len, pieces)) if raws else None
    return join_bytes([*pieces, *raws]), size


@lru_cache(maxsize=1024)
def _about(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    """Encode the description of a tensor, without the end of its object."""
    return orjson.dumps({"name": name, "datatype": datatype, "shape": shape})[:-1]


def _head(request: InferRequest, model: str, version: str) -> bytes:
    identity = b',"id":' + orjson.dumps(request.id) if request.id else b""
    return b'%b%b,"outputs":[' % (of_model(model, version), identity)


@lru_cache(maxsize=1024)
def of_model(model: str, version: str) -> bytes:
    """Encode the first members of an answer, without the end of its object."""
    return orjson.dumps({"model_name": model, "model_version": version})[:-1]


def data_of(tensor: OutTensor) -> list[bytes]:
    """Encode a flat list, without its brackets, in pieces that take little time each."""
    flat = tensor.array.reshape(-1)
    if tensor.datatype == BYTES:
        texts = [
            each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each)
            for each in flat.tolist()
        ]
        return [orjson.dumps(texts)[1:-1]]
    if tensor.datatype == BF16:
        flat = (oip.rounded(flat).astype(np.uint32) << 16).view(np.float32)
    if not (flat.dtype.isnative and flat.flags.c_contiguous):
        flat = np.ascontiguousarray(flat, flat.dtype.newbyteorder("="))
    if flat.size <= _BLOCK:
        return [numbers_text(flat)]
    pieces: list[bytes] = []
    for block in oip.blocks(flat, _BLOCK):
        if pieces:
            pieces.append(b",")
        pieces.append(numbers_text(block))
    return pieces
