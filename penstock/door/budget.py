"""The budget of bytes in flight: bodies, decoded tensors, and answers that clients have not read.

One budget for all ports. A request that does not fit is refused at once, before its body is read if
the transport allows it.
"""

from __future__ import annotations

import resource
from pathlib import Path

from penstock.errors import ServiceBusy
from penstock.typed.decoded import DecodedBytes

DEFAULT_MOST = 2 << 30
_BEYOND = 10
"""A tenth of the limit may be used above it: by decoders' copies, and by small requests, which are
served even while announced large bodies have reserved everything else."""

_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


class ByteBudget:
    """The bytes in flight and their limit. Owned by one loop.

    Args:
        limit: bytes.
        decoded: pictures that workers decode in this process, which count within the limit.

    Attributes:
        limit: bytes.
        hard_limit: the limit plus the allowed excess.
        to_come: bytes that are reserved, but have not arrived yet.
    """

    def __init__(self, limit: int, decoded: DecodedBytes | None = None) -> None:
        self.limit = limit
        self.decoded = DecodedBytes() if decoded is None else decoded
        self.hard_limit = limit + limit // _BEYOND
        self.used = 0
        self.refused = 0
        self.to_come = 0

    @property
    def arrived(self) -> int:
        """Bytes that have arrived."""
        return self.used - self.to_come

    def reserve(self, count: int) -> None:
        """Reserve ``count`` bytes.

        Raises:
            ServiceBusy: they do not fit; nothing was reserved, a later retry may succeed.
        """
        if self.used + self.decoded.used + count > self.limit:
            raise self.refuse()
        self.used += count

    def refuse(self) -> ServiceBusy:
        """Count a refusal, and raise ServiceBusy."""
        self.refused += 1
        return ServiceBusy("too many bytes in flight; try again later")

    def add(self, count: int) -> None:
        """Add bytes that already exist (an answer), even beyond the limit."""
        self.used += count

    def release(self, count: int) -> None:
        """Release bytes that were reserved or added."""
        self.used -= count
        assert self.used >= 0, "more bytes were released than reserved"


class Reservation:
    """The bytes that one exchange has reserved; ``release`` releases all of them."""

    __slots__ = ("_budget", "taken", "to_come")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.taken = self.to_come = 0

    @property
    def limit(self) -> int:
        """The budget's limit."""
        return self._budget.limit

    def another(self) -> Reservation:
        """Another reservation of the same budget, with a lifetime of its own."""
        return Reservation(self._budget)

    def take(self, count: int) -> None:
        """Reserve more; raises ServiceBusy if it does not fit."""
        self._budget.reserve(count)
        self.taken += count

    def take_small(self, count: int) -> None:
        """Reserve more for a small request, up to the hard limit; raises ServiceBusy beyond it."""
        if not self.try_small(count):
            raise self._budget.refuse()

    def try_small(self, count: int) -> bool:
        """``take_small`` if it fits; returns whether it did."""
        budget = self._budget
        used = budget.used + count
        # ``reserve``, inlined: nearly every request calls this.
        if used + budget.decoded.used > budget.hard_limit:
            return False
        budget.used = used
        self.taken += count
        return True

    def announce(self, size: int, arrived: int = 0) -> None:
        """Reserve an announced body, and its decoded size.

        A request that is admitted here is not refused after its body has been read, as long as no
        body decodes to more than its size, and all large bodies were announced.

        Args:
            size: its bytes; ``arrive`` reports their arrival.
            arrived: the bytes that have arrived, and are already reserved.

        Raises:
            ServiceBusy: they do not fit.
        """
        budget = self._budget
        if size > largest_body(budget.limit):
            raise budget.refuse()
        self._expect(2 * size - arrived)

    def arrive(self, count: int) -> None:
        """Count bytes that have arrived; those that were announced are reserved already."""
        come = min(count, self.to_come)
        self.to_come -= come
        self._budget.to_come -= come

    def decode(self, size: int) -> None:
        """Reserve the decoded size of a body of ``size`` bytes, unless it was reserved before.

        While it is decoded, there are three objects of that size: the body, the result, and the
        decoder's copy. The copy is freed within the same turn, so there is never more than one, and
        it may exceed the limit.

        Raises:
            ServiceBusy: they do not fit.
        """
        if size > self.to_come:
            self._expect(size - self.to_come)
        budget = self._budget
        if budget.arrived + 2 * size > budget.hard_limit:
            raise budget.refuse()

    def decoded(self, size: int, kept: int) -> None:
        """A body of ``size`` bytes was freed, and its decoded value has ``kept`` bytes.

        The rest of the reservation stays, for values computed from it.

        Raises:
            ServiceBusy: the value is larger than the body, and does not fit.
        """
        more = kept - size
        if more > 0:
            if self._budget.used + more > self._budget.hard_limit:
                raise self._budget.refuse()
            self.add(more)
        reserved = self.taken - max(kept, size)
        self._budget.to_come += reserved - self.to_come
        self.to_come = reserved

    def add(self, count: int) -> None:
        """Add bytes that already exist."""
        self._budget.add(count)
        self.taken += count

    def give_back(self, count: int) -> None:
        """Release a part."""
        self._budget.release(count)
        self.taken -= count

    def release(self) -> None:
        """Release everything; the exchange has ended."""
        self._budget.release(self.taken)
        self._budget.to_come -= self.to_come
        self.taken = self.to_come = 0

    def _expect(self, count: int) -> None:
        self.take(count)
        self.to_come += count
        self._budget.to_come += count


def largest_body(limit: int) -> int:
    """The largest body that can be decoded within a budget when nothing else is in flight."""
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
