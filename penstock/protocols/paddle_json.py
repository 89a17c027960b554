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
from penstock.protocols import tensor_json
from penstock.protocols.json_values import (
    as_integer,
    as_list,
    as_text,
    as_texts,
    check_depth,
    check_numbers,
    wrong,
)
from penstock.protocols.paddle_records import (
    MAX_CLIENT_IP,
    MAX_MEMBERS,
    PROFILE_KEY,
    Call,
    OnePair,
    Reply,
    mended,
)
from penstock.protocols.pb import Response, Tensor
from penstock.protocols.status import GrpcCode

_BLANK = b" \t\r\n"
_WITH_ARRAYS = orjson.OPT_SERIALIZE_NUMPY


def decode_json(body: bytes | bytearray, *, name: str, method: str) -> Call:
    """The call in an HTTP body.

    Args:
        body: one JSON object in UTF-8; nothing at all and ``null`` mean an empty one.
        name: the service's name from the URL, which wins over the body's.
        method: the method's name from the URL, likewise.

    Raises:
        Undecodable: the body is not JSON, is nested deeper than 64 levels, has more than 10,000
            pairs or tensors, or a member has the wrong JSON type; the text names the element.
    """
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
    if document is None:
        document = {}
    if type(document) is not dict:
        raise wrong("the body", "an object", document)
    if len(document) > MAX_MEMBERS:
        raise Undecodable(f"the body has more than {MAX_MEMBERS} members")
    key: list[str] = []
    value: list[str] = []
    tensors: list[Tensor] = []
    logid, clientip = 0, ""
    numbers = False  # whether any number may stand in the body
    for member, content in document.items():
        if content is None:
            continue
        if member == "key":
            key = as_texts(_few(content, "key"), "key")
        elif member == "value":
            value = as_texts(_few(content, "value"), "value")
        elif member == "tensors":
            numbers = True
            tensors = [
                tensor_json.decode(item, f"tensors[{index}]")
                for index, item in enumerate(_few(content, "tensors"))
            ]
        elif member == "logid":
            numbers = True
            logid = as_integer(content, "logid", -(2**63), 2**63 - 1)
        elif member == "clientip":
            clientip = as_text(content, "clientip")[:MAX_CLIENT_IP]
        elif member in ("name", "method"):
            as_text(content, member)
        else:
            numbers = True
            check_depth(content, 1)
    if numbers:
        check_numbers(body)
    return Call(key, value, tensors, name, method, logid, clientip, len(body))


def _few(content: Any, where: str) -> list[Any]:
    items = as_list(content, where)
    if len(items) > MAX_MEMBERS:
        raise Undecodable(f"{where} has more than {MAX_MEMBERS} elements")
    return items


def encode_json(reply: Reply | Response) -> bytes:
    """The HTTP body of a reply: all five members, in the order of the message's fields.

    Texts that are not Unicode (lone surrogates) go out with replacement characters.
    """
    if type(reply) is Reply:
        key, value = reply.key, reply.value
    else:
        key, value = list(reply.key), list(reply.value)
    body = {
        "err_no": reply.err_no,
        "err_msg": reply.err_msg,
        "key": key,
        "value": value,
        "tensors": [*map(tensor_json.encode, reply.tensors)] if reply.tensors else [],
    }
    try:
        return orjson.dumps(body, option=_WITH_ARRAYS)
    except orjson.JSONEncodeError:
        body["err_msg"] = mended(reply.err_msg)
        body["key"] = list(map(mended, key))
        body["value"] = list(map(mended, value))
        return orjson.dumps(body, option=_WITH_ARRAYS)


def write_json(names: Iterable[Any], texts: Iterable[Any]) -> bytes | None:
    """The HTTP body of a good reply that carries texts only; None for any other to be encoded.

    Args:
        names: of the texts, in the same order.
        texts: what an op gave under these names.
    """
    key, value = [*names], [*texts]
    for text in key:
        if type(text) is not str:
            return None
    for text in value:
        if type(text) is not str:
            return None
    try:
        return orjson.dumps({"err_no": 0, "err_msg": "", "key": key, "value": value, "tensors": []})
    except orjson.JSONEncodeError:
        return None


def gateway_error(code: GrpcCode, text: str) -> bytes:
    """The HTTP body of a failed call, in the form of the original's gateway."""
    text = mended(text)
    return orjson.dumps({"error": text, "code": int(code), "message": text, "details": []})
