"""The usual messages of the pipeline, texts only, read and written without message objects.

A message object of the library costs more than everything else that happens to a small request in
its decoder. What is here takes what it knows and leaves the rest to the library (None): tensors,
unknown fields, long messages, whatever is not a message at all, and the older numbering.

Source: ``docs/compatibility.md`` (messages), the protobuf encoding.
"""

from __future__ import annotations

from typing import Final

from penstock.protocols.paddle_records import MAX_CLIENT_IP, Call, Reply

_MOST: Final = 1024  # bytes of a message; a longer one is as fast in the library
_LENGTH_BYTE: Final = [bytes((number,)) for number in range(128)]
_KEY, _VALUE, _NAME, _METHOD, _LOGID, _CLIENTIP = 0x0A, 0x12, 0x22, 0x2A, 0x30, 0x3A


def read_texts(data: bytes) -> Call | None:
    """The call in a ``Request`` of today's numbering; None for the library to judge.

    Only a method or a ``clientip`` shows the numbering for certain, so one of them must be there.
    """
    end = len(data)
    if end > _MOST:
        return None
    key: list[str] = []
    value: list[str] = []
    name = method = clientip = ""
    logid = 0
    certain = False
    at = 0
    try:
        while at < end:
            tag, size = data[at], data[at + 1]
            if size >= 128:
                return None
            at += 2
            if tag == _LOGID:
                logid = size
                continue
            begin, at = at, at + size
            if at > end:
                return None
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
                if size >= 128:
                    return None
                parts += (tag, _LENGTH_BYTE[size], raw)
    except UnicodeEncodeError:
        return None
    return b"".join(parts)
