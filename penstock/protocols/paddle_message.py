"""The pipeline's protobuf messages: bytes to calls, replies to bytes.

Two numberings of ``Request`` are served. Clients of v0.7 to v0.9 send the one in the ``.proto``
file; older ones send name 3, method 4, logid 5, clientip 6 and no tensors. The wire types tell
them apart: field 5 is a text today and was a number, field 6 is a number today and was a text, and
field 7 is new. Where none of the three is present, an old request shows by field 3 being the
service's name, followed by a method. Source: ``docs/compatibility.md`` (history of the messages).
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from penstock.errors import Undecodable
from penstock.protocols.paddle_records import MAX_CLIENT_IP, MAX_MEMBERS, Call, Reply, mended
from penstock.protocols.paddle_texts import read_texts, write_texts
from penstock.protocols.pb import Request, Response

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}

_MOST_FIELDS = 3 * MAX_MEMBERS + 100  # keys, values, tensors, and what comes once


def decode_message(data: bytes, service_names: Container[str]) -> Call:
    """The call in a message of either numbering.

    Args:
        data: the encoded ``Request``.
        service_names: of the services here.

    Raises:
        Undecodable: the bytes are no such message, a text is not UTF-8, or there are more than
            10,000 pairs or tensors.
    """
    usual = read_texts(data)
    if usual is not None:
        return usual
    # Before each of them is an object, which takes a hundred times its bytes.
    if _has_too_many(data):
        raise _too_many()
    try:
        request = Request.FromString(data)
    except DecodeError:
        if not _is_old(data, service_names):
            raise Undecodable("the bytes are not a Request message") from None
        return _few(_decode_old(data))
    method, logid, clientip = request.method, request.logid, request.clientip
    if not (clientip or logid or method) and _may_be_old(request) and _is_old(data, service_names):
        return _few(_decode_old(data))
    key, value, tensors = list(request.key), list(request.value), list(request.tensors)
    clientip = clientip[:MAX_CLIENT_IP]
    return _few(Call(key, value, tensors, request.name, method, logid, clientip, len(data)))


def _few(call: Call) -> Call:
    if max(len(call.key), len(call.value), len(call.tensors)) > MAX_MEMBERS:
        raise _too_many()
    return call


def _too_many() -> Undecodable:
    return Undecodable(f"the Request message has more than {MAX_MEMBERS} pairs or tensors")


def _has_too_many(data: bytes) -> bool:
    """Whether so many fields are at the top that there must be too many of some kind."""
    if len(data) < 2 * _MOST_FIELDS:
        return False
    position = count = 0
    try:
        while position < len(data):
            tag, position = _varint(data, position)
            wire_type = tag & 7
            if wire_type in (_VARINT, _LENGTH):
                number, position = _varint(data, position)
                if wire_type == _LENGTH:
                    position += number
            else:
                position += _FIXED_SIZES.get(wire_type, 0)  # what is in a group counts by itself
            count += 1
            if count > _MOST_FIELDS:
                return True
    except ValueError:
        return False  # what is cut off ends here for the library, too
    return False


def encode_message(reply: Reply | Response) -> bytes:
    """The bytes of a reply; they are the same in both numberings.

    Texts that are not Unicode (lone surrogates) go out with replacement characters.

    Raises:
        ValueError: ``err_no`` is no int32.
    """
    if not isinstance(reply, Reply):  # in this order: asking for the library's class takes longer
        return reply.SerializeToString()
    if not (reply.err_no or reply.err_msg or reply.tensors):
        usual = write_texts(reply.key, reply.value)
        if usual is not None:
            return usual
    try:
        message = Response(
            err_no=reply.err_no, err_msg=reply.err_msg, key=reply.key, value=reply.value
        )
    except UnicodeEncodeError:
        message = Response(
            err_no=reply.err_no,
            err_msg=mended(reply.err_msg),
            key=list(map(mended, reply.key)),
            value=list(map(mended, reply.value)),
        )
    if reply.tensors:
        message.tensors.extend(reply.tensors)
    return message.SerializeToString()


def _may_be_old(request: Request) -> bool:
    """Whether a message without fields 5 to 7, read as of today, has anything it should not."""
    return bool(request.tensors or request.name or len(UnknownFieldSet(request)))


def _is_old(data: bytes, service_names: Container[str]) -> bool:
    types: dict[int, set[int]] = {}
    third = b""
    try:
        for number, wire_type, content in _fields(data):
            types.setdefault(number, set()).add(wire_type)
            if number == 3 and isinstance(content, bytes):
                third = content
    except ValueError:
        return False
    fifth, sixth = types.get(5, set()), types.get(6, set())
    if 7 in types or _LENGTH in fifth or _VARINT in sixth:
        return False
    if _VARINT in fifth or _LENGTH in sixth:
        return True
    return _LENGTH in types.get(4, set()) and _is_one_of(third, service_names)


def _is_one_of(name: bytes, names: Container[str]) -> bool:
    try:
        return name != b"" and name.decode() in names
    except UnicodeDecodeError:
        return False


def _decode_old(data: bytes) -> Call:
    key: list[str] = []
    value: list[str] = []
    call = Call(key, value, [], nbytes=len(data))
    try:
        for number, _, content in _fields(data):
            if isinstance(content, int):
                if number == 5:
                    call.logid = content - 2**64 if content >= 2**63 else content
                continue
            if number == 1:
                key.append(content.decode())
            elif number == 2:
                value.append(content.decode())
            elif number == 3:
                call.name = content.decode()
            elif number == 4:
                call.method = content.decode()
            elif number == 6:
                call.clientip = content.decode()[:MAX_CLIENT_IP]
    except UnicodeDecodeError as error:
        raise Undecodable("a text of the Request message is not UTF-8") from error
    return call


def _fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Number, wire type and content of each field at the top of a message.

    Raises:
        ValueError: the bytes are no message, or use groups, which no client ever sent.
    """
    position, end = 0, len(data)
    while position < end:
        tag, position = _varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number < 2**29:
            raise ValueError("a field number is out of range")
        if wire_type == _VARINT:
            content, position = _varint(data, position)
            yield number, wire_type, content
            continue
        if wire_type == _LENGTH:
            size, position = _varint(data, position)
        elif wire_type in _FIXED_SIZES:
            size = _FIXED_SIZES[wire_type]
        else:
            raise ValueError("the wire type is unknown")
        if size > end - position:
            raise ValueError("the message is cut off")
        if wire_type == _LENGTH:
            yield number, wire_type, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ValueError("the message is cut off")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & (2**64 - 1), position
    raise ValueError("a number is longer than ten bytes")
