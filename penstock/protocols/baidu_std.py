"""baidu_std, the protocol that brpc speaks by default: bytes to messages and messages to bytes, for
servers and clients.

A message is a header of 12 bytes (``PRPC``, then two numbers: how much follows, and how much of
that is meta), the meta, a protobuf message, and the payload. A caller numbers its requests, and the
answers, in any order, have the same numbers. Behind the message in a payload may be an attachment.
``Reader`` takes messages apart however their bytes are cut; it knows nothing of connections and
time.

Source: brpc's description of the protocol and its ``baidu_rpc_meta.proto``. Pure.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.errors import TooLarge, Undecodable, UnknownEncoding
from penstock.protocols import gzip
from penstock.protocols.protobuf import LENGTH, VARINT, Walker, read_varint, varint

MAGIC: Final = b"PRPC"
MAX_META_BYTES: Final = 16 << 10
"""Bytes of a meta; a guess, as much as the fields of an HTTP request may have."""
MAX_PAYLOAD_BYTES: Final = 2**31 - 1
"""What other implementations can read."""

_HEADER: Final = struct.Struct(">4sII")
_MOST_FIELDS: Final = 1_000
_LEVEL: Final = 6
_REQUESTS: Final = 256
"""Methods that are remembered as they stand in a meta; with a log id each call is another."""


class Compression(IntEnum):
    """How a payload is packed; an attachment never is."""

    NONE = 0
    SNAPPY = 1
    GZIP = 2
    ZLIB = 3
    LZ4 = 4


class ProtocolBroken(Exception):
    """The bytes are no messages of this protocol; their connection can only be closed."""


class MethodCall(NamedTuple):
    """What a request's meta says of the call.

    Attributes:
        service: its full name as a rule; without its package from some clients.
        method: its name.
        log_id: the caller's trace id.
        timeout_ms: milliseconds that the caller waits; 0 or less where it does not say.
    """

    service: str
    method: str
    log_id: int = 0
    timeout_ms: int = 0


class CallResult(NamedTuple):
    """What an answer's meta says of the call.

    Attributes:
        error_code: 0 where all is well.
        error_text: why, where it is not.
    """

    error_code: int = 0
    error_text: str = ""


@dataclass(slots=True)
class Meta:
    """What is known of a message before its payload.

    Attributes:
        call: of a request.
        result: of an answer.
        correlation_id: the number of the request; 64 bits, without a sign here.
        compression: a ``Compression``, or a number that is none.
        attachment_bytes: at the end of the payload, as announced; may be any number.
        is_chunk: it is one of several messages that make one.
        opens_stream: it asks for a stream, or takes part in one.
    """

    call: MethodCall | None = None
    result: CallResult | None = None
    correlation_id: int = 0
    compression: int = 0
    attachment_bytes: int = 0
    is_chunk: bool = False
    opens_stream: bool = False


def decode_meta(data: bytes) -> Meta:
    """Read a meta. Fields that are not known here are passed over.

    Raises:
        ProtocolBroken: it is none.
    """
    meta = Meta()
    try:
        for number, wire_type, begin, end in Walker(data, _MOST_FIELDS).fields(0, len(data)):
            if wire_type == VARINT:
                if number == 4:
                    meta.correlation_id = begin
                elif number == 3:
                    meta.compression = _signed(begin)
                elif number == 5:
                    meta.attachment_bytes = _signed(begin)
            elif wire_type == LENGTH:
                if number == 1:
                    meta.call = _method_call(data[begin:end])
                elif number == 2:
                    meta.result = _call_result(data[begin:end])
                elif number == 6:
                    meta.is_chunk = True
                elif number == 8:
                    meta.opens_stream = True
    except ValueError as error:
        raise ProtocolBroken(f"the meta is malformed: {error}") from None
    return meta


@lru_cache(_REQUESTS)
def _method_call(data: bytes) -> MethodCall:
    service = method = None
    log_id = timeout_ms = 0
    for number, wire_type, begin, end in Walker(data, _MOST_FIELDS).fields(0, len(data)):
        if wire_type == LENGTH:
            if number == 1:
                service = data[begin:end].decode()
            elif number == 2:
                method = data[begin:end].decode()
        elif wire_type == VARINT:
            if number == 3:
                log_id = _signed(begin, 64)
            elif number == 8:
                timeout_ms = _signed(begin)
    if service is None or method is None:
        raise ValueError("it does not name a service and a method")
    return MethodCall(service, method, log_id, timeout_ms)


def _call_result(data: bytes) -> CallResult:
    code, text = 0, ""
    for number, wire_type, begin, end in Walker(data, _MOST_FIELDS).fields(0, len(data)):
        if number == 1 and wire_type == VARINT:
            code = _signed(begin)
        elif number == 2 and wire_type == LENGTH:
            text = data[begin:end].decode(errors="replace")
    return CallResult(code, text)


def _signed(number: int, bits: int = 32) -> int:
    """A varint as the integer of so many bits that it is on the wire."""
    half = 1 << bits - 1
    return (number + half) % (2 * half) - half


def encode_request(
    call: MethodCall,
    correlation_id: int,
    payload_bytes: int,
    compression: Compression = Compression.NONE,
) -> bytes:
    """Header and meta of a request, before its payload of so many bytes.

    Raises:
        ValueError: the payload is too large, or a name is.
    """
    inner = _names(call.service, call.method)
    if call.log_id:
        inner += b"\x18" + varint(call.log_id % 2**64)
    if call.timeout_ms > 0:
        inner += b"\x40" + varint(min(call.timeout_ms, 2**31 - 1))
    meta = b"\x0a" + varint(len(inner)) + inner
    if compression:
        meta += b"\x18" + varint(compression)
    return _framed(meta + b"\x20" + varint(correlation_id), payload_bytes)


@lru_cache(_REQUESTS)
def _names(service: str, method: str) -> bytes:
    fields = (b"\x0a", service.encode()), (b"\x12", method.encode())
    return b"".join(tag + varint(len(name)) + name for tag, name in fields)


_GOOD: Final = b"\x12\x02\x08\x00"
"""The result of a call without an error, as brpc writes it."""


def encode_response(correlation_id: int, payload_bytes: int) -> bytes:
    """Header and meta of an answer, before its payload of so many bytes.

    Raises:
        ValueError: the payload is too large.
    """
    return _framed(_GOOD + b"\x20" + varint(correlation_id), payload_bytes)


def encode_failure(correlation_id: int, error_code: int, error_text: str) -> bytes:
    """A whole answer that tells of an error."""
    text = error_text.encode(errors="replace")[: MAX_META_BYTES // 2]
    text = text.decode(errors="ignore").encode()
    inner = b"\x08" + varint(error_code % 2**64) + b"\x12" + varint(len(text)) + text
    return _framed(b"\x12" + varint(len(inner)) + inner + b"\x20" + varint(correlation_id), 0)


def _framed(meta: bytes, payload_bytes: int) -> bytes:
    if len(meta) > MAX_META_BYTES or payload_bytes > MAX_PAYLOAD_BYTES - len(meta):
        raise ValueError(f"a message of {payload_bytes} bytes cannot be sent")
    return _HEADER.pack(MAGIC, len(meta) + payload_bytes, len(meta)) + meta


class MessageBegun(NamedTuple):
    """A message has begun.

    Attributes:
        meta: what it says.
        size: bytes of its payload.
        payload: all of it, where it is there and not large; None: ``PayloadPart`` bring it.
    """

    meta: Meta
    size: int
    payload: bytes | None


class PayloadPart(NamedTuple):
    """A part of the payload of the message that has begun; the last one has ``ended``."""

    data: bytes
    ended: bool


Event: TypeAlias = MessageBegun | PayloadPart


class Reader:
    """Takes one direction of a connection apart, event by event.

    Equal bytes give equal messages however they are cut. What has been given and not been asked for
    is kept, and nothing else but the meta of a message that has begun.

    Attributes:
        kept: bytes that no event has brought yet.
        missing: bytes of the payload that comes in parts which no event has brought yet.
        begun: messages that have begun.
    """

    __slots__ = ("_at", "_body_bytes", "_data", "_meta_bytes", "begun", "missing")

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self.missing = 0  # of the payload that comes in parts
        self._body_bytes = -1  # of the message whose meta is still to come; -1 before its header
        self._meta_bytes = 0
        self.begun = 0

    @property
    def kept(self) -> int:
        """See the class."""
        return len(self._data) - self._at

    @property
    def is_between(self) -> bool:
        """Whether no message has begun that is not all there."""
        return not self.missing and self._body_bytes < 0 and not self.kept

    def receive(self, data: bytes) -> None:
        """Take what has come."""
        self._data = self._data[self._at :] + data if self._at < len(self._data) else data
        self._at = 0

    def next_event(self) -> Event | None:
        """What comes next; None while more bytes are needed.

        Raises:
            ProtocolBroken: the bytes are no message; nothing more may be asked.
        """
        data, at = self._data, self._at
        if self.missing:
            part = data[at : at + self.missing]
            if not part:
                return None
            self._at += len(part)
            self.missing -= len(part)
            return PayloadPart(part, not self.missing)
        if self._body_bytes < 0:
            if len(data) - at < _HEADER.size:
                if not data.startswith(MAGIC[: len(data) - at], at):
                    raise ProtocolBroken("a message does not begin with PRPC")
                return None
            magic, self._body_bytes, self._meta_bytes = _HEADER.unpack_from(data, at)
            if magic != MAGIC:
                raise ProtocolBroken("a message does not begin with PRPC")
            if self._meta_bytes > min(self._body_bytes, MAX_META_BYTES):
                raise ProtocolBroken(f"a meta of {self._meta_bytes} bytes is too large")
            at = self._at = at + _HEADER.size
        end = at + self._meta_bytes
        if len(data) < end:
            return None
        meta = decode_meta(data[at:end])
        size, self._body_bytes = self._body_bytes - self._meta_bytes, -1
        self.begun += 1
        if len(data) - end >= size:
            self._at = end + size
            return MessageBegun(meta, size, data[end : self._at])
        self._at = end
        self.missing = size
        return MessageBegun(meta, size, None)


def compress(kind: Compression, data: bytes) -> bytes:
    """Pack a payload.

    Raises:
        UnknownEncoding: we cannot.
    """
    if kind is Compression.NONE:
        return data
    if kind is Compression.SNAPPY:
        return bytes(_cramjam().snappy.compress_raw(data))
    if kind in _WINDOWS:
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOWS[kind])
        return packer.compress(data) + packer.flush()
    raise UnknownEncoding(f"the compression {kind.name.lower()} is not spoken")


def decompress(kind: int, data: bytes, most: int) -> bytes:
    """A payload in plain.

    Args:
        kind: the number of a compression.
        data: packed.
        most: bytes that it may unpack to; the work is bounded by it.

    Raises:
        UnknownEncoding: we cannot.
        Undecodable: it is corrupt.
        TooLarge: it unpacks to more than ``most``, or too many times its size.
    """
    if kind == Compression.NONE:
        return data
    try:
        if kind == Compression.SNAPPY:
            return _unpack_snappy(data, most)
        window = _WINDOWS.get(kind)
        if window is not None:
            return gzip.unpack(data, most, window)
    except TooLarge as error:
        raise TooLarge(f"the message {error}") from None
    raise UnknownEncoding(f"the compression {kind} is not spoken: gzip is 2, and none is 0")


_WINDOWS: Final[dict[int, int]] = {
    Compression.GZIP: gzip.WINDOW,
    Compression.ZLIB: gzip.ZLIB_WINDOW,
}


def _unpack_snappy(data: bytes, most: int) -> bytes:
    cramjam = _cramjam()
    try:
        size, _ = read_varint(data, 0)
    except ValueError:
        raise Undecodable("the data is not snappy") from None
    gzip.check_size(size, data, most)  # the library makes room for so many bytes at once
    try:
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError:
        raise Undecodable("the data is not snappy") from None


def _cramjam() -> Any:
    try:
        import cramjam
    except ImportError:
        text = "snappy is not spoken here: it needs the package cramjam (penstock[snappy])"
        raise UnknownEncoding(text) from None
    return cramjam
