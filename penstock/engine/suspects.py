"""Remembers the inputs that a worker process died with: who may have killed it, and who has.

Pure: it knows the times that it is told, and of inputs nothing but a digest.

Guarantees:
    - inputs are a culprit only when a worker died while it ran them and nothing else, after another
      had died with them among others: nobody is refused for what a neighbour did;
    - what was remembered is forgotten after LIFE, and at most MOST inputs are remembered, of which
      the oldest go first.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import Final

from penstock.engine.digest import OUTLINE, digest_of, outline_of
from penstock.request import Feed

LIFE: Final = 600.0
"""Seconds for which inputs are remembered, and culprits refused."""
MOST: Final = 10_000
"""Inputs of one op, in some 2 MB; a guess at what nobody reaches who does not mean to."""


class Verdict(Enum):
    """What is known of some inputs."""

    UNKNOWN = "unknown"
    SUSPECT = "suspect"
    CULPRIT = "culprit"


class Suspects:
    """One op's.

    Attributes:
        latest: when something was remembered last; what arrived later was judged as it arrived.
    """

    __slots__ = ("_known", "_outlines", "latest")

    def __init__(self) -> None:
        self.latest = float("-inf")
        # Since all live equally long, the order of entry is that of expiry.
        self._known: dict[bytes, tuple[Verdict, float]] = {}
        self._outlines: Counter[bytes] = Counter()  # of those

    def __len__(self) -> int:
        return len(self._known)

    def __repr__(self) -> str:
        culprits = sum(verdict is Verdict.CULPRIT for verdict, _ in self._known.values())
        return f"<Suspects {len(self._known)}, of whom {culprits} are culprits>"

    def find(self, inputs: dict[str, Feed], now: float) -> tuple[bytes | None, Verdict]:
        """Whether these inputs are known, and as whom; only those that resemble some are read."""
        self._forget(now)
        outline = outline_of(inputs)
        if outline is None or outline not in self._outlines:
            return None, Verdict.UNKNOWN
        digest = digest_of(inputs)
        return digest, self.verdict(digest, now)

    def verdict(self, digest: bytes | None, now: float) -> Verdict:
        """What is known of the inputs with this digest; nothing of those that have none."""
        self._forget(now)
        if digest is None:
            return Verdict.UNKNOWN
        return self._known.get(digest, _NOTHING)[0]

    def accuse(self, digest: bytes, now: float) -> None:
        """A worker died with these inputs among others, or for the first time."""
        verdict = self.verdict(digest, now)
        self._remember(digest, Verdict.SUSPECT if verdict is Verdict.UNKNOWN else verdict, now)

    def convict(self, digest: bytes, now: float) -> None:
        """A worker died with these inputs alone, and they had been suspects."""
        self._remember(digest, Verdict.CULPRIT, now)

    def clear(self, digest: bytes) -> None:
        """They ran alone, and the worker lives."""
        if self._known.pop(digest, None) is not None:
            outline = digest[:OUTLINE]
            self._outlines[outline] -= 1
            if not self._outlines[outline]:
                del self._outlines[outline]

    def _remember(self, digest: bytes, verdict: Verdict, now: float) -> None:
        self.latest = now
        self.clear(digest)
        self._known[digest] = (verdict, now + LIFE)
        self._outlines[digest[:OUTLINE]] += 1
        self._forget(now)

    def _forget(self, now: float) -> None:
        known = self._known
        while known:
            oldest = next(iter(known))
            if len(known) <= MOST and known[oldest][1] > now:
                return
            self.clear(oldest)


_NOTHING: Final = (Verdict.UNKNOWN, 0.0)
