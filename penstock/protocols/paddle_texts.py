"""The usual messages of the pipeline, texts only, read and written without message objects.

A message object of the library costs more than everything else that happens to a small request in
its decoder. What is here takes what it knows and leaves the rest to the library (None): tensors,
unknown fields, many fields, whatever is not a message at all, and the older numbering.

Source: ``docs/compatibility.md`` (messages), the protobuf encoding.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from penstock.protocols.paddle_records import MAX_CLIENT_IP, PROFILE_KEY, Call, OnePair
from penstock.protocols.protobuf import long_text, varint

_MOST: Final = 64  # keys of a message, or values; with more of them the library is as fast
_MOST_FIELDS: Final = 16  # of what follows them
_LARGE: Final = 64 << 10  # bytes from which on a copy costs more than a view
_LONG: Final = 256 << 10  # characters of a text that is not written with others waiting
_LONG_END: Final = 512  # bytes after the pairs that are worth to be remembered
_KEY, _VALUE, _TENSOR, _NAME = 0x0A, 0x12, 0x1A, 0x22
_METHOD, _LOGID, _CLIENTIP = 0x2A, 0x30, 0x3A
_REPLY_KEY: Final = [bytes((0x1A, size)) for size in range(128)]
_REPLY_VALUE: Final = [bytes((0x22, size)) for size in range(128)]


def read_texts(data: bytes) -> Call | None:
    """The call in a ``Request`` of today's numbering; None for the library to judge.

    Only a method or a ``clientip`` shows the numbering for certain, so one of them must be there.
    """
    try:
        # One pair, as most have, and all of it small: read in place it takes half the time.
        if data[0] == _KEY and (size := data[1]) < 128 and data[at := size + 2] == _VALUE:
            begin = at + 2
            size = data[at + 1]
            if size >= 128:
                size, begin = _long(data, at + 1)
            end = begin + size
            if (
                size <= _LARGE
                and data[end] > _TENSOR
                and len(data) - end <= _LONG_END
                and (key := data[2:at].decode()) != PROFILE_KEY
                and (said := _read_end(data[end:])) is not None
            ):
                call: OnePair = OnePair()
                call.feed = {key: data[begin:end].decode()}
                call.name, call.method, call.logid, call.clientip = said
                call.nbytes = len(data)
                return call
        return _read_pairs(data)
    except (IndexError, ValueError):
        return None


def _read_pairs(data: bytes) -> Call | None:
    """The same for any number of pairs.

    Raises:
        IndexError, UnicodeDecodeError: the bytes are no fields.
    """
    key, at = _read_run(data, 0, _KEY)
    value, at = _read_run(data, at, _VALUE)
    if data[at] == _TENSOR:
        return None  # before it is copied
    # What is cut off, or goes on with more texts, is no end, and the library's as well.
    rest = data[at:]
    said = _read_end(rest) if len(rest) <= _LONG_END else _read_end.__wrapped__(rest)
    if said is None:
        return None
    name, method, logid, clientip = said
    return Call(key, value, [], name, method, logid, clientip, len(data))


def _read_run(data: bytes, at: int, tag: int) -> tuple[list[str], int]:
    """The texts with this tag that stand there one after the other, and where they end.

    Raises:
        IndexError, UnicodeDecodeError: the bytes are no fields.
    """
    texts: list[str] = []
    while data[at] == tag and len(texts) < _MOST:
        size = data[at + 1]
        begin = at + 2
        if size >= 128:
            size, begin = _long(data, at + 1)
        at = begin + size
        if size > _LARGE:
            texts.append(long_text(data, begin, at))
        else:
            texts.append(data[begin:at].decode())
    return texts, at


@lru_cache(maxsize=256)
def _read_end(data: bytes) -> tuple[str, str, int, str] | None:
    """Name, method, log id and ``clientip``, which one client says again and again.

    Raises:
        IndexError, UnicodeDecodeError: the bytes are no fields.
    """
    name = method = clientip = ""
    logid = at = 0
    certain = False
    for _ in range(_MOST_FIELDS):
        if at >= len(data):
            break
        tag = data[at]
        size, at = _long(data, at + 1)
        if size >= 2**63:
            return None
        if tag == _LOGID:
            logid = size
            continue
        begin, at = at, at + size
        if at > len(data):
            return None
        text = data[begin:at].decode()
        if tag == _METHOD:
            method = text
            certain = True
        elif tag == _NAME:
            name = text
        elif tag == _CLIENTIP:
            clientip = text[:MAX_CLIENT_IP]
            certain = True
        else:
            return None
    return (name, method, logid, clientip) if certain and at == len(data) else None


def write_texts(names: Iterable[Any], texts: Iterable[Any]) -> bytes | None:
    """The bytes of a good ``Response`` that carries texts only, and no long one; None for any other
    to be encoded.

    They are the library's: fields in the order of their numbers, defaults left out.

    Args:
        names: of the texts, in the same order.
        texts: what an op gave under these names.
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
