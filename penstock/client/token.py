"""A key or token for services with ``security``: the field that carries it, and which host gets
it.
"""

from __future__ import annotations

import logging
import os
import re
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from penstock.errors import ModelError
from penstock.protocols.http2 import encode_block

_log = logging.getLogger(__name__)

Token: TypeAlias = str | Callable[[], str]
"""A key or token, or a function that returns the current one. It is called for each request, on
the caller's thread, so it should remember a token until shortly before it expires."""

Field: TypeAlias = tuple[str, str]

_SHOWN_BY: Final = ("authorization", "x-api-key")
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_REREAD_SECONDS: Final = 1.0


def bearer(token: Token) -> str:
    """Return the value of the field ``Authorization``.

    Raises:
        ValueError: a field cannot hold the token; the text does not contain it.
    """
    now = token if isinstance(token, str) else token()
    if not isinstance(now, str) or not re.fullmatch("[!-~]+", now):
        raise ValueError("a key or token is ASCII without spaces or line ends, and not empty")
    return f"Bearer {now}"


def metadata(
    token: Token | None,
    encode: Callable[[Sequence[tuple[bytes, bytes]]], bytes] = encode_block,
) -> Callable[[], bytes]:
    """Return a function that makes the header block of a call's token; empty without a token.

    ``encode`` encodes header fields.

    Raises:
        ValueError: see ``bearer``; of a function's token, the returned function raises it.
    """
    if token is None:
        return bytes
    if isinstance(token, str):
        block = encode([(b"authorization", bearer(token).encode())])
        return lambda: block
    return lambda: encode([(b"authorization", bearer(token).encode())])


def with_token(headers: Sequence[Field], token: Token | None) -> tuple[Field, ...]:
    """Add the token to header fields, unless they have a key or token already.

    Raises:
        ValueError: see ``bearer``.
    """
    if token is None or any(name.lower() in _SHOWN_BY for name, _ in headers):
        return (*headers,)
    return (*headers, ("Authorization", bearer(token)))


def hint(status: int, token: Token | None) -> str:
    """Return what to do about a status 401, for the user of a command; empty for others."""
    if status != 401:
        return ""
    if token is None:
        return "; give a key or token by PENSTOCK_TOKEN or --token"
    return "; this is about the key or token of PENSTOCK_TOKEN or --token"


def token_at(place: str) -> Token:
    """Return the token at a place.

    Args:
        place: a file, which is read again when a second has passed, because tokens expire; or
            ``env:`` and the name of a variable.

    Raises:
        ModelError: there is no valid token; the text does not contain it.
    """
    kind, _, name = place.partition(":")
    try:
        if kind == "env":
            bearer(os.environ[name])
            return os.environ[name]
        return _TokenFile(Path(place))
    except KeyError:
        raise ModelError(f"{place}: the variable is not set") from None
    except OSError as error:
        raise ModelError(f"{place}: the token cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{place}: {error}") from None


class _TokenFile:
    """The token in a file. If it cannot be read again, the last token stays."""

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_file():
            raise ValueError("the token must be in a regular file, which can be read again")
        self._path = path
        self._token = self._read()
        self._until = time.monotonic() + _REREAD_SECONDS

    def __call__(self) -> str:
        now = time.monotonic()
        if now >= self._until:
            self._until = now + _REREAD_SECONDS
            try:
                self._token = self._read()
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else error
                _log.warning("%s: %s; the last token stays in use", self._path, why)
        return self._token

    def _read(self) -> str:
        try:
            found = self._path.read_text("ascii").strip()
        except UnicodeDecodeError:
            found = ""  # its text has the bytes
        bearer(found)
        return found


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes redirects errors."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Return no request to follow."""


class TokenStays(urllib.request.HTTPRedirectHandler):
    """Follows redirects; only the same host gets the token, at any port, and never in plain text
    after TLS.
    """

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the request that follows."""
        return self.guarded(req, super().redirect_request(req, fp, code, msg, headers, newurl))

    @staticmethod
    def guarded(
        request: urllib.request.Request, following: urllib.request.Request | None
    ) -> urllib.request.Request | None:
        """The request that follows another one, with its token only if that may stay."""
        if following is not None and not _may_have_it(request.full_url, following.full_url):
            following.remove_header("Authorization")
        return following


def _may_have_it(before: str, after: str) -> bool:
    one, other = urlsplit(before), urlsplit(after)
    if one.scheme == "https" != other.scheme:
        return False
    hosts = {one.hostname, other.hostname}
    return len(hosts) == 1 or hosts.issubset(_LOOPBACK)
