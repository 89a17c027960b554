"""How many bytes are in flight: bodies, decoded tensors and answers not yet read.

One budget for all ports. What does not fit is refused at once, before its body is read where the
transport allows it.
"""

from __future__ import annotations

import resource
from pathlib import Path

from penstock.errors import ServiceBusy

DEFAULT_MOST = 2 << 30
_BEYOND = 10
"""One of so many parts of the limit may be used beyond it: for decoders' copies, and for small
requests, which are served even while large ones that only say that they will come have the rest."""

_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


class ByteBudget:
    """Bytes in flight against a limit. One loop owns it.

    Attributes:
        limit: bytes.
        most: with what may go beyond it.
        to_come: bytes among the used ones that are reserved, and known not to be there yet.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.most = limit + limit // _BEYOND
        self.used = 0
        self.refused = 0
        self.to_come = 0

    @property
    def there(self) -> int:
        """Bytes that are there."""
        return self.used - self.to_come

    def reserve(self, count: int) -> None:
        """Take ``count`` bytes.

        Raises:
            ServiceBusy: they do not fit; nothing was taken, a later retry may succeed.
        """
        if self.used + count > self.limit:
            raise self.refuse()
        self.used += count

    def refuse(self) -> ServiceBusy:
        """Count what does not fit, and say so."""
        self.refused += 1
        return ServiceBusy("too many bytes in flight; try again later")

    def add(self, count: int) -> None:
        """Count bytes that exist already (an answer), even beyond the limit."""
        self.used += count

    def release(self, count: int) -> None:
        """Give back what was reserved or added."""
        self.used -= count
        assert self.used >= 0, "more bytes were given back than taken"


class Reservation:
    """What one exchange has taken from a budget; ``release`` gives all of it back."""

    __slots__ = ("_budget", "taken", "to_come")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.taken = self.to_come = 0

    @property
    def limit(self) -> int:
        """Of the budget."""
        return self._budget.limit

    def another(self) -> Reservation:
        """One of the same budget, for what may be over before this is, or after it."""
        return Reservation(self._budget)

    def take(self, count: int) -> None:
        """Reserve more; raises ServiceBusy when it does not fit."""
        self._budget.reserve(count)
        self.taken += count

    def take_small(self, count: int) -> None:
        """The same for a small request, for which there is some room beyond the limit."""
        if not self.try_small(count):
            raise self._budget.refuse()

    def try_small(self, count: int) -> bool:
        """``take_small`` where it fits; says whether it did."""
        budget = self._budget
        used = budget.used + count
        # Much of what ``reserve`` does, without the call: nearly every request comes here.
        if used > budget.most:
            return False
        budget.used = used
        self.taken += count
        return True

    def announce(self, size: int, there: int = 0) -> None:
        """Reserve a body that is to come, and what it decodes to.

        Whoever is let in here is not refused when all of it has been read, as long as nobody's
        body decodes to more than its size, and all large ones were announced.

        Args:
            size: its bytes; ``arrive`` tells when they come.
            there: so many of them have come, and are reserved already.

        Raises:
            ServiceBusy: they do not fit.
        """
        budget = self._budget
        if size > largest_body(budget.limit):
            raise budget.refuse()
        self._expect(2 * size - there)

    def arrive(self, count: int) -> None:
        """Bytes are there, which perhaps were reserved ahead."""
        come = min(count, self.to_come)
        self.to_come -= come
        self._budget.to_come -= come

    def decode(self, size: int) -> None:
        """Reserve what a body of ``size`` bytes decodes to, as far as that was not done ahead.

        While it is decoded there are three of that size: the body, what it decodes to, and the copy
        that decoders read from. The copy goes before anybody else has a turn, so there is never
        more than one, and it may go beyond the limit by a little.

        Raises:
            ServiceBusy: they do not fit.
        """
        if size > self.to_come:
            self._expect(size - self.to_come)
        budget = self._budget
        if budget.there + 2 * size > budget.most:
            raise budget.refuse()

    def decoded(self, size: int, kept: int) -> None:
        """A body of ``size`` bytes is gone, and ``kept`` bytes of what it decoded to are there.

        What it had reserved beyond that stays so, for what is made of them.

        Raises:
            ServiceBusy: they are more than the body had, and do not fit.
        """
        more = kept - size
        if more > 0:
            if self._budget.used + more > self._budget.most:
                raise self._budget.refuse()
            self.add(more)
        reserved = self.taken - max(kept, size)
        self._budget.to_come += reserved - self.to_come
        self.to_come = reserved

    def add(self, count: int) -> None:
        """Count bytes that exist already."""
        self._budget.add(count)
        self.taken += count

    def give_back(self, count: int) -> None:
        """Give back some of it."""
        self._budget.release(count)
        self.taken -= count

    def release(self) -> None:
        """Give everything back; the exchange is over."""
        # What ``ByteBudget.release`` does, without the call.
        budget = self._budget
        budget.used -= self.taken
        assert budget.used >= 0, "more bytes were given back than taken"
        budget.to_come -= self.to_come
        self.taken = self.to_come = 0

    def _expect(self, count: int) -> None:
        self.take(count)
        self.to_come += count
        self._budget.to_come += count


def largest_body(limit: int) -> int:
    """Bytes of the largest body that a budget lets be decoded when nothing else is in flight."""
    return (limit + limit // _BEYOND) // 3


def default_budget() -> int:
    """The lesser of 2 GiB and a quarter of the memory this process may use."""
    return min(DEFAULT_MOST, memory_limit() // 4)


def memory_limit() -> int:
    """Bytes of memory this process may use: the machine's, the container's or the shell's limit."""
    limits = [_physical_memory()]
    for path in _CGROUP_LIMITS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append(soft)
    return min(limits)


def _physical_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return DEFAULT_MOST * 4
