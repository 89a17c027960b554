"""Runs example requests through the engine: before the service is ready, which warms it up, and in
``GET /health/deep``.

At most one check runs at a time, shared by concurrent callers, with one request in the engine at a
time: it uses no more capacity than one caller.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

import orjson

from penstock.api.application import Example, HasExamples
from penstock.api.descriptions import errors
from penstock.api.errors import error_reply, failed, refusal
from penstock.api.http import JSON, Http, HttpCall
from penstock.api.operation import Answer
from penstock.engine.engine import Engine
from penstock.engine.graph import GraphState, ServedGraph
from penstock.engine.submission import Submission
from penstock.errors import DeadlineExceeded, RequestError, ServiceBusy, StartupError
from penstock.executors.executor import Executor
from penstock.executors.local import CoroutineExecutor
from penstock.protocols import media
from penstock.protocols.heads import Headers
from penstock.request import Outcome

LIMIT: Final = 10.0
"""Seconds for a check of all examples: most probes wait no longer."""
_CLOSE: Final = 1e-6
"""Relative tolerance of equal numbers: models sum in any order."""
_HEADERS: Final[Headers] = (JSON, (b"cache-control", b"no-store"))

_REPORT: Final = {
    "title": "DeepHealth",
    "type": "object",
    "required": ["ok", "checked"],
    "properties": {
        "ok": {"type": "boolean", "description": "No example has failed."},
        "checked": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["route", "example", "state", "seconds"],
                "properties": {
                    "route": {"type": "string"},
                    "version": {
                        "type": "string",
                        "description": "Of the model, if several versions serve.",
                    },
                    "example": {
                        "type": "integer",
                        "description": "Its number within its route, from 1 on.",
                    },
                    "state": {
                        "enum": ["ok", "failed", "busy"],
                        "description": "`busy`: not run, because the service is at capacity.",
                    },
                    "seconds": {"type": "number"},
                    "error": {"type": "string", "description": "As in an answer to a caller."},
                    "message": {"type": "string"},
                    "id": {"type": "string"},
                },
            },
        },
    },
}


class WrongAnswer(Exception):
    """An example's answer differs from the expected one."""


class Examples:
    """The examples of a service's routes. An application; belongs to the engine's loop.

    Args:
        engine: answers requests.
        applications: those of the service, some of which have examples.
    """

    def __init__(self, engine: Engine, applications: Iterable[Any]) -> None:
        self._engine = engine
        self._examples = [
            example
            for each in applications
            if isinstance(each, HasExamples)
            for example in each.example_requests()
        ]
        self._check: asyncio.Task[list[dict[str, Any]]] | None = None

    def routes(self) -> Iterator[Http]:
        """What to serve."""
        contents = {media.JSON: _REPORT}
        yield Http(
            "GET",
            "/health/deep",
            self._deep,
            failed=failed,
            refusal=refusal,
            always=True,
            admin=True,
            summary="Run every route's examples.",
            description=f"Takes {LIMIT:.0f} seconds at most. One check runs at a time.",
            group="Operation",
            answers={
                **errors(415),
                200: Answer(text="No example has failed.", contents=contents),
                503: Answer(text="An example has failed.", contents=contents),
            },
        )

    async def warm_up(self, graph: ServedGraph) -> None:
        """Run each example of a graph, which may be aside, as many times at once as an op of it has
        workers (the maximum; coroutines, which share a loop, count as one).

        Skips graphs with external workers while none is connected. Takes no room of callers'
        requests.

        Raises:
            StartupError: an example fails, or has another answer than expected.
        """
        for example in self._examples:
            if example.graph != graph.name:
                continue
            workers = [_parallel(stage.executor) for stage in graph.stages]
            runs = [
                asyncio.ensure_future(self._run(example, graph, graph.time_limit, beside=True))
                for _ in range(max(workers) if all(workers) else 0)
            ]
            try:
                await asyncio.gather(*runs)
            except (RequestError, WrongAnswer) as error:
                raise StartupError(
                    f"route {example.path}: example {example.number} fails: {error}"
                ) from error
            finally:
                for each in runs:
                    each.cancel()
                await asyncio.gather(*runs, return_exceptions=True)

    def _versions(self, example: Example) -> list[ServedGraph]:
        """The serving versions of an example's graph, the default first."""
        default = self._engine.graph(example.graph)
        others = [
            each
            for each in self._engine.graphs
            if each is not default
            and each.state is GraphState.SERVING
            and each.name == example.graph
        ]
        return [*([] if default is None else [default]), *others]

    async def _run(
        self,
        example: Example,
        graph: ServedGraph,
        timeout: float,
        log_id: int | None = None,
        *,
        beside: bool = False,
    ) -> None:
        """Run one example in a graph; ``beside`` the engine's ``max_requests``, or within it.

        Raises:
            RequestError: it fails.
            WrongAnswer: its answer differs from the expected one.
        """
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        log_id = random.getrandbits(63) if log_id is None else log_id
        submission = example.submission(graph, timeout, log_id)
        submission.asked = graph.version
        if beside:
            self._engine.add_room(submission)
        submission.start(partial(_keep, future))
        try:
            outcome = await future
        except asyncio.CancelledError:
            submission.cancel()
            raise
        if outcome.error is not None:
            raise outcome.error
        value = outcome.value
        assert value is not None
        answer, kind = example.answer(submission, value)
        if example.wanted is None:
            return
        structured = media.is_json(kind) or media.is_msgpack(kind)
        found = media.decode(answer, kind) if structured else answer.decode(errors="replace")
        if not same(found, example.wanted):
            raise WrongAnswer(
                f"{_brief(example.wanted)} is expected, the answer is {_brief(found)}"
            )

    def _deep(self, call: HttpCall, _body: bytes) -> None:
        call.aside(self._answer(call))

    async def _answer(self, call: HttpCall) -> None:
        if self._check is None:
            self._check = asyncio.create_task(self._check_all())
        try:
            async with asyncio.timeout(call.timeout):
                checked = await asyncio.shield(self._check)
        except TimeoutError:
            call.send(
                error_reply(
                    DeadlineExceeded(
                        "the check took longer than the caller's timeout", by_client=True
                    )
                )
            )
            return
        good = all(each["state"] != "failed" for each in checked)
        body = orjson.dumps({"ok": good, "checked": checked})
        call.reply(200 if good else 503, _HEADERS, body)

    async def _check_all(self) -> list[dict[str, Any]]:
        """The report of all examples, one after the other."""
        try:
            end = self._engine.clock.now() + LIMIT
            return [
                await self._look_at(each, graph, end, several=len(versions) > 1)
                for each in self._examples
                for versions in [self._versions(each)]
                for graph in versions
            ]
        finally:
            self._check = None

    async def _look_at(
        self, example: Example, graph: ServedGraph, end: float, *, several: bool
    ) -> dict[str, Any]:
        """Run one example until ``end``, and return its report.

        Args:
            example: the example.
            graph: runs it.
            end: in seconds of the engine's clock.
            several: whether other versions of the graph serve as well.
        """
        now = self._engine.clock.now
        begun = now()
        version = {"version": graph.version} if several else {}
        found = {"route": example.path, **version, "example": example.number, "state": "ok"}
        log_id = random.getrandbits(63)
        try:
            await self._run(example, graph, end - begun, log_id)
        except ServiceBusy:
            found["state"] = "busy"
        except RequestError as error:
            found |= {"state": "failed", **orjson.loads(error_reply(error, log_id).body)}
        except WrongAnswer as error:
            found |= {"state": "failed", "error": "wrong_answer", "message": str(error)}
        found["seconds"] = round(now() - begun, 6)
        return found


def _parallel(executor: Executor) -> int:
    return min(1, executor.workers) if isinstance(executor, CoroutineExecutor) else executor.workers


def _keep(future: asyncio.Future[Outcome], _: Submission, outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)


def _brief(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 200 else f"{text[:200]} …"


def same(found: Any, wanted: Any) -> bool:
    """Whether two plain values are equal, within the tolerance of numbers."""
    if isinstance(wanted, dict):
        return (
            isinstance(found, dict)
            and found.keys() == wanted.keys()
            and all(same(found[key], each) for key, each in wanted.items())
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list) and len(found) == len(wanted) and all(map(same, found, wanted))
        )
    if type(found) in (int, float) and type(wanted) in (int, float):
        return math.isclose(found, wanted, rel_tol=_CLOSE, abs_tol=_CLOSE * _CLOSE)
    return type(found) is type(wanted) and bool(found == wanted)
