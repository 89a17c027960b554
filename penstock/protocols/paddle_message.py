"""The protobuf encoding of the pipeline protocol: decodes calls, encodes replies.

Two numberings of ``Request`` are supported. Clients of v0.7 to v0.9 send the one in the ``.proto``
file; older ones send name 3, method 4, logid 5, clientip 6 and no tensors. The wire types differ:
field 5 is now a text and was a number, field 6 is now a number and was a text, and field 7 is new.
If none of the three is present, the numbering is old if field 3 is the service's name, followed by
a method.

Messages of texts only, the usual ones, have a fast path without protobuf's message objects, which
would cost more than the rest of decoding. Messages that it does not support, or finds invalid, are
left to the general decoder.

Source: ``docs/compatibility.md`` (history of the messages), the protobuf encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

from penstock.errors import INT32, Undecodable
from penstock.protocols import tensors
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
from penstock.protocols.protobuf import (
    LENGTH,
    VARINT,
    Buffer,
    TooManyFields,
    Walker,
    decode_text,
    encode_text,
    join_bytes,
    read_varint,
    varint,
)

MOST_FIELDS: Final = 100_000
"""Maximum fields of a message with its inner messages; each unpacked number counts."""
_FEW_FIELDS: Final = 800
"""Maximum fields of a message that is decoded in a few milliseconds: a field takes 1 to 3
microseconds, up to the feed."""
_BRIEF: Final = 256 << 10
"""Maximum bytes of such a message: packed numbers of that size take at most 2 milliseconds."""
_MOST_TOP: Final = 3 * MAX_MEMBERS + 100
"""Maximum fields of ``Request``: keys, values, tensors, and single fields."""
_LONGEST_NAME = 4096

_TODAY = {4: "name", 5: "method", 7: "clientip"}
_OLD = {3: "name", 4: "method", 6: "clientip"}

# Limits of the fast path:
_MOST: Final = 64  # keys, or values
_MOST_TRAILING: Final = 16  # fields after them
_LARGE: Final = 64 << 10  # bytes above which a copy costs more than a view
_LONG: Final = 256 << 10  # characters of a text that would block other requests
_MOST_TRAILING_BYTES: Final = 512  # bytes after the pairs that are cached
_KEY, _VALUE, _TENSOR, _NAME, _METHOD, _LOGID, _CLIENTIP = b"\x0a\x12\x1a\x22\x2a\x30\x3a"
_REPLY_KEY: Final = [bytes((0x1A, size)) for size in range(128)]
_REPLY_VALUE: Final = [bytes((0x22, size)) for size in range(128)]


_LAST_FIELD: Final = 7
"""Of ``Request``, in both numberings; a service's own fields have larger numbers."""


def decode(
    data: bytes,
    service_names: Container[str],
    briefly: bool = False,
    own_fields: OwnFields = no_fields,
) -> Call:
    """Decode a message of either numbering.

    Args:
        data: the encoded ``Request``.
        service_names: the names of the services.
        briefly: raise ``TakesLong`` if decoding would take more than a few milliseconds.
        own_fields: the fields that services add.

    Raises:
        Undecodable: the bytes are not such a message, a text is not UTF-8, or there are more than
            10,000 pairs or tensors, or 100,000 fields.
        TooLarge: the numbers of its tensors would take too much memory.
    """
    usual = read_texts(data)
    if usual is not None:
        return usual
    if briefly and len(data) > _BRIEF:
        raise TakesLong
    try:
        call = _decode(data, service_names, _FEW_FIELDS if briefly else MOST_FIELDS)
    except TooManyFields:
        if briefly:
            raise TakesLong from None
        raise Undecodable(
            f"the Request message has more than {MOST_FIELDS} fields: numbers must be packed"
        ) from None
    except ValueError:
        raise Undecodable("the bytes are not a Request message") from None
    if call.own and not own_fields(call.name):
        call.own = b""
    return call


def _decode(data: bytes, service_names: Container[str], most: int) -> Call:
    fields: list[tuple[int, int, int, int]] = []
    walker = Walker(data, most)
    for field in walker.fields(0, len(data)):
        fields.append(field)
        if len(fields) > _MOST_TOP:
            raise _too_many()
    old = _is_old(data, fields, service_names)
    names = _OLD if old else _TODAY
    log_id = 5 if old else 6
    key: list[str] = []
    value: list[str] = []
    call = Call(key, value, typed := [], nbytes=len(data))
    budget = tensors.DecodeBudget(len(data))
    own: list[memoryview] = []
    before = 0
    for number, wire_type, begin, end in fields:
        if number > _LAST_FIELD:
            own.append(memoryview(data)[before:end])
        before = end
        if wire_type == VARINT:
            if number == log_id:
                call.logid = begin - 2**64 if begin >= 2**63 else begin
        elif wire_type != LENGTH:
            continue
        elif number == 1:
            key.append(decode_text(data, begin, end))
        elif number == 2:
            value.append(decode_text(data, begin, end))
        elif number in names:
            setattr(call, names[number], decode_text(data, begin, end))
        elif number == 3 and not old:
            typed.append(tensors.read(walker, begin, end, budget))
    call.own = b"".join(own)
    call.clientip = call.clientip[:MAX_CLIENT_IP]
    if max(len(key), len(value), len(typed)) > MAX_MEMBERS:
        raise _too_many()
    return call


def _too_many() -> Undecodable:
    return Undecodable(f"the Request message has more than {MAX_MEMBERS} pairs or tensors")


def _is_old(
    data: bytes, fields: list[tuple[int, int, int, int]], service_names: Container[str]
) -> bool:
    types: set[tuple[int, int]] = set()
    third = b""
    for number, wire_type, begin, end in fields:
        types.add((number, wire_type))
        if number == 3 and wire_type == LENGTH:
            third = data[begin : min(end, begin + _LONGEST_NAME)]
    if {(5, LENGTH), (6, VARINT)} & types or any(number == 7 for number, _ in types):
        return False
    if {(5, VARINT), (6, LENGTH)} & types:
        return True
    name = third.decode("utf-8", "replace")
    return (4, LENGTH) in types and name != "" and name in service_names


def read_texts(data: bytes) -> Call | None:
    """Fast path for a ``Request`` in the current numbering; None for any other message.

    Only a method or ``clientip`` identifies the numbering, so one of them must be present.
    """
    try:
        # One small pair, the usual case: decoding it here takes half the time.
        if data[0] == _KEY and (size := data[1]) < 128 and data[at := size + 2] == _VALUE:
            begin = at + 2
            size = data[at + 1]
            if size >= 128:
                size, begin = read_varint(data, at + 1)
            end = begin + size
            if (
                size <= _LARGE
                and data[end] > _TENSOR
                and len(data) - end <= _MOST_TRAILING_BYTES
                and (key := data[2:at].decode()) != PROFILE_KEY
                and (trailing := _read_trailing_fields(data[end:])) is not None
            ):
                call: OnePair = OnePair()
                call.feed = {key: data[begin:end].decode()}
                call.name, call.method, call.logid, call.clientip = trailing
                call.nbytes = len(data)
                return call
        if len(data) > _BRIEF:
            return None
        keys, at = _read_run(data, 0, _KEY)
        values, at = _read_run(data, at, _VALUE)
        if data[at] == _TENSOR:
            return None  # before it is copied
        # A truncated message, or one with further texts, is left to the general decoder too.
        rest = data[at:]
        if len(rest) <= _MOST_TRAILING_BYTES:
            trailing = _read_trailing_fields(rest)
        else:
            trailing = _read_trailing_fields.__wrapped__(rest)
        if trailing is None:
            return None
        name, method, logid, clientip = trailing
        return Call(keys, values, [], name, method, logid, clientip, len(data))
    except (IndexError, ValueError):
        return None


def _read_run(data: bytes, at: int, tag: int) -> tuple[list[str], int]:
    """Read consecutive texts with this tag; return them and where they end.

    Raises:
        IndexError, ValueError: the bytes are not valid fields.
    """
    texts: list[str] = []
    while data[at] == tag and len(texts) < _MOST:
        size = data[at + 1]
        begin = at + 2
        if size >= 128:
            size, begin = read_varint(data, at + 1)
        at = begin + size
        if size > _LARGE:
            texts.append(decode_text(data, begin, at))
        else:
            texts.append(data[begin:at].decode())
    return texts, at


@lru_cache(maxsize=256)
def _read_trailing_fields(data: bytes) -> tuple[str, str, int, str] | None:
    """Read name, method, log id and ``clientip``. Cached: a client repeats them.

    Raises:
        IndexError, ValueError: the bytes are not valid fields.
    """
    trailing: dict[int, str] = {}
    logid = at = 0
    for _ in range(_MOST_TRAILING):
        if at >= len(data):
            break
        tag = data[at]
        size, at = read_varint(data, at + 1)
        if tag == _LOGID:
            if size >= 2**63:
                return None
            logid = size
            continue
        begin, at = at, at + size
        if at > len(data) or tag not in (_NAME, _METHOD, _CLIENTIP):
            return None
        trailing[tag] = data[begin:at].decode()
    if at < len(data) or not (_METHOD in trailing or _CLIENTIP in trailing):
        return None
    name, method, clientip = (trailing.get(tag, "") for tag in (_NAME, _METHOD, _CLIENTIP))
    return name, method, logid, clientip[:MAX_CLIENT_IP]


def encode(reply: Reply | Response) -> bytes:
    """Encode a reply; both numberings have the same bytes.

    Lone surrogates in texts are replaced.

    Raises:
        ValueError: ``err_no`` is not an int32.
    """
    if not isinstance(reply, Reply):  # in this order: testing for the library's class takes longer
        return reply.SerializeToString()
    texts = None
    if not reply.err_no and not reply.err_msg:
        texts = write_texts(reply.key, reply.value)
    if texts is None:
        try:
            texts = join_bytes(_texts(reply, str))
        except UnicodeEncodeError:
            texts = join_bytes(_texts(reply, replace_surrogates))
    if not reply.tensors:
        return texts
    pieces: list[Buffer] = [texts]
    for tensor in reply.tensors:
        content = tensor.encode()
        pieces += (b"\x2a", varint(sum(map(len, content))), *content)
    return join_bytes(pieces)


def _texts(reply: Reply, legal: Callable[[str], str]) -> Iterator[bytes]:
    if reply.err_no not in INT32:
        raise ValueError("err_no is no int32")
    if reply.err_no:
        yield b"\x08" + varint(reply.err_no % 2**64)
    for tag, texts in ((b"\x12", [reply.err_msg]), (b"\x1a", reply.key), (b'"', reply.value)):
        for text in texts:
            if text or tag != b"\x12":
                written = [*encode_text(legal(text))]
                yield tag + varint(sum(map(len, written)))
                yield from written


def write_texts(names: Iterable[Any], texts: Iterable[Any]) -> bytes | None:
    """Fast path for a successful ``Response`` of short texts only; None for any other reply.

    The bytes equal protobuf's: fields in the order of their numbers, without defaults.

    Args:
        names: the names of the texts, in the same order.
        texts: an op's results.
    """
    parts: list[bytes] = []
    try:
        for text in names:
            if type(text) is not str:
                return None
            raw = text.encode()
            size = len(raw)
            parts += (_REPLY_KEY[size] if size < 128 else b"\x1a" + varint(size), raw)
        for text in texts:
            if type(text) is not str or len(text) > _LONG:
                return None
            raw = text.encode()
            size = len(raw)
            parts += (_REPLY_VALUE[size] if size < 128 else b'"' + varint(size), raw)
    except UnicodeEncodeError:
        return None
    return b"".join(parts)
