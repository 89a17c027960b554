"""Access control for pages that are for callers on this machine, or with the page's token.

Without a token the caller must be on this machine. A reverse proxy here forwards requests of
others, and a website may resolve its own name to this machine in a browser here (DNS rebinding). So
a forwarded request, and one whose Host is not a local name, are not local. A proxy that adds no
header fields cannot be detected.

Source: RFC 6750, section 2.1; RFC 6265, sections 4.1.2 and 5.4; RFC 7239.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Final, NamedTuple

from penstock.api.hosts import is_local_name, name_of
from penstock.door.listeners import is_loopback
from penstock.protocols.heads import Headers, RequestHead

_OF_PROXIES: Final = (
    b"x-forwarded-for", b"forwarded", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip",
    b"via",
)  # fmt: skip
_BEARER: Final = b"bearer "
_COOKIE_SECONDS: Final = 30 * 24 * 3600


class Denial(NamedTuple):
    """Why a caller may not see it."""

    status: int
    code: str
    text: str


def is_this_machine(address: str) -> bool:
    """Whether a peer is on this machine; the address of one on a Unix socket is empty."""
    plain = address.removeprefix("::ffff:")
    return not plain or is_loopback(plain)


def is_passed_on(head: RequestHead) -> bool:
    """Whether a proxy forwarded the request, as its header fields show. nginx sends HTTP/1.0 by
    default, and browsers never do.
    """
    return head.version == "1.0" or any(name in head.fields for name in _OF_PROXIES)


def why_not_local(peer: str, head: RequestHead) -> str | None:
    """Why a request is not one of this machine; None if it is.

    Args:
        peer: the caller's address; empty over a Unix socket.
        head: of the request.
    """
    if not is_this_machine(peer):
        return "is for this machine only"
    if is_passed_on(head):
        return "is not available through a proxy"
    if not is_local_name(name_of(head.authority)):
        return "must be requested by the name localhost"
    return None


class Access:
    """See the module.

    Args:
        what: the name of the page in messages.
        key: the configuration key of the token.
        token: the token; None allows callers on this machine.
        tls: whether the port uses TLS.
        admitted: whether only operators reach it, if it has no token.
    """

    def __init__(
        self,
        what: str,
        key: str,
        token: str | None,
        *,
        tls: bool = False,
        admitted: bool = False,
    ) -> None:
        self._what = what
        self._admitted = admitted
        self._key = key
        self._token = None if token is None else token.encode()
        # The cookie is not the token; its name differs between the services of one host.
        digest = hmac.new(self._token or b"", what.encode(), sha256).hexdigest()
        self._cookie = f"penstock_{digest[:8]}".encode()
        self._value = digest[8:].encode()
        self._secure = b"; Secure" if tls else b""

    @property
    def has_token(self) -> bool:
        """Whether callers need a token."""
        return self._token is not None

    def denial(self, peer: str, head: RequestHead) -> Denial | None:
        """Why this caller may not see it; None if it may.

        Args:
            peer: the caller's address; empty over a Unix socket.
            head: of its request.
        """
        if self._token is None:
            return None if self._admitted else self._not_local(peer, head)
        if self._has_bearer(head) or self._has_cookie(head):
            return None
        return Denial(401, "unauthorized", f"{self._what} needs the token that {self._key} sets")

    def cookie(self, head: RequestHead) -> Headers:
        """Set-Cookie for a browser that has sent the token, so that it need not send it again."""
        if self._token is None or not self._has_bearer(head):
            return ()
        attributes = b"; HttpOnly; SameSite=Strict; Max-Age=%d" % _COOKIE_SECONDS
        return ((b"set-cookie", self._cookie + b"=" + self._value + attributes + self._secure),)

    def _not_local(self, peer: str, head: RequestHead) -> Denial | None:
        why = why_not_local(peer, head)
        if why is None:
            return None
        return Denial(403, "forbidden", f"{self._what} {why}, or with a token: see {self._key}")

    def _has_bearer(self, head: RequestHead) -> bool:
        given = head.fields.get(b"authorization", b"")
        if self._token is None or given[: len(_BEARER)].lower() != _BEARER:
            return False
        return hmac.compare_digest(given[len(_BEARER) :].strip(), self._token)

    def _has_cookie(self, head: RequestHead) -> bool:
        for field, line in head.headers:
            if field == b"cookie":
                for pair in line.split(b";"):
                    name, _, value = pair.strip().partition(b"=")
                    if name == self._cookie and hmac.compare_digest(value, self._value):
                        return True
        return False
