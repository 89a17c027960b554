"""baidu_std, brpc's default protocol: encodes and decodes messages, for servers and clients.

A message is a header of 12 bytes (``PRPC``, the size of the rest, and the size of the meta), the
meta, which is a protobuf message, and the payload, which may end with an attachment. An answer has
the correlation id of its request; answers come in any order. ``Reader`` decodes a byte stream,
whatever the boundaries of its reads.

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
"""Maximum bytes of a meta, as of the header fields of an HTTP request."""
MAX_PAYLOAD_BYTES: Final = 2**31 - 1
"""Maximum bytes of a message that other implementations accept."""

_HEADER: Final = struct.Struct(">4sII")
_MOST_FIELDS: Final = 1_000
_LEVEL: Final = 6
_REQUESTS: Final = 256
"""Size of the cache of encoded method calls; a log id makes each call different."""


class Compression(IntEnum):
    """How a payload is compressed; an attachment never is."""

    NONE = 0
    SNAPPY = 1
    GZIP = 2
    ZLIB = 3
    LZ4 = 4


class ProtocolBroken(Exception):
    """The bytes are not a message of this protocol; the connection must be closed."""


class MethodCall(NamedTuple):
    """The part of a meta that makes it a request.

    Attributes:
        service: the service's full name; some clients leave out its package.
        method: the method's name.
        log_id: the caller's trace id.
        timeout_ms: the caller's timeout in milliseconds; 0 or less for none.
    """

    service: str
    method: str
    log_id: int = 0
    timeout_ms: int = 0


class CallResult(NamedTuple):
    """The part of a meta that makes it an answer.

    Attributes:
        error_code: 0 for success.
        error_text: why the call failed.
    """

    error_code: int = 0
    error_text: str = ""


@dataclass(slots=True)
class Meta:
    """The meta of a message.

    Attributes:
        call: set in a request.
        result: set in an answer.
        correlation_id: the request's number, as an unsigned 64-bit integer.
        compression: a ``Compression``, or an unknown number.
        attachment_bytes: size of the attachment at the end of the payload; not validated.
        is_chunk: the message is a part of a larger message.
        opens_stream: the message opens a stream, or belongs to one.
    """

    call: MethodCall | None = None
    result: CallResult | None = None
    correlation_id: int = 0
    compression: int = 0
    attachment_bytes: int = 0
    is_chunk: bool = False
    opens_stream: bool = False


def decode_meta(data: bytes) -> Meta:
    """Decode a meta. Unknown fields are ignored.

    Raises:
        ProtocolBroken: the meta is malformed.
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
    """Convert a varint to the signed integer of this width that it encodes."""
    half = 1 << bits - 1
    return (number + half) % (2 * half) - half


def encode_request(
    call: MethodCall,
    correlation_id: int,
    payload_bytes: int,
    compression: Compression = Compression.NONE,
) -> bytes:
    """Encode header and meta of a request whose payload has ``payload_bytes``.

    Raises:
        ValueError: the payload or a name is too large.
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
    """Encode header and meta of an answer whose payload has ``payload_bytes``.

    Raises:
        ValueError: the payload is too large.
    """
    return _framed(_GOOD + b"\x20" + varint(correlation_id), payload_bytes)


def encode_failure(correlation_id: int, error_code: int, error_text: str) -> bytes:
    """Encode a whole answer with an error code."""
    text = error_text.encode(errors="replace")[: MAX_META_BYTES // 2]
    text = text.decode(errors="ignore").encode()
    inner = b"\x08" + varint(error_code % 2**64) + b"\x12" + varint(len(text)) + text
    return _framed(b"\x12" + varint(len(inner)) + inner + b"\x20" + varint(correlation_id), 0)


def _framed(meta: bytes, payload_bytes: int) -> bytes:
    if len(meta) > MAX_META_BYTES or payload_bytes > MAX_PAYLOAD_BYTES - len(meta):
        raise ValueError(f"a message of {payload_bytes} bytes cannot be sent")
    return _HEADER.pack(MAGIC, len(meta) + payload_bytes, len(meta)) + meta


class MessageBegun(NamedTuple):
    """The meta of a message has arrived.

    Attributes:
        meta: the meta.
        size: bytes of the payload.
        payload: the whole payload, if it is small and has arrived; else None, and ``PayloadPart``
            events follow.
    """

    meta: Meta
    size: int
    payload: bytes | None


class PayloadPart(NamedTuple):
    """A part of the current message's payload; the last one has ``ended``."""

    data: bytes
    ended: bool


Event: TypeAlias = MessageBegun | PayloadPart


class Reader:
    """Decodes one direction of a connection to events.

    The same bytes give the same messages, whatever the boundaries of reads. It holds only the
    received bytes that no event has returned, and the current message's meta.

    Attributes:
        kept: received bytes that no event has returned.
        missing: bytes of the current partial payload that no event has returned.
        begun: number of messages that have begun.
    """

    __slots__ = ("_at", "_body_bytes", "_data", "_meta_bytes", "begun", "missing")

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self.missing = 0
        self._body_bytes = -1  # of the message whose meta is incomplete; -1 before its header
        self._meta_bytes = 0
        self.begun = 0

    @property
    def kept(self) -> int:
        return len(self._data) - self._at

    @property
    def is_between(self) -> bool:
        """Whether no message is partly received."""
        return not self.missing and self._body_bytes < 0 and not self.kept

    def receive(self, data: bytes) -> None:
        """Add received bytes."""
        self._data = self._data[self._at :] + data if self._at < len(self._data) else data
        self._at = 0

    def next_event(self) -> Event | None:
        """Return the next event; None while more bytes are needed.

        Raises:
            ProtocolBroken: the bytes are not a message; the reader must not be used again.
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
    """Compress a payload.

    Raises:
        UnknownEncoding: the compression is not supported.
    """
    if kind is Compression.NONE:
        return data
    if kind is Compression.SNAPPY:
        return bytes(_cramjam().snappy.compress_raw(data))
    if kind in _WINDOWS:
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOWS[kind])
        return packer.compress(data) + packer.flush()
    raise UnknownEncoding(f"the compression {kind.name.lower()} is not supported")


def decompress(kind: int, data: bytes, most: int) -> bytes:
    """Decompress a payload.

    Args:
        kind: the number of a compression.
        data: the compressed bytes.
        most: maximum bytes of the result; also bounds the work.

    Raises:
        UnknownEncoding: the compression is not supported.
        Undecodable: the data is corrupt.
        TooLarge: the result is larger than ``most``, or too many times the size of ``data``.
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
    raise UnknownEncoding(f"the compression {kind} is not supported: gzip is 2, and none is 0")


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
    gzip.check_size(size, data, most)  # the library allocates this size at once
    try:
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError:
        raise Undecodable("the data is not snappy") from None


def _cramjam() -> Any:
    try:
        import cramjam
    except ImportError:
        text = (
            "snappy is not supported here: it needs the package cramjam (penstock-serving[snappy])"
        )
        raise UnknownEncoding(text) from None
    return cramjam
