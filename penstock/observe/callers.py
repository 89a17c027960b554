"""Counts the requests of each caller, in bounded memory.

The callers are authenticated, but may be many: of an issuer's tokens there may be one for each
user. Those with the fewest requests share one count, ``OTHERS``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

OTHERS: Final = "*"
"""The name under which callers are counted together."""

MOST: Final = 256
"""Callers with a count of their own in an engine."""

SHOWN: Final = 32
"""Callers with a count of their own in a status."""

CANCELLED: Final = "cancelled"
"""The code of a request whose caller has left, which has not failed."""

SERIES: Final = 100
"""Callers with a count of their own in the metrics of an engine: the first ones. They keep it, so
that no count decreases."""

_OF_TOKENS: Final = "jwt:"
"""Begins the names of tokens, which have no such count: mostly they are those of persons."""

_NUMBERS: Final = ("requests", "failed", "cancelled")

Plain: TypeAlias = Mapping[str, Any]
"""``name``, ``requests``, ``failed``, ``cancelled``, and ``refused``, by error code."""


class Callers:
    """See the module. Belongs to the engine's loop."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[list[int], dict[str, int]]] = {}
        self._series: dict[str, tuple[list[int], dict[str, int]]] = {}  # some of them

    def count(self, name: str, code: str | None, *, refused: bool) -> None:
        """Count a request that has ended.

        Args:
            name: of its caller.
            code: of its error, or ``CANCELLED``; None without one.
            refused: whether it was not admitted.
        """
        found = self._counts.get(name)
        if found is None:
            if len(self._counts) > MOST:
                self._forget()
            found = self._counts[name] = [0, 0, 0], {}
            if len(self._series) < SERIES and not name.startswith(_OF_TOKENS):
                self._series[name] = found
        numbers, refusals = found
        numbers[0] += 1
        if refused and code is not None:
            refusals[code] = refusals.get(code, 0) + 1
        elif code is not None:
            numbers[2 if code == CANCELLED else 1] += 1

    def _forget(self) -> None:
        """Count half of the callers together: those with the fewest requests."""
        ordered = [each for each in self.plain() if each["name"] not in self._series]
        ordered.sort(key=_order)
        self._counts = self._series | {
            each["name"]: ([each[key] for key in _NUMBERS], dict(each["refused"]))
            for each in together(ordered, MOST // 2)
        }

    def plain(self) -> list[dict[str, Any]]:
        """The counts of each caller."""
        return [
            {"name": name, **dict(zip(_NUMBERS, numbers, strict=True)), "refused": dict(refused)}
            for name, (numbers, refused) in self._counts.items()
        ]

    def series(self) -> list[Plain]:
        """The counts of those with a series, and of the others together; they never decrease."""
        counts = self.plain()
        counts.sort(key=lambda each: (each["name"] not in self._series, each["name"] == OTHERS))
        return together(counts, len(self._series))


def most_active(counts: Sequence[Plain], most: int = SHOWN) -> list[Plain]:
    """The callers with the most requests first, and the others together.

    Args:
        counts: of all callers, each name once.
        most: callers with a count of their own.
    """
    return together(sorted(counts, key=_order), most)


def first_ones(counts: Sequence[Plain], most: int) -> list[Plain]:
    """As ``most_active``, but the first callers, in their order, so that they keep their counts."""
    return together(sorted(counts, key=lambda each: each["name"] == OTHERS), most)


def together(counts: Sequence[Plain], most: int) -> list[Plain]:
    """The first callers, and the sum of the others, in ``OTHERS``.

    Args:
        counts: of callers; ``OTHERS`` is the last, if it is there.
        most: callers with a count of their own.
    """
    own = [each for each in counts if each["name"] != OTHERS]
    rest = [*own[most:], *counts[len(own) :]]
    if not rest:
        return own
    refused: dict[str, int] = {}
    for each in rest:
        for code, count in each["refused"].items():
            refused[code] = refused.get(code, 0) + count
    others = {key: sum(each[key] for each in rest) for key in _NUMBERS}
    return [*own[:most], {"name": OTHERS, **others, "refused": refused}]


def _order(counts: Plain) -> tuple[bool, int]:
    return counts["name"] == OTHERS, -counts["requests"]
