"""Draws the version of a request by the versions' shares.

With a key, such as a caller's, the draw is always the same ("sticky"), in every process. A caller
changes its version only for one whose share has grown against that of the caller's version: callers
who are in a new version at 5 % are in it at 10 %. Each version of a name is drawn by other callers,
so that not the same few try every new version.

Source: each version draws a waiting time from an exponential distribution with its share as the
rate, by a hash of its own, and the shortest wins: weighted rendezvous hashing (Schindelhauer and
Schomaker, "Weighted distributed hash tables", SPAA 2005, the logarithmic method).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from hashlib import blake2b
from itertools import accumulate
from math import log
from typing import Final

_BYTES: Final = 8
_RANGE: Final = 2.0 ** (8 * _BYTES)


class Shares:
    """The shares of the versions of one name. Immutable.

    Args:
        name: of the graph or model.
        weights: numbers of any sum, by version; none negative, at least one not 0.
    """

    def __init__(self, name: str | None, weights: Mapping[str, int]) -> None:
        found = {version: weight for version, weight in weights.items() if weight > 0}
        if not found or min(weights.values()) < 0:
            raise ValueError(f"shares are not negative, and one is not 0: {dict(weights)}")
        self._versions = [*found]
        self._bounds = [*accumulate(found.values())]
        self._hashes = [
            (blake2b(f"{name or ''}\0{version}\0".encode(), digest_size=_BYTES), weight, version)
            for version, weight in found.items()
        ]

    def drawn(self, point: float) -> str:
        """The version at a random number of at least 0 and below 1."""
        return self._versions[bisect_right(self._bounds, point * self._bounds[-1])]

    def drawn_by(self, key: bytes) -> str:
        """The version of a key."""
        waiting = (
            (_waiting(hashed, weight, key), version) for hashed, weight, version in self._hashes
        )
        return min(waiting)[1]


def _waiting(hashed: blake2b, weight: int, key: bytes) -> float:
    own = hashed.copy()
    own.update(key)
    point = (int.from_bytes(own.digest(), "big") + 0.5) / _RANGE
    return -log(point) / weight
