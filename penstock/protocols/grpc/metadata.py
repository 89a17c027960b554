"""Custom metadata of a call: text, or bytes under names that end in ``-bin``."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable
from typing import TypeAlias

from penstock.protocols.grpc.status import GrpcError
from penstock.protocols.heads import Headers
from penstock.protocols.status import GrpcCode

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]
"""Pairs in order, names in lower case; values are bytes if the name ends in ``-bin``."""

_NAME = re.compile(r"[0-9a-z_.-]+")
_TEXT = re.compile(r"[ -~]*")
_OURS = frozenset({"content-type", "te", "host", "connection", "content-length", "user-agent"})
_BINARY = "-bin"
_RESERVED = "grpc-"


def encode_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> Headers:
    """Encode metadata as header fields.

    Raises:
        ValueError: a name is reserved or malformed, or a value has the wrong type for its name.
    """
    return tuple([_encode(name, value) for name, value in metadata])


def decode_metadata(headers: Headers) -> Metadata:
    """Decode the metadata of a head or of trailers; reserved fields are left out.

    Raises:
        GrpcError: a binary value is not base64.
    """
    pairs: list[tuple[str, str | bytes]] = []
    for raw_name, raw in headers:
        name = raw_name.decode("latin-1")
        if name in _OURS or name.startswith((_RESERVED, ":")):
            continue
        if name.endswith(_BINARY):
            # An intermediary may have joined fields of one name by commas.
            pairs += [(name, _from_base64(name, part)) for part in raw.split(b",")]
        else:
            pairs.append((name, raw.decode("latin-1")))
    return tuple(pairs)


def _encode(name: str, value: str | bytes) -> tuple[bytes, bytes]:
    if _NAME.fullmatch(name) is None or name in _OURS or name.startswith(_RESERVED):
        raise ValueError(f"{name!r} cannot be the name of metadata")
    if name.endswith(_BINARY):
        if isinstance(value, str):
            raise ValueError(f"the value of {name!r} must be bytes")
        return name.encode(), binascii.b2a_base64(value, newline=False).rstrip(b"=")
    if not isinstance(value, str) or _TEXT.fullmatch(value) is None or value != value.strip():
        raise ValueError(f"the value of {name!r} must be text in visible ASCII letters and blanks")
    return name.encode(), value.encode()


def _from_base64(name: str, raw: bytes) -> bytes:
    """Decode base64 with or without padding."""
    bare = raw.strip(b" \t").rstrip(b"=")
    try:
        return binascii.a2b_base64(bare + b"=" * (-len(bare) % 4), strict_mode=True)
    except binascii.Error as error:
        text = f"the metadata {name!r} is not base64"
        raise GrpcError(GrpcCode.INTERNAL, text) from error
