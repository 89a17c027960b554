"""Signatures of manifests: ed25519, detached, by keys in PEM files.

A signature is 64 bytes, raw as OpenSSL writes them, or in base64. It covers the manifest's bytes,
which name the model and the version. The package ``cryptography`` is imported when a key is read.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from penstock.errors import StoreError

_BYTES: Final = 64
MOST_BYTES: Final = 1024
"""Largest file of a signature that is read."""

_BLOCK: Final = re.compile(rb"-----BEGIN PUBLIC KEY-----.+?-----END PUBLIC KEY-----", re.DOTALL)


class PublicKeys:
    """The keys of which one must have signed a manifest.

    Args:
        keys: of the package ``cryptography``; at least one.
    """

    def __init__(self, keys: Sequence[Any]) -> None:
        self._keys = keys

    @classmethod
    def read(cls, file: Path) -> PublicKeys:
        """Read all public keys of a PEM file: two, while one replaces another.

        Raises:
            StoreError: the file cannot be read, or has no ed25519 public key.
        """
        ed25519, serialization = _cryptography()
        keys = []
        try:
            for block in _BLOCK.findall(file.read_bytes()):
                key = serialization.load_pem_public_key(block)
                if not isinstance(key, ed25519.Ed25519PublicKey):
                    raise StoreError(f"{file}: a key is not of ed25519")
                keys.append(key)
        except (OSError, ValueError) as error:
            raise StoreError(f"{file}: no public key can be read: {error}") from error
        if not keys:
            raise StoreError(f"{file}: it has no public key in PEM (BEGIN PUBLIC KEY)")
        return cls(keys)

    def why_wrong(self, signature: bytes, signed: bytes) -> str | None:
        """Why a signature is refused; None if one of the keys has made it.

        Args:
            signature: the contents of its file.
            signed: the manifest.
        """
        from cryptography.exceptions import InvalidSignature

        raw = signature
        if len(raw) != _BYTES:
            try:
                raw = base64.b64decode(b"".join(signature.split()), validate=True)
            except binascii.Error:
                return "is no signature of ed25519"
        if len(raw) != _BYTES:
            return "is no signature of ed25519"
        for key in self._keys:
            try:
                key.verify(raw, signed)
            except InvalidSignature:
                continue
            return None
        return "is of none of the configured keys, or of another manifest"


def sign(data: bytes, key: Path) -> bytes:
    """Sign a manifest with a private key.

    Args:
        data: the manifest.
        key: a PEM file with an ed25519 private key, without a password.

    Returns:
        The contents of the signature's file: base64 with a newline.

    Raises:
        StoreError: the key cannot be read.
    """
    ed25519, serialization = _cryptography()
    try:
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"{key}: no private key can be read: {error}") from error
    if not isinstance(private, ed25519.Ed25519PrivateKey):
        raise StoreError(f"{key}: the key is not of ed25519")
    return base64.b64encode(private.sign(data)) + b"\n"


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise StoreError(
            "signatures need cryptography: pip install 'penstock-serving[repository]'"
        ) from error
    return ed25519, serialization
