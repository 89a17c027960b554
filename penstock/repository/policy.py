"""Version policies: which of the versions that a model has are served.

Versions are positive decimal numbers, as texts; the highest is the newest.

Source: Triton's ``version_policy`` and TensorFlow Serving's ``model_version_policy``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPolicy:
    """A policy; one of its fields decides.

    Attributes:
        latest: the number of newest versions that are served; 0 is all of them.
        specific: the versions that are served, whatever else is there; None without this choice.
    """

    latest: int = 1
    specific: tuple[str, ...] | None = None

    def __str__(self) -> str:
        if self.specific is not None:
            return f"specific {', '.join(self.specific)}"
        return f"latest {self.latest}" if self.latest else "all"


LATEST_WORD: Final = "latest"
"""How the default policy is written."""

LATEST: Final = VersionPolicy()
"""The default: the newest version."""

ALL: Final = VersionPolicy(latest=0)


def canonical(text: str) -> str | None:
    """A version without leading zeros; None if the text is no version: not a number of ASCII digits
    between 0 and 2**63 - 1.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS) or int(text) > _HIGHEST:
        return None
    return str(int(text))


_DIGITS: Final = 32
_HIGHEST: Final = (1 << 63) - 1


def ordered(versions: Iterable[str]) -> list[str]:
    """Versions from the oldest to the newest."""
    return sorted(versions, key=int)


def wanted(policy: VersionPolicy, versions: Iterable[str]) -> list[str]:
    """The versions to serve, from the oldest to the newest.

    Args:
        policy: of the model.
        versions: the versions that are there.
    """
    there = ordered(versions)
    if policy.specific is not None:
        return [each for each in there if each in policy.specific]
    return there[-policy.latest :] if policy.latest else there


def missing(policy: VersionPolicy, versions: Iterable[str]) -> list[str]:
    """The versions that the policy names and that are not there, from the oldest to the newest."""
    return ordered({*(policy.specific or ())} - {*versions})


def default(served: Sequence[str]) -> str | None:
    """The version of requests that name none: the newest; None if none is served."""
    return max(served, key=int, default=None)


def parse(text: str) -> VersionPolicy:
    """Read a policy: ``latest``, ``latest 2``, ``all``, or versions such as ``1, 3``.

    Raises:
        ValueError: the text is none.
    """
    first, *rest = text.replace(",", " ").split() or [""]
    if first == "all" and not rest:
        return ALL
    if first == LATEST_WORD and len(rest) <= 1:
        count = int(rest[0]) if rest and canonical(rest[0]) else 1
        if count >= 1 and (not rest or canonical(rest[0])):
            return VersionPolicy(latest=count)
    found = [canonical(each) for each in (first, *rest)]
    if not all(found):
        raise ValueError(f"must be latest, latest N, all, or numbers of versions, got {text!r}")
    return VersionPolicy(specific=tuple(filter(None, found)))
