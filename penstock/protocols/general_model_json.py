"""The JSON encoding of the model server's protocol, for servers; and of requests, for clients.

Members have the names of the message's fields; raw bytes are base64. Requests are read, and sent,
by the rule of ``json_numbers``; in answers NaN and infinities are null, as the original's clients
know them. Unknown members are ignored.

Source: ``docs/compatibility.md`` (the model server's protocol). Pure; safe from any thread.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import orjson

from penstock.errors import Undecodable
from penstock.protocols import json_values as values
from penstock.protocols import oip
from penstock.protocols.general_model import (
    CODES,
    MAX_TENSORS,
    NUMBERS,
    RAW,
    TEXTS,
    TYPES,
    GeneralRequest,
    GeneralResponse,
    InTensor,
    Output,
    listed,
)
from penstock.protocols.json_numbers import loads, numbers_text
from penstock.protocols.json_values import LARGE, Span
from penstock.protocols.protobuf import join_bytes
from penstock.protocols.tensors import MAX_TEXTS, DecodeBudget

_BLOCK: Final = 64 << 10
_INT32: Final = np.dtype(np.int32)
_DEEP: Final = 3
"""Nesting levels around a member of a tensor."""


def decode(body: bytes, budget: DecodeBudget) -> GeneralRequest:
    """Decode the request in a body.

    Raises:
        Undecodable: the body is not JSON, or a member has the wrong type.
        PackageError: a shape or a lod is too long.
        TooLarge: the numbers would take too much memory.
    """
    document: Any
    if len(body) > LARGE:
        document = Span(body, 0, len(body))
    else:
        try:
            document = loads(body)
        except orjson.JSONDecodeError as error:
            raise Undecodable(
                f"the body is not a JSON document (line {error.lineno}, column {error.colno})"
            ) from None
        values.check_numbers(body)
    found = GeneralRequest()
    for member, content in values.members_of(document, "the body", MAX_TENSORS):
        if values.is_null(content):
            continue
        if member == "tensor":
            tensors = values.as_list(content, member, MAX_TENSORS)
            found.tensors = [
                _tensor(each, f"tensor[{index}]", budget) for index, each in enumerate(tensors)
            ]
        elif member == "fetch_var_names":
            found.fetch = values.as_texts(content, member, MAX_TENSORS)
        elif member == "profile_server":
            profile = values.scalar_of(content, member, "true or false")
            if type(profile) is not bool:
                raise values.wrong_type(member, "true or false", profile)
            found.profile = profile
        elif member == "log_id":
            found.log_id = values.as_integer(content, member, 0, 2**64 - 1)
        elif member == "model":
            found.model = values.as_text(content, member)
        else:
            values.check_depth(content, 1)
    return found


def _tensor(value: Any, where: str, budget: DecodeBudget) -> InTensor:
    tensor = InTensor()
    for member, content in values.members_of(value, where, MAX_TENSORS):
        if values.is_null(content):
            continue
        at = f"{where}.{member[:64]}"
        if member in NUMBERS:
            array = values.as_array(content, at, NUMBERS[member], budget)
            if array.size:
                tensor.data[member] = array
        elif member == "shape":
            tensor.shape = listed(member, values.as_array(content, at, _INT32, budget))
        elif member == "lod":
            tensor.lod = listed(member, values.as_array(content, at, _INT32, budget))
        elif member == "elem_type":
            tensor.elem_type = values.as_integer(content, at, -(2**31), 2**31 - 1)
        elif member == "name":
            tensor.name = values.as_text(content, at)
        elif member == "alias_name":
            tensor.alias = values.as_text(content, at)
        elif member == TEXTS:
            texts = values.as_texts(content, at, MAX_TEXTS)
            if texts:
                tensor.data[TEXTS] = texts
        elif member == RAW:
            raw = values.as_bytes(content, at)
            if raw:
                tensor.data[RAW] = raw
        else:
            values.check_depth(content, _DEEP)
    return tensor


def encode(response: GeneralResponse) -> bytes:
    """Encode an answer.

    Raises:
        TypeError: a text is not valid Unicode.
    """
    pieces = [b'{"outputs":[']
    for engine, outputs in response.outputs.items():
        pieces.append(b'{"tensor":[')
        for each in outputs:
            pieces += [*_output(each), b","]
        if outputs:
            pieces.pop()
        pieces += (b'],"engine_name":', orjson.dumps(engine), b"}", b",")
    if response.outputs:
        pieces.pop()
    rest: dict[str, Any] = {}
    if response.profile is not None:
        rest = {"profile_time": response.profile, "profile_server": True}
    rest |= {"log_id": response.log_id, "err_no": response.err_no, "err_msg": response.err_msg}
    return join_bytes([*pieces, b"],", orjson.dumps(rest)[1:]])


def encode_request(
    inputs: Sequence[Output], fetch: Sequence[str] = (), *, log_id: int = 0, model: str = ""
) -> bytes:
    """Encode a client's request; arguments as in ``general_model_message``.

    Raises:
        TypeError: a text is not valid Unicode.
    """
    pieces = [b'{"tensor":[']
    for each in inputs:
        pieces += [*_output(each, numbers_text), b","]
    if inputs:
        pieces.pop()
    rest: dict[str, Any] = {"fetch_var_names": list(fetch), "log_id": log_id}
    if model:
        rest["model"] = model
    return join_bytes([*pieces, b"],", orjson.dumps(rest)[1:]])


def _nulls(flat: oip.Array) -> bytes:
    return orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


def _output(output: Output, text: Callable[[oip.Array], bytes] = _nulls) -> list[bytes]:
    name, datatype, array = output.tensor
    code = CODES[datatype]
    about: dict[str, Any] = {"elem_type": code, "shape": list(array.shape)}
    if output.lod:
        about["lod"] = output.lod
    about |= {"name": output.name, "alias_name": name}
    field = TYPES[code].field
    return [b'{"%b":' % field.encode(), *_data(field, output, text), b",", orjson.dumps(about)[1:]]


def _data(field: str, output: Output, text: Callable[[oip.Array], bytes]) -> list[bytes]:
    """Encode the value of a data field, in pieces that take little time each."""
    if field == RAW:
        return [b'"', b64encode(oip.to_raw(output.tensor)), b'"']
    flat = output.tensor.array.reshape(-1)
    if field == TEXTS:
        texts = [
            each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each)
            for each in flat.tolist()
        ]
        return [orjson.dumps(texts)]
    native = np.ascontiguousarray(flat, flat.dtype.newbyteorder("="))
    pieces: list[bytes] = [b"["]
    for block in oip.blocks(native, _BLOCK):
        pieces += (text(block), b",")
    if flat.size:
        pieces.pop()
    return [*pieces, b"]"]
