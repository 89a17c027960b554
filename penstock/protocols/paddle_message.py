"""The pipeline's protobuf messages: bytes to calls, replies to bytes.

Two numberings of ``Request`` are served. Clients of v0.7 to v0.9 send the one in the ``.proto``
file; older ones send name 3, method 4, logid 5, clientip 6 and no tensors. The wire types tell
them apart: field 5 is a text today and was a number, field 6 is a number today and was a text, and
field 7 is new. Where none of the three is present, an old request shows by field 3 being the
service's name, followed by a method. Source: ``docs/compatibility.md`` (history of the messages).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Final

from penstock.errors import INT32, Undecodable
from penstock.protocols import tensors
from penstock.protocols.paddle_records import (
    MAX_CLIENT_IP,
    MAX_MEMBERS,
    Call,
    Reply,
    TakesLong,
    mended,
)
from penstock.protocols.paddle_texts import read_texts, write_texts
from penstock.protocols.pb import Response
from penstock.protocols.protobuf import (
    LENGTH,
    VARINT,
    TooManyFields,
    Walker,
    gathered,
    long_text,
    text_pieces,
    varint,
)

MOST_FIELDS: Final = 100_000
"""Of a message with all that is in it; numbers that are not packed count one by one."""
_FEW_FIELDS: Final = 800
"""Of a message that is decoded in a few milliseconds: a field takes 1 to 3 microseconds, down to
the feed."""
_BRIEF: Final = 256 << 10
"""Bytes of such a message: packed numbers of that size take 2 milliseconds at most."""
_MOST_TOP: Final = 3 * MAX_MEMBERS + 100
"""Keys, values, tensors, and what comes once."""

_LONGEST_NAME = 4096

_TODAY = {4: "name", 5: "method", 7: "clientip"}
_OLD = {3: "name", 4: "method", 6: "clientip"}


def decode_message(data: bytes, service_names: Container[str], *, briefly: bool = False) -> Call:
    """The call in a message of either numbering.

    Args:
        data: the encoded ``Request``.
        service_names: of the services here.
        briefly: raise ``TakesLong`` instead of working on it for more than a few milliseconds.

    Raises:
        Undecodable: the bytes are no such message, a text is not UTF-8, or there are more than
            10,000 pairs or tensors, or 100,000 fields.
        TooLarge: the numbers of its tensors would take too much memory.
    """
    if briefly and len(data) > _BRIEF:
        raise TakesLong
    usual = read_texts(data)
    if usual is not None:
        return usual
    try:
        return _decode(data, service_names, _FEW_FIELDS if briefly else MOST_FIELDS)
    except TooManyFields:
        if briefly:
            raise TakesLong from None
        raise Undecodable(
            f"the Request message has more than {MOST_FIELDS} fields: numbers must be packed"
        ) from None
    except ValueError:
        raise Undecodable("the bytes are not a Request message") from None


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
    for number, wire_type, begin, end in fields:
        if wire_type == VARINT:
            if number == log_id:
                call.logid = begin - 2**64 if begin >= 2**63 else begin
        elif wire_type != LENGTH:
            continue
        elif number == 1:
            key.append(long_text(data, begin, end))
        elif number == 2:
            value.append(long_text(data, begin, end))
        elif number in names:
            setattr(call, names[number], long_text(data, begin, end))
        elif number == 3 and not old:
            typed.append(tensors.read(walker, begin, end, budget))
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


def encode_message(reply: Reply | Response) -> bytes:
    """The bytes of a reply; they are the same in both numberings.

    Texts that are not Unicode (lone surrogates) go out with replacement characters.

    Raises:
        ValueError: ``err_no`` is no int32.
    """
    if not isinstance(reply, Reply):  # in this order: asking for the library's class takes longer
        return reply.SerializeToString()
    texts = None
    if not reply.err_no and not reply.err_msg:
        texts = write_texts(reply.key, reply.value)
    if texts is None:
        texts = _with_texts(reply)
    if not reply.tensors:
        return texts
    pieces: list[tensors.Buffer] = [texts]
    for tensor in reply.tensors:
        content = tensor.encode()
        pieces += (b"\x2a", varint(sum(map(len, content))), *content)
    return gathered(pieces)


def _with_texts(reply: Reply) -> bytes:
    """All but the tensors, which come last."""
    try:
        return gathered(_texts(reply, str))
    except UnicodeEncodeError:
        return gathered(_texts(reply, mended))


def _texts(reply: Reply, legal: Callable[[str], str]) -> Iterator[bytes]:
    if reply.err_no not in INT32:
        raise ValueError("err_no is no int32")
    if reply.err_no:
        yield b"\x08" + varint(reply.err_no % 2**64)
    for tag, texts in ((b"\x12", [reply.err_msg]), (b"\x1a", reply.key), (b'"', reply.value)):
        for text in texts:
            if text or tag != b"\x12":
                written = [*text_pieces(legal(text))]
                yield tag + varint(sum(map(len, written)))
                yield from written
