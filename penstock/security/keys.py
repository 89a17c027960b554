"""API keys, and the file with their digests.

A line of the file is a name, the digest of a key, and its scopes::

    # name  digest of the key                     scopes
    ann     sha256:2c26b46b68ffc68ff99b453c1d30   infer admin

A name may have several lines: both keys are valid while a client changes from one to the other.

A key has 256 random bits, so its digest is a plain SHA-256: nobody can try that many keys, and a
slow or salted digest, which protects passwords that people choose, would only cost time here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest
from secrets import token_urlsafe
from typing import Final

from penstock.caller import Caller

_PREFIX: Final = "psk_"
"""Begins each key, so that scanners of source code find one that was published by mistake."""
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})").fullmatch
_NAME: Final = re.compile(r"(?!jwt:|certificate:)[\w.@:/+-]{1,100}").fullmatch
"""A name: the others begin those of tokens and certificates in logs; see ``name_of``."""
_SCOPE: Final = re.compile(r"[!#-\[\]-~]{1,100}").fullmatch
"""A scope: RFC 6749, section 3.3."""


def new_key() -> str:
    """Make a key: 256 random bits as text."""
    return _PREFIX + token_urlsafe(32)


def line_of(name: str, key: str, scopes: Iterable[str]) -> str:
    """The line of a key in the file.

    Raises:
        ValueError: the name or a scope cannot be in a line.
    """
    if not _NAME(name) or name.startswith("#"):
        raise ValueError(
            f"the name {name!r} is not letters, digits and . _ @ : / + -, or is of another kind"
        )
    for scope in scopes:
        if not _SCOPE(scope):
            raise ValueError(f"the scope {scope!r} has a blank, a quote or a backslash")
    return " ".join([name, f"sha256:{sha256(key.encode()).hexdigest()}", *scopes])


class Keys:
    """The callers of a file, by the digests of their keys.

    Args:
        text: the file's text.

    Raises:
        ValueError: a line is none of a key. The text has its number, and not the line.
    """

    def __init__(self, text: str) -> None:
        self._callers: dict[bytes, tuple[bytes, Caller]] = {}
        for number, line in enumerate(text.splitlines(), 1):
            name, *rest = line.split() or ["#"]
            if name.startswith("#"):
                continue
            digest = _DIGEST(rest[0]) if rest else None
            if not _NAME(name) or digest is None or not all(map(_SCOPE, rest[1:])):
                raise ValueError(f"line {number} is not: NAME sha256:DIGEST SCOPE...")
            known = bytes.fromhex(digest[1])
            caller = Caller(name=name, how="key", scopes=frozenset(rest[1:]))
            self._callers[known] = (known, caller)

    def __len__(self) -> int:
        return len(self._callers)

    @property
    def names(self) -> set[str]:
        """The names of the callers."""
        return {caller.name for _, caller in self._callers.values()}

    def find(self, key: bytes) -> Caller | None:
        """The caller of a key; None if it is of none.

        Digests are compared, of which nobody can choose the first bytes: the time of a look-up says
        nothing about a key.
        """
        digest = sha256(key).digest()
        found = self._callers.get(digest)
        if found is None or not compare_digest(found[0], digest):
            return None
        return found[1]
