"""Decisions of the SDK: which variant, which replica, whether again, and whether twice. Pure: time
and chance are arguments.

Sources: brpc's load balancers and backup requests; gRPC's retry design (push-back, and a budget
that is not empty at the start); for sticky keys rendezvous hashing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from penstock.client.errors import CallFailed
from penstock.client.health import State
from penstock.protocols.status import GrpcCode

STRATEGIES: Final = {
    "rr": "round_robin",
    "random": "random",
    "la": "least_requests",
    "c_murmurhash": "sticky",
    "c_md5": "sticky",
    "c_ketama": "sticky",
    **{each: each for each in ("round_robin", "random", "least_requests", "two_choices", "sticky")},
}
"""Values of ``load_balance_strategy``, brpc's names and ours, and what each means here."""

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds between two rounds over all replicas, which double."""

LONGEST_HINT: Final = 20.0
"""Seconds for which a call without a deadline waits at most before a server's hint allows the next
attempt; a longer one is the caller's decision. The usual timeout of a call."""

HEDGE_SHARE: Final = 0.05
"""Backup requests per call, on the average."""

HEDGE_RESERVE: Final = 5.0
"""Backup requests that the first calls may have beyond their share; about as many retries as gRPC
allows a new client. Enough to eject a replica that hangs: see ``health.MOST_FAILURES``."""

_MOST_SAVED: Final = 20.0
"""Backup requests that a quiet time saves up."""


def weighted(weights: Sequence[int], chance: float) -> int:
    """Choose an index by relative weights; ``chance`` is at least 0 and below 1.

    Raises:
        ValueError: no weight is positive, or one is negative.
    """
    total = sum(weights)
    if total <= 0 or min(weights) < 0:
        raise ValueError(f"weights of variants are positive, or 0 for none: got {[*weights]}")
    at = int(chance * total)
    for index, weight in enumerate(weights):
        at -= weight
        if at < 0:
            return index
    raise AssertionError("the chance is below 1")


class Load(NamedTuple):
    """A replica, for the choice of one.

    Attributes:
        name: its address.
        state: its health.
        in_flight: calls of this client that it has not answered.
        last: when it was chosen last; equal replicas take turns.
    """

    name: str
    state: State
    in_flight: int
    last: int


def choose(
    strategy: str,
    replicas: Sequence[Load],
    without: Collection[int],
    *,
    chances: tuple[float, float],
    key: str | None = None,
) -> int | None:
    """Choose the replica for a call.

    Args:
        strategy: a value of ``STRATEGIES``.
        replicas: all of them, in an order that stays.
        without: indices of those that are not asked.
        chances: two numbers, at least 0 and below 1.
        key: for ``sticky``; without one, ``least_requests`` decides.

    Returns:
        An index; None if there is no other replica.
    """
    left = [at for at in range(len(replicas)) if at not in without]
    if not left:
        return None

    def by_load(at: int) -> tuple[int, int, int]:
        return replicas[at].state, replicas[at].in_flight, replicas[at].last

    if strategy == "sticky" and key is not None:
        # A replica that is not yet connected keeps its keys.
        return min(left, key=lambda at: (replicas[at].state == State.OUT, _rank(key, replicas[at])))
    best = min(replicas[at].state for at in left)
    left = [at for at in left if replicas[at].state == best]
    if strategy == "random":
        return left[int(chances[0] * len(left))]
    if strategy == "round_robin":
        return min(left, key=lambda at: replicas[at].last)
    if strategy == "two_choices" and len(left) > 2:
        one = left.pop(int(chances[0] * len(left)))
        left = [one, left[int(chances[1] * len(left))]]
    return min(left, key=by_load)


def _rank(key: str, replica: Load) -> bytes:
    return blake2b(f"{replica.name}\0{key}".encode(errors="replace"), digest_size=8).digest()


class HedgeBudget:
    """How many backup requests are sent: a share of the calls, and a small reserve at the start.

    Args:
        share: of the calls; 0 for no backup requests at all.
    """

    def __init__(self, share: float = HEDGE_SHARE) -> None:
        self._share = share
        self._saved = HEDGE_RESERVE if share > 0 else 0.0

    def called(self) -> None:
        """A call has begun."""
        self._saved = min(self._saved + self._share, _MOST_SAVED)

    def take(self) -> bool:
        """Whether a backup request may be sent now; if so, it is counted."""
        if self._saved < 1 - 1e-9:  # twenty times 0.05 is a little less than 1
            return False
        self._saved -= 1
        return True


class Attempts:
    """Whether a call that has failed is sent again, and when.

    A failure that leaves no doubt that no server has begun the call is always followed by another
    attempt: at a server that was not asked yet at once, else after a pause. Any other failure only
    if the call is declared idempotent, and the failure may pass.

    Args:
        retries: attempts after the first one; servers that cannot be reached do not count until
            all have been tried.
        deadline: monotonic seconds; None for none.
        idempotent: whether the call may run twice.
        rounds: whether a server may be asked again.
    """

    def __init__(
        self, retries: int, deadline: float | None, *, idempotent: bool, rounds: bool = True
    ) -> None:
        self._left = retries
        self._deadline = deadline
        self._idempotent = idempotent
        self._rounds = rounds
        self._pause = FIRST_PAUSE

    def repeatable(self, failed: CallFailed) -> bool:
        """Whether a call with this failure may be sent again at all."""
        if failed.status is GrpcCode.CANCELLED:  # by the caller, or the client was closed
            return False
        not_begun = not failed.sent or failed.retry_after is not None
        return not_begun or (self._idempotent and failed.retryable)

    def pause_after(
        self, failed: CallFailed, now: float, chance: float, *, others: bool
    ) -> float | None:
        """Decide after a failure.

        Args:
            failed: the failure.
            now: monotonic seconds.
            chance: 0 to 1, so that the clients of one server do not all come back at once.
            others: whether there is a replica that the call has not been sent to.

        Returns:
            Seconds until the next attempt, 0 for at once; None if the call has failed.
        """
        if not self.repeatable(failed) or not (others or self._rounds):
            return None
        if failed.sent or not others:
            if self._left <= 0:
                return None
            self._left -= 1
        pause = 0.0
        if not others:
            pause = max(self._pause * (0.8 + 0.4 * chance), failed.retry_after or 0.0)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        latest = now + LONGEST_HINT if self._deadline is None else self._deadline
        if now + pause >= latest:
            return None
        return pause
