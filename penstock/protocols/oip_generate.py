"""Triton's generate extension: inputs and outputs as members of a JSON object.

A member of the request that has an input's name is its data: an element, or a flat list. The
elements of a list are distributed over the input's shape: its last variable dimension gets what the
fixed ones leave, others are 1. Members of ``parameters`` are read like those of the request itself.
Any other member is a parameter: an element without a meaning here, except for those of ``oip``.

A response has the model's name and version, and a member for each output: the only element, or a
flat list. Of an answer in pieces, texts are joined to one, and of any other output the member is a
list with what each piece would have.

Source: Triton's document ``extension_generate.md``, and its ``http_server.cc``. Pure; safe from any
thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import orjson

from penstock.errors import InputMismatch, PackageError
from penstock.protocols import json_values as values
from penstock.protocols import oip, oip_json
from penstock.protocols.json_values import Span
from penstock.protocols.oip import BYTES, MAX_TENSORS, InferRequest, OutTensor
from penstock.protocols.protobuf import join_bytes
from penstock.protocols.tensors import DecodeBudget
from penstock.tensor import Signature, TensorSpec

_PARAMETERS: Final = "parameters"
_ID: Final = "id"
_MOST_TEXTS: Final = 100_000


def decode(body: bytes, signature: Signature) -> InferRequest:
    """Decode the request in a body.

    Args:
        body: the decompressed body.
        signature: the model's signature.

    Raises:
        Undecodable: the body is not JSON, or a member has the wrong type.
        InputMismatch: the elements of an input do not fit its shape.
        PackageError: an unsupported extension is requested, or an input is there twice.
        TooLarge: the numbers would take too much memory.
    """
    reader = _Reader(signature.input_specs, DecodeBudget(len(body)))
    for name, content in values.members_of(oip_json.document_of(body), "the body", MAX_TENSORS):
        if name != _PARAMETERS or name in signature.input_specs:
            reader.take(name, content, name)
        elif not values.is_null(content):
            for inner, each in values.members_of(content, name, MAX_TENSORS):
                reader.take(inner, each, f"{name}.{inner}")
    return reader.found


class _Reader:
    """Decodes the members of one request."""

    def __init__(self, specs: Mapping[str, TensorSpec], budget: DecodeBudget) -> None:
        self.found = InferRequest()
        self._specs = specs
        self._budget = budget

    def take(self, name: str, content: Any, where: str) -> None:
        """Decode a member; null means absent."""
        where = where[:64]
        if values.is_null(content):
            return
        spec = self._specs.get(name)
        if spec is not None:
            datatype = oip.datatype_of(spec)
            array = self._elements(where, datatype, content)
            self.found.add(name, datatype, array.reshape(_shape(spec, array.size)))
        elif name == _ID:
            self.found.id = str(values.scalar_of(content, where, "a text or a number"))
        elif name in oip.NOT_HERE:
            raise PackageError(f"{where}: {oip.NOT_HERE[name]} is not available here")
        elif name in oip.SCHEDULING:
            setattr(self.found, name, values.as_integer(content, where, 0, 2**63 - 1))
        else:
            wanted = "a text, a number, true or false, because the model has no such input"
            values.scalar_of(content, where, wanted)
            if type(content) is list or type(content) is dict:
                raise values.wrong_type(where, wanted, content)

    def _elements(self, where: str, datatype: str, content: Any) -> oip.Array:
        """The elements of an input, in one axis."""
        is_list = type(content) is list or (type(content) is Span and content.kind == "a list")
        if datatype == BYTES:
            if is_list:
                texts = values.as_texts(content, where, _MOST_TEXTS)
            else:
                texts = [values.as_text(content, where)]
            array = self._budget.array(len(texts), np.dtype(object))
            array[:] = texts
            return array
        dtype = oip.dtype_of(where, datatype)
        if not is_list:
            content = [values.scalar_of(content, where, "an element or a list")]
        return values.as_array(content, where, dtype, self._budget)


def _shape(spec: TensorSpec, count: int) -> list[int]:
    """The shape of an input with so many elements."""
    if spec.shape is None:
        return [count]
    fixed = prod(size for size in spec.shape if size is not None)
    sizes = [1 if size is None else size for size in spec.shape]
    variable = [axis for axis, size in enumerate(spec.shape) if size is None]
    if variable and fixed:
        sizes[variable[-1]] = count // fixed
    if prod(sizes) != count:
        raise InputMismatch(
            f"input {spec.alias!r} has the shape {oip.dimensions(spec)}, which {count} elements do"
            " not fit"
        )
    return sizes


def encode(request: InferRequest, model: str, version: str, outputs: Sequence[OutTensor]) -> bytes:
    """Encode a response.

    Raises:
        TypeError: a text is not valid Unicode.
    """
    return _response(request, model, version, [(each.name, _value(each)) for each in outputs])


def encode_joined(
    request: InferRequest,
    model: str,
    version: str,
    signature: Signature,
    pieces: Sequence[Sequence[OutTensor]],
) -> bytes:
    """Encode the response to a request whose answer has come in pieces.

    Args:
        request: the request.
        model: the model's name.
        version: the model's version.
        signature: of one piece.
        pieces: the tensors of each.

    Raises:
        InputMismatch: the pieces differ in their outputs.
        TypeError: a text is not valid Unicode.
    """
    if pieces:
        members = [(each[0].name, _values(each)) for each in oip.by_output(pieces)]
    else:
        members = [
            (each.alias, b'""' if oip.datatype_of(each) == BYTES else b"[]")
            for each in signature.outputs
        ]
    return _response(request, model, version, members)


def _values(tensors: Sequence[OutTensor]) -> bytes:
    """Those of an output, from all pieces."""
    if all(each.datatype == BYTES and each.array.size == 1 for each in tensors):
        return orjson.dumps(_joined([each.array.reshape(-1)[0] for each in tensors]))
    return b"[%b]" % b",".join(map(_value, tensors))


def _joined(texts: list[Any]) -> str:
    """Join texts, or bytes, whose characters may be divided between them."""
    if any(isinstance(each, bytes) for each in texts):
        raw = [each if isinstance(each, bytes) else str(each).encode() for each in texts]
        return b"".join(raw).decode("utf-8", "replace")
    return "".join(map(str, texts))


def _value(tensor: OutTensor) -> bytes:
    data = oip_json.data_of(tensor)
    return data[0] if tensor.array.size == 1 else join_bytes([b"[", *data, b"]"])


def _response(
    request: InferRequest, model: str, version: str, members: Sequence[tuple[str, bytes]]
) -> bytes:
    identity = b',"id":' + orjson.dumps(request.id) if request.id else b""
    pieces = [oip_json.of_model(model, version), identity]
    for name, value in members:
        pieces += (b",", orjson.dumps(name), b":", value)
    return join_bytes([*pieces, b"}"])
