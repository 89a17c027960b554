"""The pipeline's JSON: bodies to calls, replies to bodies.

The form is that of the original's HTTP gateway: proto3 JSON with the proto's own names, every
member of a reply always present, 64-bit numbers as texts. The usual body, texts only, takes a path
of its own. Source: ``docs/compatibility.md`` (HTTP).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from penstock.errors import Undecodable
from penstock.protocols import json_values as values
from penstock.protocols import tensor_json
from penstock.protocols.json_span import LARGE, Span, check_numbers
from penstock.protocols.paddle_records import (
    MAX_CLIENT_IP,
    MAX_MEMBERS,
    PROFILE_KEY,
    Call,
    OnePair,
    Reply,
    TakesLong,
    mended,
)
from penstock.protocols.pb import Response
from penstock.protocols.protobuf import gathered
from penstock.protocols.status import GrpcCode
from penstock.protocols.tensors import DecodeBudget, of_message

_COSTS = {b",": 70, b'"': 300, b"{": 1000, b"[": 2000}
"""Nanoseconds that decoding takes for each of these in a body, down to the feed: for a number, half
a text, an object and a list; measured with bodies of nothing else."""
_BRIEF = 3_000_000
"""Nanoseconds."""
_SHOWN = 40  # names, and characters of each
_BLANK = b" \t\r\n"


def decode_json(body: bytes | bytearray, *, name: str, method: str, briefly: bool = False) -> Call:
    """The call in an HTTP body.

    Args:
        body: one JSON object in UTF-8; nothing at all and ``null`` mean an empty one.
        name: the service's name from the URL, which wins over the body's.
        method: the method's name from the URL, likewise.
        briefly: raise ``TakesLong`` instead of working on it for more than a few milliseconds.

    Raises:
        Undecodable: the body is not JSON, is nested deeper than 64 levels, has more than 10,000
            pairs or tensors, or a member has the wrong JSON type; the text names the element.
    """
    if briefly and (
        len(body) > LARGE or sum(body.count(mark) * cost for mark, cost in _COSTS.items()) > _BRIEF
    ):
        raise TakesLong
    if len(body) > LARGE:
        return _decode_members(Span(bytes(body), 0, len(body)), body, name, method)
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if body.strip(_BLANK):
            raise Undecodable(
                f"the body is not a JSON document (line {error.lineno}, column {error.colno})"
            ) from None
        document = None
    if type(document) is dict and len(document) == 2:
        key, value = document.get("key"), document.get("value")
        if type(key) is list and type(value) is list and len(key) + len(value) <= MAX_MEMBERS:
            for item in key + value:
                if type(item) is not str:
                    break
            else:
                if len(key) == len(value) == 1 and key[0] != PROFILE_KEY:
                    call: OnePair = OnePair()
                    call.feed = {key[0]: value[0]}
                    call.name, call.method, call.logid, call.clientip = name, method, 0, ""
                    call.nbytes = len(body)
                    return call
                return Call(key, value, [], name, method, 0, "", len(body))
    return _decode_members(document, body, name, method)


def _decode_members(document: Any, body: bytes | bytearray, name: str, method: str) -> Call:
    if values.is_null(document):
        document = {}
    call = Call([], [], [], name, method, 0, "", len(body))
    budget = DecodeBudget(len(body))
    numbers = False  # whether any number may stand in the body
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
                tensor_json.decode(item, f"tensors[{index}]", budget)
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
    if unknown and not ("tensors" in present or {"key", "value"} <= present):
        raise Undecodable(_not_a_request(present, unknown))
    if numbers and type(document) is not Span:
        check_numbers(body)
    return call


def _not_a_request(present: set[str], unknown: list[str]) -> str:
    """What is wrong with a body whose members are called otherwise."""
    missing = " and ".join(repr(name) for name in ("key", "value") if name not in present)
    names = ", ".join(repr(name[:_SHOWN]) for name in unknown[:_SHOWN])
    return (
        f"the body has no {missing}, but {names}, which mean nothing here; a body looks like "
        '{"key": ["x"], "value": ["1.0"]}'
    )


def encode_json(reply: Reply | Response) -> bytes:
    """The HTTP body of a reply: all five members, in the order of the message's fields.

    Texts that are not Unicode (lone surrogates) go out with replacement characters.
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
        "tensors": [*map(tensor_json.encode, tensors)],
    }
    large = sum(map(len, value)) > LARGE or any(tensor.decoded_bytes > LARGE for tensor in tensors)
    try:
        return gathered(tensor_json.pieces(body)) if large else orjson.dumps(body)
    except orjson.JSONEncodeError:
        body["err_msg"] = mended(reply.err_msg)
        body["key"] = list(map(mended, key))
        body["value"] = list(map(mended, value))
        return gathered(tensor_json.pieces(body)) if large else orjson.dumps(body)


def write_json(names: Iterable[Any], texts: Iterable[Any]) -> bytes | None:
    """The HTTP body of a good reply that carries texts only, and no long one; None for any other to
    be encoded.

    Args:
        names: of the texts, in the same order.
        texts: what an op gave under these names.
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
    """The HTTP body of a failed call, in the form of the original's gateway."""
    text = mended(text)
    return orjson.dumps({"error": text, "code": int(code), "message": text, "details": []})
