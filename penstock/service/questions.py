"""Questions that one engine asks all engines of its service, through the supervisor.

Whichever engine a client asks answers for the whole service: it asks the others with ``Everyone``,
which each hears as ``answer``, and puts the answers together. Answers may be large: they travel as
files in memory, of which the supervisor only passes the descriptors on.
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
from penstock.executors.processes.control import SupervisorClient

_log = logging.getLogger(__name__)

LATE: Final = 1.0
"""Seconds beyond its own time after which a question is answered without those that are missing."""

Answerer: TypeAlias = Callable[..., Any]
"""Gives this engine's answer, something that JSON can say, or an awaitable of it. Takes the
question's arguments."""


class Everyone:
    """Asks all engines. Belongs to the engine's loop.

    Args:
        answerers: this engine's, by the names of the questions.
        supervisor: None where there are no other engines.
    """

    def __init__(
        self, answerers: Mapping[str, Answerer], supervisor: SupervisorClient | None = None
    ) -> None:
        self._answerers = answerers
        self._supervisor = supervisor
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, name: str, *arguments: Any, seconds: float = 0.0) -> list[Any]:
        """The answers of this engine, the first, and of all others that answer in time.

        Args:
            name: of the question.
            arguments: what JSON can say.
            seconds: that each engine needs for its answer.
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
        except (TimeoutError, StartupError):  # the supervisor is gone or busy: our own will do
            return []

    def answer(self, number: int, text: str) -> None:
        """Another engine has asked this; it is answered when there is an answer."""
        task = asyncio.get_running_loop().create_task(self._answer(number, text))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, text: str) -> None:
        name, *arguments = json.loads(text)
        answer = await self._ours(name, arguments)
        assert self._supervisor is not None, "the supervisor has asked"
        try:
            self._supervisor.answer(number, json.dumps(answer))
        except (StartupError, OSError) as error:
            _log.info("a question is not answered: %s", error)


class Questions:
    """The supervisor's part: who has asked, and whose answer is still missing.

    Engines are any hashable things; answers are descriptors, which are closed when nobody wants
    them. Pure but for that and the clock.
    """

    def __init__(self) -> None:
        self._numbers = 0
        self._open: dict[int, _Question] = {}

    @property
    def due(self) -> float | None:
        """When the earliest question is answered with what there is."""
        return min((each.due for each in self._open.values()), default=None)

    def ask(
        self, asker: Any, number: int, seconds: float, others: Iterable[Any], now: float
    ) -> int:
        """An engine asks; under which number the others are to be asked."""
        self._numbers += 1
        self._open[self._numbers] = _Question(asker, number, set(others), now + seconds + LATE)
        return self._numbers

    def take(self, engine: Any, number: int, answer: int) -> None:
        """An engine's answer has come."""
        question = self._open.get(number)
        if question is not None and engine in question.missing:
            question.missing.discard(engine)
            question.answers.append(answer)
        else:
            os.close(answer)

    def forget(self, engine: Any) -> None:
        """An engine has ended: nobody waits for it, and it waits for nothing."""
        for number, each in [*self._open.items()]:
            each.missing.discard(engine)
            if each.asker is engine:
                each.close()
                del self._open[number]

    def ready(self, now: float | None = None) -> list[_Question]:
        """Take out the questions that all have answered, or that are due."""
        now = time.monotonic() if now is None else now
        done = [n for n, each in self._open.items() if not each.missing or each.due <= now]
        return [self._open.pop(number) for number in done]


class _Question:
    """One question.

    Attributes:
        asker: who asks.
        number: by which it knows the question.
        missing: who has not answered.
        due: when it is answered without them.
        answers: descriptors of files.
    """

    def __init__(self, asker: Any, number: int, missing: set[Any], due: float) -> None:
        self.asker = asker
        self.number = number
        self.missing = missing
        self.due = due
        self.answers: list[int] = []

    def close(self) -> None:
        """The answers were passed on, or nobody wants them."""
        while self.answers:
            os.close(self.answers.pop())
