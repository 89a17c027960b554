"""The usual messages of the pipeline, texts only, read and written without message objects.

A message object of the library costs more than everything else that happens to a small request in
its decoder. What is here takes what it knows and leaves the rest to the library (None): tensors,
unknown fields, many fields, whatever is not a message at all, and the older numbering.

Source: ``docs/compatibility.md`` (messages), the protobuf encoding.
"""

from __future__ import annotations

from typing import Final

from penstock.protocols.paddle_records import MAX_CLIENT_IP, Call, Reply

_MOST_FIELDS: Final = 64  # of a message; with more of them the library is as fast
_LARGE: Final = 64 << 10  # bytes from which on a copy costs more than a view
_LENGTH_BYTE: Final = [bytes((number,)) for number in range(128)]
_KEY, _VALUE, _NAME, _METHOD, _LOGID, _CLIENTIP = 0x0A, 0x12, 0x22, 0x2A, 0x30, 0x3A


def read_texts(data: bytes) -> Call | None:
    """The call in a ``Request`` of today's numbering; None for the library to judge.

    Only a method or a ``clientip`` shows the numbering for certain, so one of them must be there.
    """
    end = len(data)
    key: list[str] = []
    value: list[str] = []
    name = method = clientip = ""
    logid = 0
    certain = False
    at = fields = 0
    try:
        while at < end:
            fields += 1
            tag, size = data[at], data[at + 1]
            at += 2
            if size >= 128:
                size, at = _long(data, at - 1)
            if fields > _MOST_FIELDS or size >= 2**63:
                return None
            if tag == _LOGID:
                logid = size
                continue
            begin, at = at, at + size
            if at > end:
                return None
            if size > _LARGE:
                text = str(memoryview(data)[begin:at], "utf-8")  # one copy, not two
            else:
                text = data[begin:at].decode()
            if tag == _KEY:
                key.append(text)
            elif tag == _VALUE:
                value.append(text)
            elif tag == _METHOD:
                method = text
                certain = True
            elif tag == _NAME:
                name = text
            elif tag == _CLIENTIP:
                clientip = text[:MAX_CLIENT_IP]
                certain = True
            else:
                return None
    except (IndexError, UnicodeDecodeError):
        return None
    return Call(key, value, [], name, method, logid, clientip, end) if certain else None


def write_texts(reply: Reply) -> bytes | None:
    """The bytes of a good ``Response`` that carries texts only; None for the library to write.

    They are the library's: fields in the order of their numbers, defaults left out.
    """
    if reply.err_no or reply.err_msg or reply.tensors:
        return None
    parts: list[bytes] = []
    try:
        for tag, texts in ((b"\x1a", reply.key), (b'"', reply.value)):
            for text in texts:
                raw = text.encode()
                size = len(raw)
                parts += (tag, _LENGTH_BYTE[size] if size < 128 else _varint(size), raw)
    except UnicodeEncodeError:
        return None
    return b"".join(parts)


def _long(data: bytes, at: int) -> tuple[int, int]:
    """A number of several bytes, and where it ends; beyond every bound when it is too long."""
    number = 0
    for shift in range(0, 63, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 128:
            return number, at
    return 2**63, at


def _varint(number: int) -> bytes:
    groups = bytearray()
    while number >= 128:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)
