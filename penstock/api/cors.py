"""CORS: which websites' pages may call a service and read its answers.

A browser sends the requests of a page of another origin with ``Origin``, and gives the page their
answers, errors too, only if these allow it. Before a request that a plain form could not send it
asks with a preflight: an ``OPTIONS`` without the caller's token, which therefore is answered before
callers are admitted.

Source: the Fetch standard, section 3.3 (HTTP CORS protocol); RFC 6454.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.protocols.heads import Headers, RequestHead

ANY: Final = "*"
_PREFLIGHT: Final = b"access-control-request-method"
_ASKED: Final = b"access-control-request-headers"
_VARY: Final = (b"vary", b"origin")
_MOST_SEEN: Final = 256
"""Most origins whose answers are remembered."""
_LONGEST_ASKED: Final = 1024
"""Most bytes of a preflight's list of header fields; browsers' lists are shorter."""
_is_list: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z, \t-]+").fullmatch


class Cors:
    """What other origins may do. Belongs to one loop.

    Args:
        origins: in lower case: ``https://app.example``; ``https://*.app.example`` for all hosts
            below it; ``http://localhost:*`` for all ports; ``null``; or ``*`` for all.
        methods: which pages may call; empty: those of the called path.
        headers: fields that pages may send; ``*`` is all.
        exposed_headers: fields of answers that pages may read, besides those that browsers always
            show; ``*`` is all.
        credentials: whether requests may have cookies, and client certificates; then ``origins``
            must not be ``*``.
        max_age: seconds for which browsers may remember the answer to a preflight.
    """

    def __init__(
        self,
        origins: Iterable[str],
        *,
        methods: Sequence[str],
        headers: Sequence[str],
        exposed_headers: Sequence[str],
        credentials: bool,
        max_age: int,
    ) -> None:
        names = frozenset(origins)
        self._any = ANY in names
        self._exact = frozenset(each.encode() for each in names if ANY not in each)
        self._patterns = [_pattern(each) for each in names if ANY in each and each != ANY]
        self._seen: dict[bytes, Headers] = {}
        self._methods = ", ".join(methods).encode()
        self._headers = None if ANY in headers else ", ".join(headers).encode()
        self._age = (b"access-control-max-age", str(max_age).encode())
        more: Headers = ()
        if credentials:
            more += ((b"access-control-allow-credentials", b"true"),)
        if exposed_headers:
            shown = ", ".join(exposed_headers).encode()
            more += ((b"access-control-expose-headers", shown),)
        self._more = more
        self._for_all = ((b"access-control-allow-origin", b"*"), *more)

    def allows(self, origin: bytes | None) -> bool:
        """Whether pages of this origin may call the service; False without one."""
        return origin is not None and (self._any or len(self.fields(origin)) > 1)

    def fields(self, origin: bytes | None) -> Headers:
        """The fields of each answer, for a request of this origin; also without one, because caches
        may give the answer to pages later.
        """
        if self._any:
            return self._for_all
        if origin is None:
            return (_VARY,)
        found = self._seen.get(origin)
        if found is None:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            found = (_VARY,)
            if origin in self._exact or any(each.fullmatch(origin) for each in self._patterns):
                found = (_VARY, (b"access-control-allow-origin", origin), *self._more)
            self._seen[origin] = found
        return found

    def preflight(self, head: RequestHead, methods: Iterable[str]) -> Headers:
        """The further fields of the answer to a preflight of an allowed origin.

        Args:
            head: of the preflight.
            methods: those of its path.
        """
        asked = head.fields.get(_ASKED, b"")
        allowed = self._headers
        if allowed is None:  # Authorization is not in ``*``
            allowed = asked if len(asked) <= _LONGEST_ASKED and _is_list(asked) else b""
        return (
            (b"access-control-allow-methods", self._methods or ", ".join(methods).encode()),
            *(((b"access-control-allow-headers", allowed),) if allowed else ()),
            self._age,
            (b"vary", b"access-control-request-method, access-control-request-headers"),
        )


def is_preflight(head: RequestHead) -> bool:
    """Whether a browser asks, before a request of a page, whether it may send it."""
    return head.method == "OPTIONS" and _PREFLIGHT in head.fields


def _pattern(origin: str) -> re.Pattern[bytes]:
    """``https://*.a.example:*`` as a pattern: names below a host, any port."""
    scheme, _, host = origin.partition("://")
    below = rb"(?:[a-z0-9_-]+\.)+" if host.startswith("*.") else b""
    host = host.removeprefix("*.")
    port = rb"(?::[0-9]{1,5})?" if host.endswith(":*") else b""
    name = re.escape(host.removesuffix(":*").encode())
    return re.compile(re.escape(scheme.encode()) + b"://" + below + name + port)
