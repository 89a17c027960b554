"""The JSON encoding of the pipeline protocol: decodes calls, encodes replies.

The form is that of the original's HTTP gateway, proto3 JSON. Members of tensors are accepted under
their proto names (``float_data``) and their lower camel names (``floatData``); replies use the
proto's own names, always have every member, and write 64-bit numbers as texts. Bodies of texts
only, the usual ones, have a fast path. Source: ``docs/compatibility.md`` (HTTP).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import orjson
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from penstock.errors import Undecodable
from penstock.protocols import json_values as values
from penstock.protocols.json_numbers import loads
from penstock.protocols.json_values import LARGE, Span
from penstock.protocols.paddle import (
    MAX_CLIENT_IP,
    MAX_MEMBERS,
    PROFILE_KEY,
    Call,
    OnePair,
    OwnFields,
    Reply,
    TakesLong,
    no_fields,
    replace_surrogates,
)
from penstock.protocols.pb import Response
from penstock.protocols.protobuf import join_bytes
from penstock.protocols.status import GrpcCode
from penstock.protocols.tensors import (
    MAX_TEXTS,
    NUMBERS,
    Array,
    DecodeBudget,
    WireTensor,
    of_message,
)

_COSTS = {b",": 70, b'"': 300, b"{": 3000, b"[": 2000}
"""Nanoseconds of decoding a number, half a text, an object and a list, up to the feed; measured
with bodies of nothing else."""
_BRIEF = 2_000_000
"""Nanoseconds."""
_MOST_OWN = 256 << 10
"""Maximum bytes of a list or object that is a service's own field; parsed in a few milliseconds."""
_SHOWN = 40  # maximum names in an error, and characters of each
_BLOCK = 64 << 10
"""Numbers, or characters, that are encoded in one step."""
_LEVELS_AROUND_MEMBER = 3  # the body, its list of tensors, the tensor


def _lower_camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


_DATA: Final = [field for field in NUMBERS if field not in ("shape", "lod")]
_FIELDS = {
    spelling: name
    for name in (*NUMBERS, "str_data", "byte_data", "elem_type", "name")
    for spelling in (name, _lower_camel(name))
}


def decode(
    body: bytes | bytearray,
    *,
    name: str,
    method: str,
    briefly: bool = False,
    own_fields: OwnFields = no_fields,
) -> Call:
    """Decode the call in an HTTP body.

    Args:
        body: one JSON object in UTF-8; an empty body and ``null`` are an empty object.
        name: the service's name from the URL, which wins over the body's.
        method: the method's name from the URL, which wins over the body's.
        briefly: raise ``TakesLong`` if decoding would take more than a few milliseconds.
        own_fields: the fields that services add.

    Raises:
        Undecodable: the body is not JSON, is nested deeper than 64 levels, has more than 10,000
            pairs or tensors, or a member has the wrong JSON type; the text names the member.
    """
    if briefly and (
        len(body) > LARGE or sum(body.count(mark) * cost for mark, cost in _COSTS.items()) > _BRIEF
    ):
        raise TakesLong
    if len(body) > LARGE:
        return _decode_members(Span(bytes(body), 0, len(body)), body, name, method, own_fields)
    try:
        document = loads(body)
    except orjson.JSONDecodeError as error:
        if body.strip(values.BLANK):
            raise Undecodable(
                f"the body is not a JSON document (line {error.lineno}, column {error.colno})"
            ) from None
        document = None
    if type(document) is dict and len(document) == 2:
        key, value = document.get("key"), document.get("value")
        if type(key) is not list or type(value) is not list:
            pass
        elif len(key) == len(value) == 1:
            (member,), (text,) = key, value
            if type(member) is type(text) is str and member != PROFILE_KEY:
                call: OnePair = OnePair()
                call.feed = {member: text}
                call.name, call.method, call.logid, call.clientip = name, method, 0, ""
                call.nbytes = len(body)
                return call
        elif len(key) + len(value) <= MAX_MEMBERS and {str}.issuperset(map(type, key + value)):
            return Call(key, value, [], name, method, 0, "", len(body))
    return _decode_members(document, body, name, method, own_fields)


def _decode_members(
    document: Any, body: bytes | bytearray, name: str, method: str, own_fields: OwnFields
) -> Call:
    if values.is_null(document):
        document = {}
    call = Call([], [], [], name, method, 0, "", len(body))
    budget = DecodeBudget(len(body))
    numbers = False  # whether the body may contain numbers
    unknown: list[str] = []
    present: set[str] = set()
    for member, content in values.members_of(document, "the body", MAX_MEMBERS):
        present.add(member)
        if values.is_null(content):
            continue
        if member == "key":
            call.key[:] = values.as_texts(content, "key", MAX_MEMBERS)
        elif member == "value":
            call.value[:] = values.as_texts(content, "value", MAX_MEMBERS)
        elif member == "tensors":
            numbers = True
            call.tensors = [
                _decode_tensor(item, f"tensors[{index}]", budget)
                for index, item in enumerate(values.as_list(content, "tensors", MAX_MEMBERS))
            ]
        elif member == "logid":
            numbers = True
            call.logid = values.as_integer(content, "logid", -(2**63), 2**63 - 1)
        elif member == "clientip":
            call.clientip = values.as_text(content, "clientip")[:MAX_CLIENT_IP]
        elif member in ("name", "method"):
            values.as_text(content, member)
        else:
            numbers = True
            unknown.append(member)
            values.check_depth(content, 1)
    if unknown and (own := own_fields(name)):
        contents = dict(values.members_of(document, "the body", MAX_MEMBERS))
        call.own = {each: _own_member(each, contents[each]) for each in unknown if each in own}
        unknown = [each for each in unknown if each not in own]
    if unknown and not ("tensors" in present or {"key", "value"} <= present):
        raise Undecodable(_not_a_request(present, unknown))
    if numbers and type(document) is not Span:
        values.check_numbers(body)
    return call


def _own_member(name: str, content: Any) -> Any:
    """Return the value of a member that a service has added."""
    if type(content) is not Span:
        return content
    if content.kind != "a text" and content.nbytes > _MOST_OWN:
        raise Undecodable(
            f"the member {name[:_SHOWN]!r} has more than {_MOST_OWN >> 10} KiB: send it by gRPC"
        )
    return content.load()


def _not_a_request(present: set[str], unknown: list[str]) -> str:
    """Return the error text for a body without the expected members."""
    missing = " and ".join(repr(name) for name in ("key", "value") if name not in present)
    names = ", ".join(repr(name[:_SHOWN]) for name in unknown[:_SHOWN])
    return (
        f"the body has no {missing}, but {names}, which mean nothing here; a body looks like "
        '{"key": ["x"], "value": ["1.0"]}'
    )


def _decode_tensor(value: Any, where: str, budget: DecodeBudget) -> WireTensor:
    """Decode a tensor from a JSON object, without validating the tensor.

    Args:
        value: the object, parsed or not.
        where: its place for error texts, such as ``tensors[0]``.
        budget: the budget for its numbers.

    Raises:
        Undecodable: a member has the wrong JSON type, or a number outside its field's range.
        TooLarge: its numbers exceed the budget.
    """
    tensor = WireTensor()
    for member, content in values.members_of(value, where, MAX_MEMBERS):
        field = _FIELDS.get(member)
        if field is None:
            values.check_depth(content, _LEVELS_AROUND_MEMBER)
            tensor.unknown = (*tensor.unknown[:_SHOWN], member)
        elif not values.is_null(content):
            # If it is given under both spellings, the last one counts.
            _read(tensor, field, content, f"{where}.{member}", budget)
    return tensor


def _read(tensor: WireTensor, field: str, content: Any, where: str, budget: DecodeBudget) -> None:
    dtype = NUMBERS.get(field)
    if dtype is not None:
        array = values.as_array(content, where, dtype, budget)
        if field in ("shape", "lod"):
            setattr(tensor, field, array)
        else:
            _keep(tensor, field, array, array.size)
    elif field == "str_data":
        texts = values.as_texts(content, where, MAX_TEXTS)
        _keep(tensor, field, texts, len(texts))
    elif field == "byte_data":
        octets = values.as_bytes(content, where)
        _keep(tensor, field, octets, len(octets))
    elif field == "elem_type":
        tensor.elem_type = values.as_integer(content, where, -(2**31), 2**31 - 1)
    else:
        tensor.name = values.as_text(content, where)


def _keep(tensor: WireTensor, field: str, content: Any, size: int) -> None:
    tensor.data.pop(field, None)
    if size:
        tensor.data[field] = content


def encode(reply: Reply | Response) -> bytes:
    """Encode a reply: all five members, in the order of the message's fields.

    Lone surrogates in texts are replaced.
    """
    if isinstance(reply, Reply):
        key, value, tensors = reply.key, reply.value, reply.tensors
    else:
        key, value = list(reply.key), list(reply.value)
        tensors = [of_message(tensor) for tensor in reply.tensors]
    body = {
        "err_no": reply.err_no,
        "err_msg": reply.err_msg,
        "key": key,
        "value": value,
        "tensors": [*map(_tensor_object, tensors)],
    }
    if not isinstance(reply, Reply) and type(reply) is not Response:
        body |= _own_members(reply)
    large = sum(map(len, value)) > LARGE or any(tensor.decoded_bytes > LARGE for tensor in tensors)
    try:
        return join_bytes(json_pieces(body)) if large else orjson.dumps(body)
    except orjson.JSONEncodeError:
        body["err_msg"] = replace_surrogates(reply.err_msg)
        body["key"] = list(map(replace_surrogates, key))
        body["value"] = list(map(replace_surrogates, value))
        return join_bytes(json_pieces(body)) if large else orjson.dumps(body)


def _own_members(reply: Message) -> dict[str, Any]:
    """Return the members of a reply that its service has added."""
    rest = type(reply)()
    rest.CopyFrom(reply)
    for field in Response.DESCRIPTOR.fields:
        rest.ClearField(field.name)
    made: dict[str, Any] = MessageToDict(
        rest, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    known = {field.name for field in Response.DESCRIPTOR.fields}
    return {name: value for name, value in made.items() if name not in known}


def write_texts(names: Iterable[Any], texts: Iterable[Any]) -> bytes | None:
    """Fast path for a successful reply of short texts only; None for any other reply.

    Args:
        names: the names of the texts, in the same order.
        texts: an op's results.
    """
    key, value = [*names], [*texts]
    for text in key:
        if type(text) is not str:
            return None
    for text in value:
        if type(text) is not str or len(text) > LARGE:
            return None
    try:
        return orjson.dumps({"err_no": 0, "err_msg": "", "key": key, "value": value, "tensors": []})
    except orjson.JSONEncodeError:
        return None


def gateway_error(code: GrpcCode, text: str) -> bytes:
    """Encode the error of a failed call, as the original's gateway does."""
    text = replace_surrogates(text)
    return orjson.dumps({"error": text, "code": int(code), "message": text, "details": []})


def _tensor_object(tensor: WireTensor) -> dict[str, Any]:
    """Return the JSON object of a tensor, for ``orjson.dumps``."""
    data = tensor.data
    return {
        **{field: _numbers(field, data[field]) if field in data else [] for field in _DATA},
        "str_data": data.get("str_data", []),
        "byte_data": b64encode(data.get("byte_data", b"")).decode("ascii"),
        "elem_type": tensor.elem_type,
        "shape": tensor.shape.tolist(),
        "lod": tensor.lod.tolist(),
        "name": tensor.name,
    }


def _numbers(field: str, array: Array) -> orjson.Fragment | tuple[str, Array]:
    """Encode a list of numbers; a long one is left to ``json_pieces``."""
    if array.size > _BLOCK:
        return field, array
    return orjson.Fragment(b"[%b]" % _numbers_text(field, array) if array.size else b"[]")


def json_pieces(value: Any) -> Iterator[bytes]:
    """Encode a value as ``orjson.dumps`` does, in pieces that take little time each.

    Raises:
        orjson.JSONEncodeError: a text is not valid Unicode.
    """
    if type(value) is dict:
        for index, (name, member) in enumerate(value.items()):
            yield (b"," if index else b"{") + orjson.dumps(name) + b":"
            yield from json_pieces(member)
        yield b"}"
    elif type(value) is list and value:
        for index, item in enumerate(value):
            yield b"," if index else b"["
            yield from json_pieces(item)
        yield b"]"
    elif type(value) is tuple:
        field, array = value
        for at in range(0, array.size, _BLOCK):
            yield (b"," if at else b"[") + _numbers_text(field, array[at : at + _BLOCK])
        yield b"]"
    elif type(value) is str:
        yield b'"'
        for at in range(0, len(value), _BLOCK):
            yield orjson.dumps(value[at : at + _BLOCK])[1:-1]
        yield b'"'
    else:
        yield orjson.dumps(value)


def _numbers_text(field: str, array: Array) -> bytes:
    """Encode comma-separated numbers: 64-bit integers as texts, floats with shortest digits."""
    dtype = NUMBERS[field]
    array = np.ascontiguousarray(array, dtype)
    text = orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    if field == "int64_data":
        return b'"%b"' % text.replace(b",", b'","')
    if dtype.kind == "f" and not np.isfinite(array).all():
        words = text.split(b",")
        for index in np.flatnonzero(~np.isfinite(array)).tolist():
            words[index] = b'"%b"' % _special(array[index])
        return b",".join(words)
    return text


def _special(number: float) -> bytes:
    if number != number:
        return b"NaN"
    return b"Infinity" if number > 0 else b"-Infinity"
