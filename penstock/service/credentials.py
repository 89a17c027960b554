"""Reads what the admission of callers compares with: files of keys, and an issuer's key set.

A thread for each does so, at the start and again when a file changed or a time has passed: neither
a file system nor an issuer's server can stop the event loop, or keep a revoked key valid. What
cannot be read leaves the last good value in place, with one line in the log.
"""

from __future__ import annotations

import logging
import os
import urllib.request
from collections.abc import Callable
from difflib import get_close_matches
from http.client import HTTPException
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

from penstock.api.admission import CallerAdmission
from penstock.api.openapi import API_KEY, BEARER, CERTIFICATE
from penstock.config.callers import SecurityConfig
from penstock.config.schema import ServiceConfig
from penstock.errors import StartupError
from penstock.security.keys import Keys
from penstock.security.tokens import SigningKeys, TokenRules

_log: Final = logging.getLogger(__name__)

_POLL: Final = 1.0  # seconds between looks at files
_PAUSE: Final = 30.0  # seconds between reads that tokens with unknown keys cause
_RETRY: Final = 5.0  # seconds after a failed read
_TIMEOUT: Final = 5.0  # seconds for a connection, for each part of an answer, and for a whole body
_MOST_BYTES: Final = 1 << 20

_T = TypeVar("_T")


class _Source(Generic[_T]):
    """One value that is read from a file or a URL."""

    def __init__(self, what: str, place: str, make: Callable[[bytes], _T], every: float) -> None:
        self.what = what
        self.wake = Event()
        self._is_url = "://" in place
        # Absolute: the service may change its directory before it is read again.
        self.place = place if self._is_url else os.path.abspath(place)
        self.value: _T | None = None
        self._text: bytes | None = None  # of the value
        self._make = make
        self._every = every
        self._seen: Any = None  # the stamp of what was read last
        self._looked: Any = None  # the stamp at the last look
        self._due = 0.0
        self._failed = ""

    def due(self, now: float) -> bool:
        """Whether it is to be read now: a file only if it has not changed since the last look,
        because somebody may be writing it.
        """
        if self._is_url:
            return now >= self._due
        stamp, before = self._stamp(), self._looked
        self._looked = stamp
        changed = stamp != self._seen or bool(self._failed and now >= self._due)
        return changed and stamp == before

    def ask(self) -> None:
        """Let it be due."""
        self._due = 0.0
        self.wake.set()

    def read(self, now: float) -> bool:
        """Read it; whether there is a new value.

        Raises:
            StartupError: it cannot be read, or not be understood.
        """
        self._seen = None if self._is_url else self._stamp()
        self._due = now + _RETRY
        try:
            text = fetched(self.place) if self._is_url else Path(self.place).read_bytes()
        except (OSError, HTTPException) as error:
            why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise StartupError(f"{self.what}: {self.place} cannot be read: {why}") from error
        is_new = text != self._text
        if is_new:
            try:
                self.value = self._make(text)
            except ValueError as error:
                raise StartupError(f"{self.what}: {self.place}: {error}") from error
            self._text = text
        self._due = now + self._every
        self._failed = ""
        return is_new

    def read_again(self, now: float) -> bool:
        """The same; failures are logged, once for each text."""
        try:
            return self.read(now)
        except StartupError as error:
            if str(error) != self._failed:
                _log.error("%s; %s", error, "the last one stays" if self.value else "none is known")
            self._failed = str(error)
            return False

    def _stamp(self) -> Any:
        try:
            found = os.stat(self.place)
        except OSError:
            return "none"
        return found.st_mtime_ns, found.st_size, found.st_ino


class Credentials:
    """See the module.

    Args:
        config: of the service.

    Attributes:
        changes: counts new values: what was derived from former ones is void then.

    Raises:
        StartupError: keys cannot be read. An issuer that cannot be reached is tried again.
    """

    def __init__(self, config: SecurityConfig) -> None:
        self.changes = 0
        self._sources: list[_Source[Any]] = []
        self._fixed: list[Keys] = []
        self._files: list[_Source[Keys]] = []
        self._signing: _Source[SigningKeys] | None = None
        now = monotonic()
        if config.keys_env is not None:
            text = os.environ.get(config.keys_env)
            if text is None:
                raise StartupError(f"security.keys_env: {config.keys_env} is not set")
            try:
                self._fixed.append(Keys(text))
            except ValueError as error:
                where = f"security.keys_env: {config.keys_env}"
                raise StartupError(f"{where}: {error}") from error
        if config.keys is not None:
            file = _Source("security.keys", config.keys, _keys_of, _POLL)
            file.read(now)
            self._files.append(file)
        if config.jwt is not None:
            SigningKeys(b'{"keys":[]}')  # whether the package is installed
            place = config.jwt.keys
            self._signing = _Source("security.jwt", place, _signing_of, config.jwt.refresh)
            if "://" not in place:
                self._signing.read(now)
        self._sources = [*self._files, *([self._signing] if self._signing else [])]
        self._closing = False
        self._asked = -_PAUSE
        self._counting = Lock()
        self._threads: list[Thread] = []

    def start(self) -> None:
        """Start the threads."""
        for each in self._sources:
            thread = Thread(target=self._run, args=(each,), name=each.what, daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def keys(self) -> list[Keys]:
        """The API keys."""
        return [*self._fixed, *(each.value for each in self._files if each.value is not None)]

    @property
    def signing(self) -> SigningKeys | None:
        """The issuer's keys; None as long as they are unknown."""
        return None if self._signing is None else self._signing.value

    def refresh(self, now: float) -> bool:
        """Read the issuer's keys again soon; False if that was done a short time ago.

        Args:
            now: monotonic seconds.
        """
        if now - self._asked < _PAUSE:
            return False
        self._asked = now
        if self._signing is not None:
            self._signing.ask()
        return True

    def close(self) -> None:
        """End the threads. A read that hangs does not hold the process."""
        self._closing = True
        for each in self._sources:
            each.wake.set()
        until = monotonic() + _POLL
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))

    def _run(self, source: _Source[Any]) -> None:
        while not self._closing:
            source.wake.clear()
            now = monotonic()
            try:
                if source.due(now) and source.read_again(now):
                    with self._counting:
                        self.changes += 1
            except Exception:  # noqa: BLE001 - later values are read after any failure
                _log.exception("%s cannot be read", source.what)
            source.wake.wait(_POLL)


def _keys_of(text: bytes) -> Keys:
    if text and not text.endswith(b"\n"):
        # The rest may not be written yet, and the beginning of a scope may be another scope.
        raise ValueError("the last line has no newline at its end")
    return Keys(text.decode())


def _signing_of(text: bytes) -> SigningKeys:
    made = SigningKeys(text)
    if made.left_out:
        _log.warning("security.jwt: keys that cannot be read: %s", ", ".join(made.left_out))
    return made


def admission_of(config: SecurityConfig, known: Credentials) -> CallerAdmission:
    """The admission of callers of a service."""
    jwt = config.jwt
    rules = None
    if jwt is not None:
        rules = TokenRules(
            issuer=jwt.issuer,
            audiences=jwt.audience,
            algorithms=jwt.algorithms,
            leeway=jwt.leeway,
            name=jwt.name,
        )
    return CallerAdmission(
        known,
        rules=rules,
        certificates={name: frozenset(scopes) for name, scopes in config.certificates.items()},
        scopes=config.scopes,
        admin=config.admin_scope,
        open_paths=config.open,
        failures_per_minute=config.failures_per_minute,
    )


def callers_without_key(config: ServiceConfig, known: Credentials) -> list[str]:
    """A warning for each name in ``quotas`` and ``priority`` that no API key has: what is set for a
    misspelt one holds for nobody.

    Args:
        config: of a service that knows its callers.
        known: has their keys.
    """
    names = set[str]().union(*(each.names for each in known.keys))
    listed = [(f"quotas.{name}.callers", quota.callers) for name, quota in config.quotas.items()]
    listed.append(("priority.callers", tuple(config.priority.callers)))
    found = []
    for key, callers in listed:
        for name in callers:
            if name in names or name.startswith(("jwt:", "certificate:")):
                continue
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            found.append(
                f"{key}: no API key has the name {name!r}; {hint}(names of tokens and certificates"
                " begin with jwt: and certificate:)"
            )
    return found


def schemes_of(config: SecurityConfig) -> dict[str, Any]:
    """The security schemes for OpenAPI; empty if everybody is admitted."""
    found: dict[str, Any] = {}
    if config.keys or config.keys_env or config.jwt:
        found |= {**BEARER, **API_KEY}
    if config.certificates:
        found |= CERTIFICATE
    return found


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An issuer's keys come from the configured place, or not at all."""

    def redirect_request(self, *_: Any) -> None:
        return None


def fetched(url: str) -> bytes:
    """The body of a URL.

    Raises:
        OSError: it cannot be read.
    """
    handlers: list[Any] = [_NoRedirects]
    if urlsplit(url).scheme == "http":  # which is on this machine: no proxy can reach it
        handlers.append(urllib.request.ProxyHandler({}))
    body = b""
    with urllib.request.build_opener(*handlers).open(url, timeout=_TIMEOUT) as answer:
        until = monotonic() + _TIMEOUT
        while piece := answer.read1(_MOST_BYTES):
            body += piece
            if len(body) > _MOST_BYTES:
                raise OSError(f"it has over {_MOST_BYTES} bytes")
            if monotonic() > until:
                raise OSError("it takes too long")
    return body
