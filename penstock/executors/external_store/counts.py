"""What a part of a service does with its external store, and whether it can; for any thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

_COUNTERS: Final = ("put_bytes", "fetched_bytes", "inline", "lost")


class StoreCounts:
    """See the module.

    Attributes:
        wrong: what is wrong with the store, a text that continues "the external store …"; None: it
            has not been looked at; empty: nothing.
        in_use: the keys that were given out and whose requests have not ended.
        put_bytes: bytes that were put there.
        fetched_bytes: bytes that were fetched from there.
        inline: requests of whose large values at least one went another way, as the store did not
            take or give it.
        lost: requests that failed because a value was lost.
    """

    def __init__(self) -> None:
        self.wrong: str | None = None
        self.in_use = 0
        self.put_bytes = 0
        self.fetched_bytes = 0
        self.inline = 0
        self.lost = 0
        self._lock = threading.Lock()

    def add(
        self, *, in_use: int = 0, put: int = 0, fetched: int = 0, inline: int = 0, lost: int = 0
    ) -> None:
        """Add to the counts."""
        with self._lock:
            self.in_use += in_use
            self.put_bytes += put
            self.fetched_bytes += fetched
            self.inline += inline
            self.lost += lost

    def add_all(self, other: StoreCounts) -> None:
        """Add the counters of another one, which does not count any more."""
        self.add(
            put=other.put_bytes, fetched=other.fetched_bytes, inline=other.inline, lost=other.lost
        )


def report_of(counts: Sequence[StoreCounts], before: StoreCounts | None = None) -> dict[str, Any]:
    """The part of a status report about the store; ``before`` is of parts that are no more.

    ``users`` are the parts of the service that use it, ``available`` those whose last command, or
    look at its settings, has found nothing wrong; ``why`` is what one of the others has found.
    """
    wrong = [each.wrong for each in counts if each.wrong]
    counted = [*counts, before or StoreCounts()]
    return {
        "users": len(counts),
        "available": sum(each.wrong == "" for each in counts),
        "why": wrong[0] if wrong else None,
        "in_use": sum(each.in_use for each in counts),
        **{name: sum(getattr(each, name) for each in counted) for name in _COUNTERS},
    }
