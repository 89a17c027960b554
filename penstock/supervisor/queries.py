"""Queries from one engine to all engines of its service, through the supervisor.

The engine that gets a client's request answers for the whole service: it queries the others with
``AllEngines``, each calls ``answer``, and it joins the answers. Answers may be large: they are sent
as memfds, of which the supervisor passes on the descriptors.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Final, TypeAlias

from penstock.errors import StartupError
from penstock.observe.reports import Report, added, counted, packed, total, unpacked
from penstock.supervisor.client import SupervisorClient

_log = logging.getLogger(__name__)

LATE: Final = 1.0
"""Extra seconds after which a query is answered without the missing answers."""

Answerer: TypeAlias = Callable[..., Any]
"""Returns this engine's answer, a JSON value, or an awaitable of it. Takes the query's
arguments."""


class AllEngines:
    """Queries all engines. Belongs to the engine's loop.

    Args:
        answerers: this engine's answerers, by query name.
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
        ours, texts = await asyncio.gather(self._ours(name, arguments), others)
        return [ours, *map(json.loads, texts)]

    async def _ours(self, name: str, arguments: Sequence[Any]) -> Any:
        answer = self._answerers[name](*arguments)
        return await answer if isawaitable(answer) else answer

    @staticmethod
    async def _others(supervisor: SupervisorClient, question: str, seconds: float) -> list[str]:
        try:
            async with asyncio.timeout(seconds + 2 * LATE):
                return await supervisor.ask_others(question, seconds)
        except (TimeoutError, StartupError):  # the supervisor is gone or busy: use only our own
            return []

    def answer(self, number: int, text: str) -> None:
        """Answer another engine's query, when the answer is ready."""
        task = asyncio.get_running_loop().create_task(self._answer(number, text))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, text: str) -> None:
        name, *arguments = json.loads(text)
        answer = await self._ours(name, arguments)
        assert self._supervisor is not None, "the query came from it"
        try:
            self._supervisor.answer(number, json.dumps(answer))
        except (StartupError, OSError) as error:
            _log.info("a query was not answered: %s", error)


class Queries:
    """The supervisor's part: open queries, and missing answers.

    Engines are any hashable objects; answers are descriptors, which are closed when they are not
    needed. Otherwise pure; time is an argument.
    """

    def __init__(self) -> None:
        self._numbers = 0
        self._open: dict[int, _Question] = {}

    @property
    def due(self) -> float | None:
        """When the earliest query times out."""
        return min((each.due for each in self._open.values()), default=None)

    def ask(
        self, asker: Any, number: int, seconds: float, others: Iterable[Any], now: float
    ) -> int:
        """Open a query of an engine; returns its number for the other engines."""
        self._numbers += 1
        self._open[self._numbers] = _Question(asker, number, set(others), now + seconds + LATE)
        return self._numbers

    def take(self, engine: Any, number: int, answer: int) -> None:
        """Store an engine's answer."""
        question = self._open.get(number)
        if question is not None and engine in question.missing:
            question.missing.discard(engine)
            question.answers.append(answer)
        else:
            os.close(answer)

    def forget(self, engine: Any) -> None:
        """Remove an engine that has ended, as asker and as answerer."""
        for number, each in [*self._open.items()]:
            each.missing.discard(engine)
            if each.asker is engine:
                each.close()
                del self._open[number]

    def ready(self, now: float | None = None) -> list[_Question]:
        """Remove and return the queries that are complete or have timed out."""
        now = time.monotonic() if now is None else now
        done = [n for n, each in self._open.items() if not each.missing or each.due <= now]
        return [self._open.pop(number) for number in done]


class _Question:
    """One query.

    Attributes:
        asker: the asking engine.
        number: the asker's number of the query.
        missing: engines that have not answered.
        due: its timeout.
        answers: descriptors of files.
    """

    def __init__(self, asker: Any, number: int, missing: set[Any], due: float) -> None:
        self.asker = asker
        self.number = number
        self.missing = missing
        self.due = due
        self.answers: list[int] = []

    def close(self) -> None:
        """Close the answers, which were passed on or are not needed."""
        while self.answers:
            os.close(self.answers.pop())


SUM_TIMEOUT: Final = 1.0
"""Seconds that the supervisor waits for the engines' reports."""


class Sums:
    """The supervisor's part: open requests for a sum, and missing reports.

    Engines are any hashable objects. Pure; time is an argument.
    """

    def __init__(self) -> None:
        self._numbers = 0
        self._open: dict[int, _Sum] = {}
        self._latest: dict[Any, str] = {}  # of running engines
        self._ended: list[Report] = []  # one report, the sum of all ended engines

    @property
    def due(self) -> float | None:
        """When the earliest request times out."""
        return min((each.due for each in self._open.values()), default=None)

    def want(self, asker: Any, number: int, text: str, others: Iterable[Any], now: float) -> int:
        """Open a request of an engine, with its own report; returns its number for the other
        engines.
        """
        self._numbers += 1
        self._latest[asker] = text
        self._open[self._numbers] = _Sum(asker, number, set(others), now + SUM_TIMEOUT)
        return self._numbers

    def take(self, engine: Any, number: int, text: str) -> None:
        """Store an engine's report, requested or not."""
        self._latest[engine] = text
        if number in self._open:
            self._open[number].missing.discard(engine)

    def forget(self, engine: Any) -> None:
        """Remove an engine that has ended, from all requests."""
        self._open = {n: each for n, each in self._open.items() if each.asker is not engine}
        for each in self._open.values():
            each.missing.discard(engine)
        self._ended.append({"engines_ended": 1})
        if engine in self._latest:
            self._ended.append(counted(unpacked(self._latest.pop(engine))))
        self._ended = [added(self._ended)]

    def ready(self, now: float | None = None) -> list[tuple[Any, int, str]]:
        """Remove and return the requests that are complete or have timed out: asker, number, text
        of the sum.
        """
        now = time.monotonic() if now is None else now
        done = [n for n, each in self._open.items() if not each.missing or each.due <= now]
        if not done:
            return []
        summed = packed(total([*map(unpacked, self._latest.values())], self._ended))
        return [(each.asker, each.number, summed) for each in map(self._open.pop, done)]


class _Sum:
    def __init__(self, asker: Any, number: int, missing: set[Any], due: float) -> None:
        self.asker = asker
        self.number = number
        self.missing = missing
        self.due = due
