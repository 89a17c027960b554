"""The state of one request in the graph: which ops run next, and when the request is answered.

It has no threads, clocks or batches. The engine reports the outcome of each op, and gets the ops
that run next, or the outcome of the request.

Guarantees, in whatever order outcomes arrive:
    - each op runs at most once per attempt, after all of its inputs;
    - each consumer gets a dict of its own; the arrays in it may be shared;
    - after an error no further op runs on that path. An op with several inputs waits for all of
      them even if one failed, and passes on the error of the first one in its list of inputs, so
      that the answer does not depend on timing;
    - a flight ends exactly once; outcomes that arrive later are ignored.

Source: ``docs/compatibility.md`` (joins, errors on the way, jumping ops).
"""

from __future__ import annotations

from typing import TypeAlias

from penstock.errors import NotProvided, OpTimeout, RequestError, ValueLost
from penstock.graph.dag import REQUEST, Plan
from penstock.request import REQUEST_OP_NAME, Feed, Outcome

Put: TypeAlias = tuple[int, dict[str, Feed]]
"""An op's index and its inputs, by predecessor: the engine puts them into that op's queue."""


class _Skipped:
    """Stands for the output of a predecessor that was jumped over."""


_SKIPPED = _Skipped()
_Item: TypeAlias = Feed | RequestError | _Skipped


class _Joins:
    """The state of one attempt in a graph with joins, forks or jumps.

    Attributes:
        waiting: inputs that have arrived for ops that wait for others: op -> {predecessor:
            (sender's name, its dict, error or ``_SKIPPED``)}.
        fired: ops that have all their inputs, or were jumped over.
        failure: an error that reached the end of the graph past ops that did not run.
    """

    __slots__ = ("failure", "fired", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, dict[int, tuple[str, _Item]]] = {}
        self.fired: set[int] = set()
        self.failure: RequestError | None = None


class Flight:
    """One request in the graph. Not thread-safe; belongs to the engine's loop."""

    __slots__ = ("_feed", "_joins", "attempt", "ended", "plan")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.attempt = 1
        self.ended = False
        self._feed: Feed | None = None
        self._joins: _Joins | None = None  # created when needed; most flights have none

    def begin(self, feed: Feed) -> list[Put]:
        """Begin the first attempt; ``feed``, the request's dict, then belongs to the first ops."""
        plan = self.plan
        if plan.attempts > 1:
            self._feed = dict(feed)
        only = plan.only[REQUEST]
        if only is not None:
            return [(only, {REQUEST_OP_NAME: feed})]
        return self._deliver(REQUEST, REQUEST_OP_NAME, feed, plan.entry)

    def arrived(self, op: int, outcome: Outcome) -> list[Put] | Outcome:
        """Process the outcome of an op; each put has one.

        Returns:
            the next puts, maybe none; or the request's outcome.
        """
        if self.ended:
            return []
        plan = self.plan
        error = outcome.error
        if outcome.jump and error is None:
            return self._jump(op, outcome)
        if op == plan.last:
            if error is not None:
                return self._end(outcome)
            self.ended = True
            return outcome
        only = plan.only[op]
        if only is not None and error is None:
            return [(only, {plan.names[op]: outcome.value or {}})]
        item: _Item = error if error is not None else outcome.value or {}
        puts = self._deliver(op, plan.names[op], item, plan.consumers[op])
        return puts if self._joins is None else self._unless_failed(puts)

    def _unless_failed(self, puts: list[Put]) -> list[Put] | Outcome:
        joins = self._joins
        if joins is None or joins.failure is None:
            return puts
        return self._end(Outcome(None, joins.failure))

    def _end(self, outcome: Outcome) -> list[Put] | Outcome:
        """End the flight, or repeat the graph if an op timed out, or a value between ops was lost,
        and attempts are left.
        """
        if isinstance(outcome.error, (OpTimeout, ValueLost)) and self.attempt < self.plan.attempts:
            assert self._feed is not None
            self.attempt += 1
            self._joins = None
            return self._deliver(REQUEST, REQUEST_OP_NAME, dict(self._feed), self.plan.entry)
        self.ended = True
        return outcome

    def _deliver(
        self, sender: int, name: str, item: _Item, consumers: tuple[int, ...]
    ) -> list[Put]:
        """Give one op's output to these consumers, as the input from ``sender``."""
        last = len(consumers) - 1
        joins = self._joins = self._joins or _Joins()
        puts: list[Put] = []
        for position, consumer in enumerate(consumers):
            mine = dict(item) if isinstance(item, dict) and position < last else item
            self._receive(joins, consumer, sender, name, mine, puts)
        return puts

    def _receive(
        self, joins: _Joins, op: int, slot: int, name: str, item: _Item, puts: list[Put]
    ) -> None:
        """Give one input to one op; errors and skips are passed on to its consumers."""
        plan = self.plan
        # A list of deliveries, not a recursion: graphs may be longer than Python's stack.
        deliveries = [(op, slot, name, item)]
        while deliveries:
            op, slot, name, item = deliveries.pop()
            inputs = self._join(joins, op, slot, name, item)
            if isinstance(inputs, dict):
                puts.append((op, inputs))
            elif inputs is not None and op == plan.last:
                joins.failure = (
                    inputs
                    if isinstance(inputs, RequestError)
                    else NotProvided("every op that feeds the reply was jumped over")
                )
            elif inputs is not None:
                deliveries += [(c, op, plan.names[op], inputs) for c in plan.consumers[op]]

    def _join(
        self, joins: _Joins, op: int, slot: int, name: str, item: _Item
    ) -> dict[str, Feed] | RequestError | _Skipped | None:
        """The op's inputs once all are there, or the error or skip to pass on; None before."""
        if op in joins.fired:
            return None
        slots = self.plan.inputs[op]
        waiting = joins.waiting.setdefault(op, {})
        waiting.setdefault(slot, (name, item))
        first_wins = self.plan.first_arrival and not isinstance(item, _Skipped)
        if len(waiting) < len(slots) and not first_wins:
            return None
        del joins.waiting[op]
        joins.fired.add(op)
        inputs: dict[str, Feed] = {}
        error: RequestError | None = None
        for sender, got in (waiting[producer] for producer in slots if producer in waiting):
            if isinstance(got, RequestError):
                error = error or got
            elif not isinstance(got, _Skipped):
                inputs[sender] = got
        return error or inputs or _SKIPPED

    def _jump(self, op: int, outcome: Outcome) -> list[Put] | Outcome:
        """The op's result replaces the results of its targets; the ops in between are skipped."""
        plan = self.plan
        joins = self._joins = self._joins or _Joins()
        targets = [target for target in plan.jump_to[op] if target not in joins.fired]
        joins.fired.update(targets)
        if plan.last in targets:
            return self._end(Outcome(outcome.value))
        name = plan.names[op]
        puts: list[Put] = []
        for target in targets:
            for consumer in plan.consumers[target]:
                self._receive(joins, consumer, target, name, dict(outcome.value or {}), puts)
        for consumer in plan.consumers[op]:
            self._receive(joins, consumer, op, name, _SKIPPED, puts)
        return self._unless_failed(puts)
