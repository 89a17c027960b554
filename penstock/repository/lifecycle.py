"""What is known of the versions of one model in a repository.

A version passes these states; the index shows a client one of Triton's four::

    FOUND ─> STAGING ─> VERIFIED ─> LOADING ─> STANDBY, SHADOW, CANARY, SERVING ─> DRAINING
      └─────────┴───────────┴──────────┴─> FAILED             └─> ROLLED_BACK         │
                                                                          REMOVED <───┘

A content that has failed, or was taken back, is barred by its digest: it is not tried again until
an operator says so. Another content of the same version is tried.

Pure: the steps are told to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

_MOST_BARRED: Final = 256
"""Digests that one model remembers: the oldest are forgotten."""


class State(Enum):
    """The state of one version of a model."""

    FOUND = "found"
    STAGING = "staging"
    VERIFIED = "verified"
    LOADING = "loading"
    STANDBY = "standby"
    SHADOW = "shadow"
    CANARY = "canary"
    SERVING = "serving"
    DRAINING = "draining"
    REMOVED = "removed"
    FAILED = "failed"
    ROLLED_BACK = "rolled back"


SERVES: Final = frozenset((State.STANDBY, State.SHADOW, State.CANARY, State.SERVING))
"""The states of a version that every engine has ready."""

_OF_ATTEMPT: Final = frozenset(
    (State.FOUND, State.STAGING, State.VERIFIED, State.LOADING, State.FAILED)
)
_ENDED: Final = frozenset((State.REMOVED, State.FAILED, State.ROLLED_BACK))

_NEXT: Final[Mapping[State, frozenset[State]]] = {
    State.FOUND: frozenset((State.STAGING, State.FAILED, State.REMOVED)),
    State.STAGING: frozenset((State.VERIFIED, State.FAILED, State.REMOVED)),
    State.VERIFIED: frozenset((State.LOADING, State.FAILED, State.REMOVED)),
    State.LOADING: SERVES | {State.FAILED, State.REMOVED},
    **dict.fromkeys(SERVES, SERVES | {State.DRAINING, State.REMOVED, State.ROLLED_BACK}),
    State.DRAINING: SERVES | {State.REMOVED, State.FOUND, State.STAGING, State.ROLLED_BACK},
    **dict.fromkeys(_ENDED, _ENDED | {State.FOUND, State.STAGING} | SERVES),
}
"""The states that follow each."""

_SHOWN: Final[Mapping[State, str]] = {
    State.FOUND: "UNAVAILABLE",
    State.STAGING: "LOADING",
    State.VERIFIED: "LOADING",
    State.LOADING: "LOADING",
    **dict.fromkeys(SERVES, "READY"),
    State.DRAINING: "UNLOADING",
    State.REMOVED: "UNAVAILABLE",
    State.FAILED: "UNAVAILABLE",
    State.ROLLED_BACK: "UNAVAILABLE",
}

_USUAL: Final[Mapping[State, str]] = {
    State.FOUND: "not loaded",
    State.STAGING: "being fetched",
    State.VERIFIED: "verified",
    State.LOADING: "being made ready",
    State.STANDBY: "standby",
    State.SHADOW: "shadow",
    State.CANARY: "canary",
    State.DRAINING: "finishing its requests",
    State.REMOVED: "unloaded",
}
"""The reasons that the index shows where none was given."""


_OF_GAP: Final[Mapping[State, str]] = {
    State.DRAINING: "finishing its requests, to make room; others wait",
    State.REMOVED: "it has made room for another version; requests wait",
    State.LOADING: "being opened again; requests wait",
}
"""The reasons that the index shows while requests wait for a version; see ``Lifecycle.rows``."""

_ANOTHER: Final = "another content: "


class Row(NamedTuple):
    """One version in the index.

    Attributes:
        name: of the model.
        version: its text.
        state: LOADING, READY, UNLOADING or UNAVAILABLE.
        reason: why, or in which of our states; empty for a version that simply serves.
    """

    name: str
    version: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Known:
    """One version.

    Attributes:
        state: its state.
        reason: why, if there is more to say.
        digest: of its content; empty as long as it is unknown.
    """

    state: State
    reason: str = ""
    digest: str = ""


class Lifecycle:
    """The versions of one model; see the module.

    Attributes:
        versions: what is known of each.
    """

    def __init__(self) -> None:
        self.versions: dict[str, Known] = {}
        self._barred: dict[str, str] = {}  # reasons by digest

    def advance(self, version: str, state: State, reason: str = "", digest: str = "") -> None:
        """A version has reached a state. If it serves and another content of it is being loaded, it
        goes on to serve, and the state is only its reason.

        Args:
            version: its text.
            state: the new one.
            reason: why, for people.
            digest: of its content; empty: that which is known.

        Raises:
            ValueError: the state cannot follow.
        """
        known = self.versions.get(version)
        if known is None:
            self.versions[version] = Known(state, reason, digest)
            return
        if known.state in SERVES and state in _OF_ATTEMPT:
            text = reason or _USUAL.get(state, "")
            self.versions[version] = replace(known, reason=f"{_ANOTHER}{text}")
            return
        if state is not known.state and state not in _NEXT[known.state]:
            raise ValueError(f"version {version} is {known.state.value}, not {state.value}")
        before = "" if state is State.FOUND else known.digest
        self.versions[version] = Known(state, reason, digest or before)

    def settle(self, version: str, digest: str) -> None:
        """A version serves with this content."""
        self.versions[version] = replace(self.versions[version], reason="", digest=digest)

    def fail(self, version: str, reason: str, *digests: str) -> None:
        """A version could not be served, and its content is barred.

        Args:
            version: its text.
            reason: why, for people.
            digests: of the content; none if another try may succeed.
        """
        self.advance(version, State.FAILED, reason)
        for each in digests:
            self._bar(each, reason)

    def roll_back(self, version: str, reason: str, *digests: str) -> None:
        """A version that was served is taken back, and its content is barred."""
        self.advance(version, State.ROLLED_BACK, reason)
        for each in (self.versions[version].digest, *digests):
            self._bar(each, reason)

    def go_back(self, version: str, digest: str, reason: str, *digests: str) -> None:
        """A version serves with an earlier content again, and the one that is taken back is barred.

        Args:
            version: its text.
            digest: of the earlier content.
            reason: why, for people.
            digests: further ones of the content that is taken back.
        """
        known = self.versions[version]
        self.versions[version] = replace(known, reason=f"{_ANOTHER}{reason}", digest=digest)
        for each in (known.digest, *digests):
            self._bar(each, reason)

    def take_back(self, version: str, reason: str, *digests: str) -> None:
        """A version is taken back that still serves requests which name it, and its content is
        barred.
        """
        known = self.versions[version]
        self.versions[version] = replace(known, reason=f"taken back: {reason}")
        for each in (known.digest, *digests):
            self._bar(each, reason)

    def _bar(self, digest: str, reason: str) -> None:
        if digest:
            self._barred.pop(digest, None)
            self._barred[digest] = reason
            if len(self._barred) > _MOST_BARRED:
                del self._barred[next(iter(self._barred))]

    @property
    def bars(self) -> dict[str, str]:
        """The reasons of all that is barred, by digest, the oldest first."""
        return dict(self._barred)

    def bar(self, reasons: Mapping[str, str]) -> None:
        """Bar what was barred before, by digest."""
        for digest, reason in reasons.items():
            self._bar(digest, reason)

    def barred(self, digest: str) -> str | None:
        """Why a content is not tried again; None if it may be tried."""
        return self._barred.get(digest)

    def forgive(self, digests: Iterable[str]) -> None:
        """Let contents that were barred be tried again."""
        for each in digests:
            self._barred.pop(each, None)

    def serve(self, roles: Mapping[str, State]) -> list[str]:
        """The engines have these versions, each in one of the states of ``SERVES``. Returns those
        that they had until now, which are draining.
        """
        known = self.versions
        left = [each for each in known if known[each].state in SERVES and each not in roles]
        for version in left:
            self.advance(version, State.DRAINING)
        for version, state in roles.items():
            before = known.get(version)
            if before is None or before.state is not state:
                self.advance(version, state)
        return left

    def forget(self, there: Iterable[str]) -> None:
        """Drop versions that neither are in the repository any more, nor were ever loaded."""
        for version in self.versions.keys() - {*there}:
            if self.versions[version].state in (State.FOUND, State.FAILED, State.REMOVED):
                del self.versions[version]

    def rows(
        self, name: str, gap: Callable[[str], State | None] = lambda version: None
    ) -> list[Row]:
        """The model's versions in the index, the oldest first.

        Args:
            name: of the model.
            gap: what a version does that serves, and that ends before its successor is there:
                DRAINING, REMOVED, or LOADING if it is opened again; None if it does serve.
        """
        found = []
        for version in sorted(self.versions, key=_order):
            known = self.versions[version]
            state, reason = known.state, known.reason or _USUAL.get(known.state, "")
            now = gap(version) if state in SERVES else None
            if now is not None:
                comes = now is State.REMOVED and known.reason.startswith(_ANOTHER)
                state, reason = (State.LOADING, reason) if comes else (now, _OF_GAP[now])
            found.append(Row(name, version, _SHOWN[state], reason))
        return found


def _order(version: str) -> tuple[int, int, str]:
    """Numbers by their value, before other texts."""
    is_number = version.isascii() and version.isdecimal()
    return (0, int(version), "") if is_number else (1, 0, version)
