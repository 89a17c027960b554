"""Queries from one engine to all engines of its service, through the supervisor.

The engine that gets a client's request answers for the whole service: it queries the others with
``AllEngines``, each calls ``answer``, and it joins the answers, which the supervisor passes on
without decoding them.

Reports are kept: the supervisor has the latest one of each engine, which counts while that engine
is too busy to answer. Those of ended engines are added up, so that the counters of a service never
decrease. The points of their history are kept as well, those of the last minutes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from inspect import isawaitable
from typing import Any, Final, TypeAlias

import orjson

from penstock.errors import StartupError
from penstock.observe.history import MOST_BYTES, POINTS
from penstock.observe.reports import Report, with_ended
from penstock.supervisor.client import SupervisorClient
from penstock.supervisor.messages import Answer, Answers, Ask

_log = logging.getLogger(__name__)

LATE: Final = 1.0
"""Extra seconds after which a query is answered without the missing answers."""

REPORT: Final = "report"
"""The query for reports."""

_MOST_PAST: Final = 4 * POINTS
"""Points of ended engines."""

_Point: TypeAlias = tuple[int, bytes]
"""A point's number, and the point in JSON."""

Answerer: TypeAlias = Callable[..., Any]
"""Returns this engine's answer, a JSON value, or an awaitable of it. Takes the query's
arguments."""


class AllEngines:
    """Queries all engines. Belongs to the engine's loop.

    Args:
        answerers: this engine's answerers, by query name; among them ``REPORT``.
        supervisor: None if there are no other engines.
    """

    def __init__(
        self, answerers: Mapping[str, Answerer], supervisor: SupervisorClient | None = None
    ) -> None:
        self._answerers = answerers
        self._supervisor = supervisor
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, name: str, *arguments: Any, seconds: float = 0.0) -> list[Any]:
        """The answers of this engine (the first) and of all others that answer in time.

        Args:
            name: name of the query.
            arguments: JSON values.
            seconds: time of each engine for its answer.
        """
        if self._supervisor is None:
            return [await self._ours(name, arguments)]
        others = self._others(self._supervisor, json.dumps([name, *arguments]), seconds)
        ours, answers = await asyncio.gather(self._ours(name, arguments), others)
        return [ours, *answers]

    async def reports(self, *, sketches: bool = False) -> list[Report]:
        """The reports of all engines: of those that do not answer in time the last one; and one
        with the counters of ended engines, if there are any.

        Args:
            sketches: whether they have the sketches of durations, which are most of their bytes;
                those of engines that do not answer, or were killed, may have none.

        Raises:
            TimeoutError, StartupError: the supervisor is busy, or gone.
        """
        if self._supervisor is None:
            return [self.own_report(sketches=sketches)]
        self.send_report(sketches=sketches)
        async with asyncio.timeout(2 * LATE):
            return await self._supervisor.ask(json.dumps([REPORT, sketches]), kept=True)

    def own_report(self, *, sketches: bool = True) -> Report:
        """This engine's report."""
        report: Report = self._answerers[REPORT](sketches)
        return report

    def send_report(self, *, sketches: bool = True) -> None:
        """Send this engine's report to the supervisor, if there is one, which keeps it.

        Raises:
            StartupError: the supervisor is gone.
        """
        if self._supervisor is not None:
            self._supervisor.answer(0, self.own_report(sketches=sketches), kept=True)

    def keep(self, number: int, point: Any) -> None:
        """Let the supervisor, if there is one, keep a numbered point of this engine's history, a
        JSON value.

        Raises:
            StartupError: the supervisor is gone.
        """
        if self._supervisor is not None:
            self._supervisor.keep(number, orjson.dumps([number, point]))

    async def past(self, after: int) -> bytes:
        """The points of ended engines whose numbers are larger, as a JSON array; none if the
        supervisor is busy.
        """
        if self._supervisor is not None:
            with suppress(TimeoutError, StartupError):
                async with asyncio.timeout(2 * LATE):
                    return await self._supervisor.past(after)
        return b"[]"

    async def _ours(self, name: str, arguments: Sequence[Any]) -> Any:
        answer = self._answerers[name](*arguments)
        return await answer if isawaitable(answer) else answer

    @staticmethod
    async def _others(supervisor: SupervisorClient, query: str, seconds: float) -> list[Any]:
        try:
            async with asyncio.timeout(seconds + 2 * LATE):
                return await supervisor.ask(query, seconds)
        except (TimeoutError, StartupError):  # the supervisor is gone or busy: use only our own
            return []

    def answer(self, number: int, query: str) -> None:
        """Answer another engine's query, when the answer is ready."""
        task = asyncio.get_running_loop().create_task(self._answer(number, query))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, query: str) -> None:
        name, *arguments = json.loads(query)
        answer = await self._ours(name, arguments)
        assert self._supervisor is not None, "the query came from it"
        try:
            self._supervisor.answer(number, answer, kept=name == REPORT)
        except StartupError as error:
            _log.info("a query was not answered: %s", error)


class Queries:
    """The supervisor's part: open queries, their answers, and the kept answers.

    Engines are any hashable objects. Pure; time is an argument.
    """

    def __init__(self) -> None:
        self._numbers = 0
        self._open: dict[int, _Query] = {}
        self._kept: dict[Any, bytes] = {}  # the latest of each running engine
        self._ended: Report | None = None  # the counters of the ended ones
        self._points: dict[Any, deque[_Point]] = {}  # of the history of each running engine
        self._past: deque[_Point] = deque()  # of those of the ended ones

    @property
    def due(self) -> float | None:
        """When the earliest query times out."""
        return min((each.due for each in self._open.values()), default=None)

    def ask(self, asker: Any, ask: Ask, others: Iterable[Any], now: float) -> int:
        """Open a query of an engine; returns its number for the other engines."""
        self._numbers += 1
        due = now + ask.seconds + LATE
        self._open[self._numbers] = _Query(asker, ask.number, set(others), due, kept=ask.kept)
        return self._numbers

    def take(self, engine: Any, answer: Answer) -> None:
        """Store an engine's answer."""
        query = self._open.get(answer.number)
        if answer.kept:
            self._kept[engine] = answer.answer
        elif query is not None and engine in query.missing:
            query.answers.append(answer.answer)
        if query is not None:
            query.missing.discard(engine)

    def keep(self, engine: Any, number: int, point: bytes) -> None:
        """Store the newest point of an engine's history; those of ended engines that are too old
        beside it are dropped.
        """
        points = self._points.setdefault(engine, deque())
        points.append((number, point))
        _trim(points, POINTS)
        self._past = deque(each for each in self._past if each[0] > number - POINTS)

    def past(self, after: int) -> bytes:
        """The latest points of the engines that have ended, those with larger numbers, as a JSON
        array.
        """
        return b"[%s]" % b",".join(point for number, point in self._past if number > after)

    def forget(self, engine: Any) -> None:
        """Remove an engine that has ended, as asker and as answerer."""
        self._open = {n: each for n, each in self._open.items() if each.asker is not engine}
        for each in self._open.values():
            each.missing.discard(engine)
        self._past += self._points.pop(engine, ())
        _trim(self._past, _MOST_PAST)
        last = self._kept.pop(engine, None)
        self._ended = with_ended(self._ended, None if last is None else json.loads(last))

    def ready(self, now: float) -> list[tuple[Any, Answers]]:
        """Remove the queries that are complete or have timed out. Returns the asker of each, and
        the answers for it.
        """
        done = [n for n, each in self._open.items() if not each.missing or each.due <= now]
        return [(each.asker, self._answers(each)) for each in map(self._open.pop, done)]

    def _answers(self, query: _Query) -> Answers:
        found = query.answers
        if query.kept:
            ended = [] if self._ended is None else [json.dumps(self._ended).encode()]
            found = [*self._kept.values(), *ended]
        return Answers(query.number, b"[%s]" % b",".join(found))


def _trim(points: deque[_Point], most: int) -> None:
    """Drop the oldest beyond a number, or beyond a size."""
    size = sum(len(point) for _, point in points)
    while len(points) > most or size > MOST_BYTES:
        size -= len(points.popleft()[1])


class _Query:
    """One query.

    Attributes:
        asker: the asking engine.
        number: the asker's number of the query.
        missing: engines that have not answered.
        due: its timeout.
        kept: whether it is for the kept answers.
        answers: the others.
    """

    def __init__(
        self, asker: Any, number: int, missing: set[Any], due: float, *, kept: bool
    ) -> None:
        self.asker = asker
        self.number = number
        self.missing = missing
        self.due = due
        self.kept = kept
        self.answers: list[bytes] = []
