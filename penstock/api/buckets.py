"""Token buckets of many callers in bounded memory. Pure: the time is an argument.

Of each bucket only the time at which it will be full again is kept. A bucket that is not known is
full; beyond the limit of memory the one that was used least recently is forgotten.

Source: the generic cell rate algorithm of ITU-T I.371, which is a token bucket without a timer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class Buckets:
    """Buckets of one size, by key.

    Args:
        rate: tokens a second.
        burst: tokens of a full bucket, 1 or more.
        most: the most buckets that are remembered.
    """

    def __init__(self, rate: float, burst: int, most: int = 10_000) -> None:
        self.burst = burst
        self._step = 1 / rate
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        return len(self._full_at)

    def wait(self, key: Hashable, now: float) -> float:
        """Seconds until the bucket has a token; 0.0 if it has one.

        Args:
            key: of the bucket.
            now: monotonic seconds.
        """
        full_at = self._full_at.get(key)
        if full_at is None:
            return 0.0
        # Less than a millionth of a token is an error of rounding.
        missing = full_at - now - (self.burst - 1) * self._step
        return missing if missing > 1e-6 * self._step else 0.0

    def take(self, key: Hashable, now: float) -> int:
        """Take a token, which there must be; returns how many are left."""
        full_at = max(self._full_at.get(key, now), now) + self._step
        self._full_at[key] = full_at
        self._full_at.move_to_end(key)
        if len(self._full_at) > self._most:
            self._full_at.popitem(last=False)
        return max(0, self.burst - int((full_at - now) / self._step + 1 - 1e-6))
