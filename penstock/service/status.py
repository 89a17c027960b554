"""How a running service stands: one engine's report, the sum over several, and the page of it.

``GET /status`` answers it as JSON, to this machine only. With several engines the one that is asked
sends its report to the supervisor, which asks the others and gives back the sum.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final, TypeAlias

from penstock.api.calls import Answer, Http, HttpCall
from penstock.api.descriptions import ERROR, errors
from penstock.api.errors import error_body, failed, refusal
from penstock.api.health import Health
from penstock.door.listeners import is_loopback
from penstock.engine.engine import Engine
from penstock.engine.graph import ServedGraph
from penstock.errors import StartupError
from penstock.executors.processes.control import MOST_TEXT
from penstock.observe.counters import Counters
from penstock.protocols.media import JSON
from penstock.service.models import described

Report: TypeAlias = dict[str, Any]

SUM_TIMEOUT: Final = 1.0
"""Seconds that the supervisor waits for the engines' reports."""

_JSON: Final = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))


def report_of(engine: Engine, health: Health, counters: Counters) -> Report:
    """One engine's report: plain values only."""
    seen = engine.statistics()
    ready, why = health.ready()
    return {
        "engines": 1,
        "ready": ready,
        "why": why,
        "requests": {
            "admitted": seen.admitted,
            "answered": seen.replied,
            "cancelled": seen.cancelled,
            "refused": seen.refused,
            "inside": seen.inside,
            "waiting": seen.waiting,
        },
        **counters.of_requests(),
        "graphs": [_graph(graph, counters) for graph in engine.graphs],
    }


def _graph(graph: ServedGraph, counters: Counters) -> Report:
    seen, signature = graph.statistics(), graph.signature
    return {
        "name": seen.name,
        "version": seen.version,
        "state": seen.state,
        "inside": seen.inside,
        "signature": signature and described(signature),
        "ops": [
            {
                **asdict(each),
                **counters.of_op(each.name),
                "loaded": getattr(stage.executor, "loaded", None),
            }
            for each, stage in zip(seen.stages, graph.stages, strict=True)
        ],
    }


def text_of(report: Report) -> str:
    """A report as text that fits a message; without its graphs where it would be too long."""
    text = json.dumps(report)
    if len(text) <= MOST_TEXT:
        return text
    return json.dumps({**report, "graphs": []})


def total(reports: Sequence[Report]) -> Report:
    """The sum of several engines' reports: numbers added, ready only if all are."""
    summed: Report = _sum(list(reports))
    summed["ready"] = all(each["ready"] for each in reports)
    summed["why"] = next((each["why"] for each in reports if not each["ready"]), "ok")
    return summed


def _sum(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for each in values for key in each)
        return {key: _sum([each[key] for each in values if key in each]) for key in keys}
    if isinstance(first, list) and first and isinstance(first[0], dict):
        things = [thing for each in values for thing in each]
        return _sum_named(things) if "name" in first[0] else things
    if isinstance(first, int | float) and not isinstance(first, bool):
        return sum(values)
    return first


def _sum_named(things: list[Report]) -> list[Report]:
    """Those of one name and version are added."""
    found: dict[tuple[Any, Any], list[Report]] = {}
    for each in things:
        found.setdefault((each["name"], each.get("version")), []).append(each)
    return [_sum(same) for same in found.values()]


class StatusPage:
    """``GET /status``. An application; see ``penstock.service.blueprint``.

    Args:
        report: this engine's.
        sum_up: gives the text of the sum over all engines for that of this one; None when there is
            no other.
    """

    def __init__(
        self, report: Callable[[], Report], sum_up: Callable[[str], Awaitable[str]] | None = None
    ) -> None:
        self._report = report
        self._sum_up = sum_up

    def routes(self) -> Iterator[Http]:
        """What it answers."""
        local = "Asked from another machine."
        yield Http(
            "GET",
            "/status",
            self._answer,
            failed=failed,
            refusal=refusal,
            always=True,
            summary="How the service stands.",
            description="For callers on the same machine only.",
            group="Operation",
            answers={
                **errors(415),
                200: Answer(text="The report.", contents={JSON: {"type": "object"}}),
                403: Answer(text=local, contents={JSON: ERROR}),
            },
        )

    def _answer(self, call: HttpCall, body: bytes) -> None:
        peer = call.exchange.peer.address.removeprefix("::ffff:")
        if peer and not is_loopback(peer):
            call.send(error_body(403, "forbidden", "the status is for this machine only"))
        elif self._sum_up is None:
            call.reply(200, _JSON, json.dumps(self._report()).encode())
        else:
            task = asyncio.get_running_loop().create_task(self._answer_sum(call, self._sum_up))
            call.exchange.on_gone = task.cancel

    async def _answer_sum(self, call: HttpCall, sum_up: Callable[[str], Awaitable[str]]) -> None:
        text = text_of(self._report())
        try:
            async with asyncio.timeout(2 * SUM_TIMEOUT):
                text = await sum_up(text)
        except (TimeoutError, StartupError):  # the supervisor is gone or busy: our own will do
            pass
        call.reply(200, _JSON, text.encode())


class Sums:
    """The supervisor's part: who wants a sum, and whose report is still missing.

    Engines are any hashable things. Pure but for the clock that is handed in.
    """

    def __init__(self) -> None:
        self._numbers = 0
        self._open: dict[int, _Sum] = {}

    @property
    def due(self) -> float | None:
        """When the earliest sum is given with what there is."""
        return min((each.due for each in self._open.values()), default=None)

    def want(self, asker: Any, number: int, text: str, others: Iterable[Any], now: float) -> int:
        """An engine asks, with its own report; under which number the others are to be asked."""
        self._numbers += 1
        self._open[self._numbers] = _Sum(asker, number, text, set(others), now + SUM_TIMEOUT)
        return self._numbers

    def take(self, engine: Any, number: int, text: str) -> None:
        """An engine's report has come."""
        sum_ = self._open.get(number)
        if sum_ is not None and engine in sum_.missing:
            sum_.missing.discard(engine)
            sum_.texts.append(text)

    def forget(self, engine: Any) -> None:
        """An engine has ended: nobody waits for it, and it waits for nothing."""
        self._open = {n: each for n, each in self._open.items() if each.asker is not engine}
        for each in self._open.values():
            each.missing.discard(engine)

    def ready(self, now: float | None = None) -> list[tuple[Any, int, str]]:
        """Take out the sums that are complete, or due: who asked, under which number, the text."""
        now = time.monotonic() if now is None else now
        done = [n for n, each in self._open.items() if not each.missing or each.due <= now]
        return [
            (each.asker, each.number, text_of(total([json.loads(text) for text in each.texts])))
            for each in map(self._open.pop, done)
        ]


class _Sum:
    def __init__(self, asker: Any, number: int, text: str, missing: set[Any], due: float) -> None:
        self.asker = asker
        self.number = number
        self.texts = [text]
        self.missing = missing
        self.due = due
