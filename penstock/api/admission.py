"""Admits callers of every protocol by a key, a token or a certificate, from a request's head.

A caller shows a key or a token in ``Authorization: Bearer`` or ``X-API-Key``, over gRPC in the
metadata of these names, or has a client certificate. What was verified once is remembered, by its
digest, until it expires or the known keys change.

The decisions are in ``penstock.security``; here are the clocks, the memory and the log.
Source: RFC 6750, RFC 9110 (section 11).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final, Protocol

from penstock.api.application import Route, Section
from penstock.api.call import exchange_of
from penstock.api.priorities import path_of
from penstock.caller import Caller, name_of
from penstock.door.exchange import Exchange
from penstock.engine.submission import Submission
from penstock.errors import (
    PermissionDenied,
    RequestError,
    ServiceClosed,
    TooManyRequests,
    Unauthenticated,
)
from penstock.security.attempts import Attempts
from penstock.security.certificates import caller_of
from penstock.security.keys import Keys
from penstock.security.tokens import SigningKeys, TokenRules, UnknownKey, invalid, verified

_log: Final = logging.getLogger(__name__)

_BEARER: Final = b"bearer "
_MOST_REMEMBERED: Final = 4096
_LOG_PAUSE: Final = 1.0  # seconds between two lines about refused callers
_NOTHING: Final = "send a key or a token, as Authorization: Bearer, or X-API-Key"


class Known(Protocol):
    """What callers' secrets are compared with; changes at any time."""

    changes: int

    @property
    def keys(self) -> Sequence[Keys]:
        """The API keys."""

    @property
    def signing(self) -> SigningKeys | None:
        """The issuer's keys; None as long as they are unknown."""

    def refresh(self, now: float) -> bool:
        """Get newer keys of the issuer soon; False if that was done a short time ago."""


class CallerAdmission:
    """See the module; an ``Application`` and its ``Admission``. Belongs to the door's loop.

    Args:
        known: what secrets are compared with.
        rules: of tokens; None if there are none.
        certificates: scopes by the name in a client's certificate.
        scopes: the scope that a path, gRPC method or graph needs.
        admin: the scope of operators.
        open_paths: paths of routes that need no key.
        failures_per_minute: of one address.
        clock: seconds since 1970.
        monotonic: monotonic seconds.
    """

    def __init__(
        self,
        known: Known,
        *,
        rules: TokenRules | None = None,
        certificates: Mapping[str, frozenset[str]] | None = None,
        scopes: Mapping[str, str] | None = None,
        admin: str = "admin",
        open_paths: Sequence[str] = (),
        failures_per_minute: int = 60,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._known = known
        self._rules = rules
        self._certificates = certificates or {}
        self._scopes = scopes or {}
        self._of_graphs = {name: {scope} for name, scope in self._scopes.items()}
        self._admin = admin
        self._open = frozenset(open_paths)
        self._attempts = Attempts(failures_per_minute)
        self._clock = clock
        self._monotonic = monotonic
        self._remembered: dict[bytes, tuple[Caller, float | None]] = {}
        self._changes = known.changes
        self._log_at = 0.0
        self._unlogged = 0

    def routes(self) -> Sequence[Route | Section]:
        """It has none."""
        return ()

    def set_paths(self, paths: Mapping[str, Iterable[str]]) -> None:
        """Let the scopes of routes hold for their graphs, which other protocols serve as well.

        Args:
            paths: of the graphs' own routes, by the graphs' names.
        """
        for name, own in paths.items():
            scopes = {self._scopes[each] for each in own if each in self._scopes}
            if scopes:
                self._of_graphs.setdefault(name, set()).update(scopes)

    def admit(self, route: Route, exchange: Exchange) -> Caller | None:
        """See ``Admission``; None for a caller that is unknown, of a route that is open.

        Raises:
            Unauthenticated: no valid key, token or certificate.
            PermissionDenied: the caller has not the scope of the route.
            TooManyRequests: too many failed attempts from its address.
            ServiceClosed: the issuer's keys are not known yet.
        """
        if route.open or (self._open and path_of(route) in self._open):
            return None
        caller = exchange.caller = self.authenticate(exchange)
        if route.admin and self._admin not in caller.scopes:
            raise self._denied(caller, path_of(route), self._admin)
        if self._scopes:
            path = path_of(route)
            needed = self._scopes.get(path)
            if needed is not None and needed not in caller.scopes:
                raise self._denied(caller, path, needed)
        return caller

    def authenticate(self, exchange: Exchange) -> Caller:
        """The caller of a request with or without a route.

        Raises:
            Unauthenticated, TooManyRequests, ServiceClosed: see ``admit``.
        """
        head = exchange.head
        fields = head.fields
        if len(fields) != len(head.headers):  # a name occurs twice
            self._refuse_repeated(exchange)
        shown = fields.get(b"x-api-key")
        if not shown:
            shown = fields.get(b"authorization")
            if shown is not None:
                scheme = shown[:7]
                known = scheme == b"Bearer " or scheme.lower() == _BEARER
                shown = shown[7:].strip() if known else None
        if self._changes != self._known.changes:
            self._changes = self._known.changes
            self._remembered.clear()
        if shown:
            digest = sha256(shown).digest()
            found = self._remembered.get(digest)
            if found is not None and (found[1] is None or self._clock() < found[1]):
                return found[0]
        else:
            digest = b""
        return self._first(exchange, shown, digest)

    def _refuse_repeated(self, exchange: Exchange) -> None:
        """Refuse two keys or tokens: proxies and services would not choose the same one."""
        names = [name for name, _ in exchange.head.headers]
        for name in (b"x-api-key", b"authorization"):
            if names.count(name) > 1:
                error = invalid(f"the field {name.decode()} occurs more than once")
                raise self._failed(error, exchange)

    def permit(self, submission: Submission) -> None:
        """Check a request's graph, which some protocols name in the body.

        Raises:
            PermissionDenied: the caller has not the scope of the graph, or of its route.
            Unauthenticated, TooManyRequests, ServiceClosed: it called an open route; see ``admit``.
        """
        name, call = submission.graph.name, submission.call
        needed = self._of_graphs.get(name or "")
        if needed is None or call is None:
            return
        caller = submission.caller
        if not isinstance(caller, Caller):  # of an open route
            caller = self.authenticate(exchange_of(call))
        for scope in needed:
            if scope not in caller.scopes:
                raise self._denied(caller, str(name), scope)

    def identify(self, submission: Submission) -> Caller | None:
        """Who calls an open route, for an op that asks; None if the request does not say.

        Raises:
            Unauthenticated, TooManyRequests, ServiceClosed: see ``admit``.
        """
        exchange = exchange_of(submission.call)
        fields, certificate = exchange.head.fields, exchange.peer.certificate
        caller: Caller | None = None
        if b"x-api-key" in fields or fields.get(b"authorization", b"")[:7].lower() == _BEARER:
            caller = self.authenticate(exchange)
        elif certificate:
            caller = caller_of(certificate, self._certificates)
        exchange.caller = caller
        return caller

    def _first(self, exchange: Exchange, shown: bytes | None, digest: bytes) -> Caller:
        """The caller of something that is not remembered."""
        peer = exchange.peer
        if not shown:
            certificate = peer.certificate
            caller = certificate and caller_of(certificate, self._certificates)
            if caller:
                return caller
            raise self._failed(Unauthenticated(_NOTHING), exchange)
        until: float | None = None
        for keys in self._known.keys:
            caller = keys.find(shown)
            if caller is not None:
                break
        else:
            try:
                caller, until = self._by_token(shown)
            except Unauthenticated as error:
                raise self._failed(error, exchange) from error.__cause__
        if len(self._remembered) >= _MOST_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]  # the oldest
        self._remembered[digest] = (caller, until)
        return caller

    def _by_token(self, token: bytes) -> tuple[Caller, float]:
        rules = self._rules
        if rules is None or token.count(b".") != 2:
            raise invalid("the key is not known")
        signing = self._known.signing
        if signing is None:
            raise _unknown_yet()
        try:
            return verified(token, signing, rules, self._clock())
        except UnknownKey:
            if self._known.refresh(self._monotonic()):
                raise _unknown_yet() from None
            raise

    def _failed(self, error: Unauthenticated, exchange: Exchange) -> RequestError:
        """Count and log a failed attempt; what the caller gets."""
        address, now = exchange.peer.address, self._monotonic()
        wait = self._attempts.wait(address, now)
        self._attempts.failed(address, now)
        self._log_refusal(f"a caller at {address or 'a Unix socket'} was refused: {error}", now)
        if wait:
            return TooManyRequests("too many failed attempts; try again later", wait)
        return error

    def _denied(self, caller: Caller, what: str, scope: str) -> PermissionDenied:
        text = f"{name_of(caller)!r} was refused: {what} needs the scope {scope}"
        self._log_refusal(text, self._monotonic())
        return PermissionDenied(f"this needs the scope {scope}")

    def _log_refusal(self, text: str, now: float) -> None:
        """Log a refusal; not more than one in a while."""
        if now < self._log_at:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more since the last line)" if self._unlogged else ""
        self._log_at, self._unlogged = now + _LOG_PAUSE, 0
        _log.warning("%s%s", text, more)


def _unknown_yet() -> ServiceClosed:
    error = ServiceClosed("the issuer's keys are being fetched; try again")
    error.retry_after = 1.0
    return error
