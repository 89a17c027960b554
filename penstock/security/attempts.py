"""The limit of failed attempts of an address: a token bucket for each, which failures empty."""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import ip_address
from typing import Final

_MOST: Final = 4096
"""Most addresses that are remembered."""


class Attempts:
    """Counts failures by address. Belongs to one loop.

    Args:
        per_minute: failures that an address may have at once, and again in each minute.
    """

    def __init__(self, per_minute: int) -> None:
        self._most = float(per_minute)
        self._rate = per_minute / 60
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, address: str, now: float) -> float:
        """Seconds until the address may fail again; 0 if it may now.

        Args:
            address: an IP address, or empty.
            now: monotonic seconds.
        """
        left = self._now_left(_network(address), now)
        return 0.0 if left >= 1 else (1 - left) / self._rate

    def failed(self, address: str, now: float) -> None:
        """Count a failure."""
        network = _network(address)
        self._left[network] = (max(0.0, self._now_left(network, now) - 1), now)
        self._left.move_to_end(network)
        if len(self._left) > _MOST:
            self._left.popitem(last=False)

    def _now_left(self, network: str, now: float) -> float:
        left, then = self._left.get(network, (self._most, now))
        return min(self._most, left + (now - then) * self._rate)


def _network(address: str) -> str:
    """The address, or the first 64 bits of one of IPv6, which belong to one customer."""
    if ":" not in address:
        return address
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped) if mapped is not None else found.packed[:8].hex()
