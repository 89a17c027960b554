"""Checks Host and Origin of HTTP requests, so that websites cannot call a service on this machine.

Browsers send requests of a website to any address. A website that resolves its own name to this
machine (DNS rebinding) can also read the answers; such requests have the website's name in Host. So
a service that listens on loopback addresses only accepts a Host that is a name of this machine, or
in ``allowed_hosts``; one with names there, on whatever address, only those and addresses. Other
requests of a website have it in Origin, which must be the service itself, or allowed by ``Cors``.
Clients outside of browsers send no Origin.

Of a proxy only ``X-Forwarded-Host`` is read, for comparison with Origin: a website cannot send it
without asking for permission first. It does not replace Host.

Source: RFC 9110, section 7.2; RFC 6454, section 7; RFC 6761, section 6.3.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from penstock.protocols.heads import RequestHead

_log = logging.getLogger(__name__)

KEY: Final = "allowed_hosts"
_MOST_SEEN: Final = 256
"""Most values of Host that are remembered; clients choose the port in them."""
_LONGEST_SHOWN: Final = 100
_origin: Final = re.compile(rb"(https?)://([^/?#@\s]+)").fullmatch
_DEFAULT_PORTS: Final = {b"http": b":80", b"https": b":443"}


class Hosts:
    """Decides which values of Host and Origin are accepted. Belongs to one loop.

    Args:
        allowed: names of the service: ``example.org``, ``*.example.org`` for the names below it,
            ``*`` for all. Websites of these names may call the service; ``*`` does not allow any.
        local: names of this machine besides localhost.
        public: other machines can reach the service: without ``allowed``, every Host is accepted;
            with it, addresses are too, which no website can have.

    Attributes:
        seen: values of Host that were accepted.
    """

    def __init__(
        self, allowed: Iterable[str] = (), *, local: Iterable[str] = (), public: bool = False
    ) -> None:
        names = {each.lower() for each in allowed}
        self._public = public
        self._below = tuple(each[1:] for each in names if each.startswith("*."))
        self._allowed = frozenset(names)
        self._local = frozenset(each.lower() for each in local)
        self._any = "*" in names or (public and not names)
        self._has_refused = False
        self.seen: set[bytes] = set()

    def why_refused(self, head: RequestHead, peer: str, *, trusted: bool = False) -> str | None:
        """Why a request is refused; None if it is accepted.

        Args:
            head: of the request.
            peer: the caller's address; empty over a Unix socket, which browsers cannot reach.
            trusted: whether ``Cors`` allows its Origin.
        """
        authority = head.authority
        if authority not in self.seen:
            if peer and not self._accepts(authority):
                shown = _shown(authority)
                usual = "by its address" if self._public else "as localhost"
                return self._refused(
                    f"the service is not known as {shown}: callers, and proxies, must request it"
                    f" {usual}, or {KEY} must contain this name"
                )
            if peer:
                if len(self.seen) >= _MOST_SEEN:
                    self.seen.clear()
                self.seen.add(authority)
        origin = head.fields.get(b"origin")
        if origin is None or trusted or self._is_own(origin, head):
            return None
        return self._refused(
            f"requests of the website {_shown(origin)} are refused: the service answers its own"
            f" pages, and those of the names in {KEY}; cors.origins allows other websites to call"
            " its routes"
        )

    def _accepts(self, authority: bytes) -> bool:
        if self._any or not authority:
            return True
        name = name_of(authority)
        if is_local_name(name) or name in self._local or self._is_allowed(name):
            return True
        return self._public and is_address(name)

    def _is_allowed(self, name: str) -> bool:
        return name in self._allowed or name.endswith(self._below)

    def _is_own(self, origin: bytes, head: RequestHead) -> bool:
        """Whether the service itself, or a website of its names, made the request."""
        found = _origin(origin.lower())
        if found is None:
            return False
        scheme, host = found.groups()
        port = _DEFAULT_PORTS[scheme]
        host = host.removesuffix(port)
        passed_on = head.fields.get(b"x-forwarded-host", b"").split(b",")
        own = (head.authority, *(each.strip() for each in passed_on))
        return host in [each.lower().removesuffix(port) for each in own] or self._is_allowed(
            name_of(host)
        )

    def _refused(self, why: str) -> str:
        """Log the first refusal: behind a proxy nobody may see the answers."""
        if not self._has_refused:
            self._has_refused = True
            _log.warning("a request was refused, like further ones of its kind: %s", why)
        return why


def name_of(authority: bytes) -> str:
    """The host in a Host, in lower case, without port, brackets and a dot at its end."""
    host = authority.decode("latin-1").lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def is_address(name: str) -> bool:
    """Whether a host is an IP address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_local_name(name: str) -> bool:
    """Whether a host always means this machine: no website can have it."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    # A connection to 0.0.0.0 or [::] is one to this machine.
    return address.is_loopback or address.is_unspecified


def _shown(value: bytes) -> str:
    return repr(value[:_LONGEST_SHOWN].decode("latin-1"))
