"""One call over the replicas of a variant: balanced, repeated, and sent twice if it is late.

Use on the loop's thread only. The decisions are in ``routing``.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from penstock.client.balancer import Endpoints
from penstock.client.call import Call, Outcome, failure
from penstock.client.endpoints import Endpoint
from penstock.client.errors import CallFailed
from penstock.client.health import State
from penstock.client.names import AGAIN, changes, lookup
from penstock.client.outliers import Ejected, Outliers, Verdict, verdict_of
from penstock.client.routing import Attempts, HedgeBudget, Load, choose
from penstock.errors import ServiceBusy
from penstock.protocols.status import GrpcCode, status_of

if TYPE_CHECKING:
    from penstock.client.trace import TraceLog


_log = logging.getLogger(__name__)

_LARGE: Final = 16 << 10
"""Bytes of a request that is not kept once its call has ended."""


class Ended(NamedTuple):
    """How a call has ended.

    Attributes:
        value: the decoded reply, or the error.
        replica: the address that answered; the last one that was asked, if the call has failed.
        attempts: how often it was sent.
    """

    value: Any
    replica: str
    attempts: int


OnEnd: TypeAlias = Callable[[Ended], object]


class Replicas:
    """Equal servers, such as those of one variant, on one loop.

    Args:
        endpoints: calls them.
        loop: their loop.
        strategy: a value of ``routing.STRATEGIES``.
        budget: of backup requests.
        named: those that are names of several servers, by their indices.
        logs_rows: whether ejections because of failures in a row are logged; otherwise the
            endpoints' own ``on_health`` tells of them.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        loop: asyncio.AbstractEventLoop,
        strategy: str,
        budget: HedgeBudget,
        named: Mapping[int, Endpoint] | None = None,
        *,
        logs_rows: bool = True,
    ) -> None:
        self.endpoints = endpoints
        self.loop = loop
        self.names = endpoints.names
        self.in_flight = [0] * len(self.names)
        self.active: set[RoutedCall] = set()
        self.budget = budget
        self.outliers = Outliers(len(self.names))
        self.gone: set[int] = set()
        self._logs_rows = logs_rows
        self._strategy = strategy
        # When each was chosen last, by the count of choices: those for calls, and those for their
        # repetitions, which would otherwise take turns of calls.
        self._last: tuple[list[int], list[int]] = ([0] * len(self.names), [0] * len(self.names))
        self._count = 0
        self._named = dict(named or {})
        self._at: dict[tuple[int, str], int] = {}
        self._next_lookup = 0.0
        self._looking: asyncio.Task[None] | None = None
        endpoints.on_close = self.cancel

    def choose(
        self, without: Collection[int], key: str | None, now: float, *, again: bool
    ) -> int | None:
        """Choose a replica for a call, or for sending it again; None if there is no other.

        It counts as chosen once it is ``taken``.
        """
        if self._named and now >= self._next_lookup and self._looking is None:
            self._looking = self.endpoints.run(self._look_up())
        if len(self.names) == 1:
            return None if 0 in without else 0
        if self.gone:
            without = {*without, *self.gone}
        states = [
            State.OUT if self.outliers.is_out(at, now) else state
            for at, state in enumerate(self.endpoints.states(now))
        ]
        every = zip(self.names, states, self.in_flight, self._last[again], strict=True)
        loads = [Load(*each) for each in every]
        return choose(self._strategy, loads, without, chances=(_chance(), _chance()), key=key)

    def taken(self, at: int, now: float, *, again: bool) -> None:
        """A call is sent to a replica, or sent again."""
        self._count += 1
        self._last[again][at] = self._count
        self.in_flight[at] += 1
        self.outliers.chosen(at, now)

    def all_out(self, without: Collection[int], now: float) -> bool:
        """Whether all replicas for a call are out because of failed calls."""
        out = self.outliers.is_out
        unused = {*without, *self.gone}
        return all(at in unused or out(at, now) for at in range(len(self.names)))

    def report(self, ejected: Ejected) -> None:
        """Log that a replica is tried last now."""
        name, share = self.names[ejected.replica], ejected.share
        if share is not None:
            _log.warning(
                "%s is tried last for a while: %.0f %% of its calls fail, more than of the others'",
                name,
                100 * share,
            )
        elif self._logs_rows and len(self.names) - len(self.gone) > 1:
            _log.warning("%s is tried last for a while: its last calls have failed", name)

    def cancel(self) -> None:
        """End all calls: the client is closed."""
        for each in list(self.active):
            each.cancel(failure(GrpcCode.CANCELLED, "the client was closed"))

    def left(self, at: int) -> None:
        """A call to a replica has ended."""
        self.in_flight[at] -= 1
        if at in self.gone and not self.in_flight[at]:
            self.endpoints.retire(at)

    async def _look_up(self) -> None:
        """Look the names up, and follow what has changed. If that fails, all stays as it is."""
        try:
            for entry, endpoint in self._named.items():
                try:
                    async with asyncio.timeout(AGAIN):
                        found = await lookup(self.loop, endpoint.host, endpoint.port)
                except (OSError, UnicodeError):
                    continue
                if found:
                    self._follow(entry, endpoint, found)
        finally:
            self._looking = None
            self._next_lookup = time.monotonic() + AGAIN

    def _follow(self, entry: int, named: Endpoint, found: Sequence[str]) -> None:
        before = [address for of, address in self._at if of == entry]
        come, gone = changes(before, found)
        for address in come:
            at = next((at for at in self.gone if not self.in_flight[at]), len(self.names))
            self.endpoints.put(at, Endpoint(host=address, port=named.port), named)
            self.outliers.put(at)
            for counts in (self.in_flight, *self._last):
                counts[at : at + 1] = [0]
            self.gone.discard(at)
            self._at[entry, address] = at
        left = [self._at.pop((entry, address)) for address in gone]
        if not before:
            left.append(entry)  # the name itself, for the calls before it was looked up
        for at in left:
            self.gone.add(at)
            if not self.in_flight[at]:
                self.endpoints.retire(at)


@dataclass(slots=True, kw_only=True)  # not frozen, which would make it three times slower
class Sent:
    """What a call sends. Not changed once the call has begun.

    Attributes:
        frame: the message, framed.
        method: the path of the method.
        fields: a header block of further fields.
        deadline: monotonic seconds; None for none.
        decode: decodes the reply; raises RequestError or CallFailed.
        key: for a strategy that is sticky.
        without: indices of replicas that it is not for.
        hedge_after: seconds after which it is sent to another replica as well; None for never.
        log: of a debug call; None for others.
    """

    frame: bytes
    method: str
    fields: bytes
    deadline: float | None
    decode: Callable[[bytes], Any]
    key: str | None = None
    without: frozenset[int] = frozenset()
    hedge_after: float | None = None
    log: TraceLog | None = None


class _Attempt(NamedTuple):
    """An attempt in flight.

    Attributes:
        at: its replica.
        number: its number in the call.
        logged: its number in the log of a debug call.
        last_resort: all replicas were out because of failed calls.
    """

    at: int
    number: int
    logged: int
    last_resort: bool


class RoutedCall:
    """One call; ``start`` it on the loop's thread.

    Args:
        replicas: those of the chosen variant.
        sent: what is sent.
        attempts: decides about repetitions.
        on_end: called once.
    """

    __slots__ = (
        "_answered",
        "_attempts",
        "_count",
        "_ended",
        "_last",
        "_on_end",
        "_open",
        "_replicas",
        "_sent",
        "_timers",
        "_told",
        "_tried",
    )

    def __init__(self, replicas: Replicas, sent: Sent, attempts: Attempts, on_end: OnEnd) -> None:
        self._replicas = replicas
        self._sent = sent
        self._attempts = attempts
        self._on_end: OnEnd | None = on_end
        self._count = 0
        self._last = ""
        self._tried: set[int] = set()
        self._open: dict[Call, _Attempt] = {}
        self._timers: list[asyncio.TimerHandle] = []
        self._ended = False
        self._told: tuple[Exception, str] | None = None  # the last error of a server
        self._answered = 0  # the number of the attempt that was answered

    def start(self) -> None:
        """Send it to the first replica."""
        if self._ended:  # cancelled before
            return
        replicas = self._replicas
        replicas.active.add(self)
        replicas.budget.called()
        after = self._sent.hedge_after
        if after is not None:
            without = self._sent.without | replicas.gone
            if len(replicas.names) - len(without) > 1:
                self._timers.append(replicas.loop.call_later(after, self._hedge))
        self._send()

    def cancel(self, failed: CallFailed) -> None:
        """End it; servers are told."""
        if not self._ended:
            self._finish(failed, self._last)

    def _send(self) -> None:
        if self._ended:
            return
        now = time.monotonic()
        at = self._other(now)
        if at is None:  # all were asked: from the beginning
            self._tried.clear()
            at = self._other(now)
            assert at is not None, "a variant has replicas for every call"
        self._send_to(at, now)

    def _hedge(self) -> None:
        if self._ended or not self._open:
            return
        now = time.monotonic()
        at = self._other(now)
        if at is not None and self._replicas.budget.take():
            self._send_to(at, now)

    def _other(self, now: float) -> int | None:
        """A replica that was not asked."""
        sent = self._sent
        without = self._tried | sent.without if self._tried else sent.without
        return self._replicas.choose(without, sent.key, now, again=self._count > 0)

    def _send_to(self, at: int, now: float) -> None:
        replicas, sent = self._replicas, self._sent
        call = Call(
            sent.frame,
            sent.deadline,
            lambda outcome: self._outcome(call, outcome),
            sent.method,
            sent.fields,
        )
        logged = 0
        if sent.log is not None:
            logged = sent.log.sent(replicas.names[at])
            call.on_head = partial(sent.log.head, logged)
        self._tried.add(at)
        last_resort = replicas.outliers.is_out(at, now) and replicas.all_out(sent.without, now)
        replicas.taken(at, now, again=self._count > 0)
        self._count += 1
        self._open[call] = _Attempt(at, self._count, logged, last_resort)
        self._last = replicas.names[at]
        replicas.endpoints.send(call, at, now)

    def _outcome(self, call: Call, outcome: Outcome) -> None:
        attempt = self._open.pop(call)
        replicas = self._replicas
        name = replicas.names[attempt.at]
        replicas.left(attempt.at)
        value: Any = None
        error: Exception | None = None
        if isinstance(outcome, CallFailed):
            error = outcome
        elif not self._ended:
            try:
                value = self._sent.decode(outcome)
            except CallFailed as garbage:
                error = garbage.at(name)
            except Exception as found:  # noqa: BLE001 (the caller gets it)
                error = found
        log = self._sent.log
        if log is not None:
            reply = outcome if isinstance(outcome, bytes) else None
            log.ended(attempt.logged, error or "ok", reply)
        verdict = Verdict.GOOD
        if self._ended:
            verdict = Verdict.LATE if attempt.number < self._answered else Verdict.NOTHING
        elif error is not None:
            failed = _failure(error)
            verdict = Verdict.GOOD if failed is None else verdict_of(failed)
        ejected = replicas.outliers.ended(attempt.at, verdict, time.monotonic(), _chance())
        if ejected is not None:
            replicas.report(ejected)
        if self._ended:
            return
        if error is None:
            self._answered = attempt.number
            self._finish(value, name)
        else:
            self._failed(error, name, last_resort=attempt.last_resort)

    def _failed(self, error: Exception, replica: str, *, last_resort: bool) -> None:
        failed = _failure(error)
        if failed is None:
            self._finish(error, replica)
            return
        if self._open and self._attempts.repeatable(failed):
            return  # the other one may succeed
        if last_resort and failed.sent and failed.retry_after is None:
            self._finish(error, replica)  # repetitions would multiply the load of an outage
            return
        replicas = self._replicas
        asked = self._tried | self._sent.without | replicas.gone
        others = any(at not in asked for at in range(len(replicas.names)))
        pause = self._attempts.pause_after(failed, time.monotonic(), _chance(), others=others)
        if failed.sent:
            self._told = error, replica
        if pause is None:
            # What a server has said tells more than that another could not be reached.
            self._finish(*(self._told or (error, replica)))
        else:
            self._timers.append(self._replicas.loop.call_later(pause, self._send))

    def _finish(self, value: Any, replica: str) -> None:
        self._ended = True
        self._replicas.active.discard(self)
        for timer in self._timers:
            timer.cancel()
        for call in list(self._open):
            call.abandon(failure(GrpcCode.CANCELLED, "another replica has answered"))
        if len(self._sent.frame) > _LARGE:  # a future may be kept for long
            self._sent = replace(self._sent, frame=b"")
        on_end, self._on_end = self._on_end, None  # which may be of a future with this call
        assert on_end is not None, "a call ends once"
        on_end(Ended(value, replica, self._count))


def _failure(error: Exception) -> CallFailed | None:
    """The failure that an error is; None if another server would answer the same."""
    if isinstance(error, ServiceBusy):  # an op may have run, which such a reply does not say
        return CallFailed(status_of(error).grpc, str(error), retryable=True)
    return error if isinstance(error, CallFailed) else None


def _chance() -> float:
    return random.random()  # noqa: S311 (not for cryptography)
