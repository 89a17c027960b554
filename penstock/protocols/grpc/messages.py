"""Length-prefixed messages, plain or gzip, read from a byte stream."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any, Final, Protocol

from penstock.errors import TooLarge, Undecodable
from penstock.protocols import gzip
from penstock.protocols.grpc.status import GrpcError
from penstock.protocols.status import GrpcCode

IDENTITY: Final = b"identity"
GZIP: Final = b"gzip"
ENCODINGS: Final = (IDENTITY, GZIP)
"""The supported encodings of messages."""

_PREFIX = struct.Struct(">BI")
_PREFIX_BYTES: Final = 5
_PLAIN = b"\0"
_MOST_ANNOUNCED: Final = 2**32 - 1
_LEVEL: Final = 6
_SMALL: Final = 1 << 10  # smaller pieces are joined at once: separate objects would cost more


def encode_message(data: bytes, compressed: bool = False) -> bytes:
    """Encode a message with its prefix.

    Args:
        data: the message.
        compressed: compress it with gzip; the head must have had ``grpc-encoding: gzip``.

    Raises:
        GrpcError: the message is longer than a prefix allows.
    """
    if compressed:
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, gzip.WINDOW)
        data = packer.compress(data) + packer.flush()
    if len(data) > _MOST_ANNOUNCED:
        raise _too_large(len(data), _MOST_ANNOUNCED)
    return _PREFIX.pack(compressed, len(data)) + data


def message_prefix(size: int) -> bytes:
    """Encode the prefix of an uncompressed message of ``size`` bytes.

    Raises:
        GrpcError: the message is longer than a prefix allows.
    """
    if size > _MOST_ANNOUNCED:
        raise _too_large(size, _MOST_ANNOUNCED)
    return _PREFIX.pack(0, size)


class Deferred:
    """A complete message that is not joined or decompressed yet.

    Attributes:
        packed: whether the message is compressed.
    """

    __slots__ = ("_most", "_parts", "packed")

    def __init__(self, parts: Store, packed: bool, most: int) -> None:
        self._parts = parts
        self.packed = packed
        self._most = most

    def __len__(self) -> int:
        return self._parts.size

    def take(self) -> bytes:
        """Return the message. Call it once; from any thread.

        Raises:
            GrpcError: the message is not gzip, or too large when decompressed.
        """
        data = self._parts.join()
        return _unpack(data, self._most) if self.packed else data


def unary_message(data: bytes, most: int = _MOST_ANNOUNCED) -> bytes | None:
    """Return the message if ``data`` is exactly one, uncompressed, of at most ``most`` bytes.

    Else None, which is not an error: pass the same bytes to a ``MessageReader``.
    """
    size = len(data)
    if size >= _PREFIX_BYTES:
        flag, length = _PREFIX.unpack_from(data)
        if not flag and length == size - _PREFIX_BYTES and length <= most:
            return data[_PREFIX_BYTES:]
    return None


class Store(Protocol):
    """Holds the pieces of a message until it is complete.

    Attributes:
        size: bytes of the pieces.
    """

    size: int

    def add(self, piece: bytes) -> None:
        """Add a piece."""

    def join(self) -> bytes:
        """Return the joined pieces. The last call of a store."""


class Pieces:
    """A store that holds the pieces themselves."""

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []
        self.size = 0

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        pieces = self._pieces
        if len(piece) >= _SMALL:
            pieces.append(piece)
        elif pieces and isinstance(pieces[-1], bytearray):
            pieces[-1] += piece
        elif piece:
            pieces.append(bytearray(piece))

    def join(self) -> bytes:
        return b"".join(self._pieces)


class MessageReader:
    """Decodes the messages of one direction of a call.

    Args:
        most: maximum bytes of a message, as sent and decompressed.
        encoding: value of ``grpc-encoding``; None or identity: messages must be uncompressed.
        store: makes the store of a message that arrives in pieces.
        defer: larger messages, and compressed ones, are returned as ``Deferred``.

    Bound: a message is held once while it arrives, and joined once; one that is announced as too
    large is refused at its prefix. An error ends the call: messages that were complete in the same
    piece are dropped, and ``feed`` must not be called again.
    """

    __slots__ = (
        "_defer",
        "_encoding",
        "_length",
        "_most",
        "_new_store",
        "_packed",
        "_prefix",
        "_store",
    )

    def __init__(
        self,
        most: int,
        encoding: bytes | None = None,
        store: Callable[[], Store] = Pieces,
        defer: int | None = None,
    ) -> None:
        self._defer = defer
        self._most = most
        self._encoding = encoding
        self._new_store = store
        self._prefix = b""  # the received part of the next message's prefix
        self._length = -1  # of the current message; -1 between messages
        self._packed = False
        self._store: Store | None = None  # of the current message, if a part of it was received

    @property
    def announced(self) -> tuple[int, int]:
        """Size and missing bytes of the current uncompressed message; zeros if there is none."""
        length, store = self._length, self._store
        if self._packed or length < 0:
            return 0, 0
        return length, length if store is None else length - store.size

    def feed(self, piece: bytes) -> list[Any]:
        """Process a piece; return the messages that it completes.

        Raises:
            GrpcError: a message is too large, or not encoded as announced.
        """
        messages: list[bytes | Deferred] = []
        at = 0
        while True:
            if self._length < 0:
                taken = _PREFIX_BYTES - len(self._prefix)
                prefix = self._prefix + piece[at : at + taken]
                at += taken
                if len(prefix) < _PREFIX_BYTES:
                    self._prefix = prefix
                    return messages
                self._begin(prefix)
            store = self._store
            missing = self._length if store is None else self._length - store.size
            part = piece[at : at + missing] if at or missing < len(piece) else piece
            at += len(part)
            if len(part) < missing:
                if part:
                    if store is None:
                        store = self._store = self._new_store()
                    store.add(part)
                return messages
            messages.append(self._finish_message(part))

    def finish(self) -> None:
        """Process the end of the stream.

        Raises:
            GrpcError: the last message is incomplete.
        """
        if self._prefix or self._length >= 0:
            raise GrpcError(GrpcCode.INTERNAL, "the last message is cut short")

    def _begin(self, prefix: bytes) -> None:
        flag, length = _PREFIX.unpack(prefix)
        if flag > 1:
            raise GrpcError(GrpcCode.INTERNAL, "a message's prefix is malformed")
        if flag and self._encoding in (None, IDENTITY):
            raise GrpcError(GrpcCode.INTERNAL, "a message is compressed without a grpc-encoding")
        if length > self._most:
            raise _too_large(length, self._most)
        self._packed = flag == 1
        self._prefix = b""
        self._length = length

    def _finish_message(self, part: bytes) -> bytes | Deferred:
        size, self._length = self._length, -1
        store, self._store = self._store, None
        if self._defer is not None and (self._packed or size > self._defer):
            store = store or Pieces()
            store.add(part)
            return Deferred(store, self._packed, self._most)
        if store is not None:
            store.add(part)
            part = store.join()
        return _unpack(part, self._most) if self._packed else part


def _unpack(data: bytes, most: int) -> bytes:
    """Decompress gzip; ``most`` bytes of output also bound the work."""
    try:
        return gzip.unpack(data, most)
    except Undecodable as error:
        raise GrpcError(GrpcCode.INTERNAL, f"a compressed message: {error}") from None
    except TooLarge as error:
        text = f"a message of {len(data)} bytes {error}"
        raise GrpcError(GrpcCode.RESOURCE_EXHAUSTED, text) from None


def _too_large(length: int, most: int) -> GrpcError:
    text = f"a message of {length} bytes is over the limit of {most} bytes"
    return GrpcError(GrpcCode.RESOURCE_EXHAUSTED, text)
