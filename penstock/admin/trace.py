"""Records a trace of a running service's next requests, in Chrome's trace format.

``GET /trace?requests=100&seconds=10`` answers when this many requests have ended, or after this
time; to this machine only. With several engines the trace has the requests of all.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Final
from urllib.parse import parse_qs

from penstock.admin.status import is_local
from penstock.api.compression import send_packed
from penstock.api.descriptions import ERROR, errors
from penstock.api.errors import error_body, failed, refusal
from penstock.api.http import Http, HttpCall
from penstock.api.operation import Answer
from penstock.api.threads import run_aside
from penstock.observe.chrome import trace
from penstock.observe.recorder import NO_ID, Recorder
from penstock.observe.timeline import Plain, Timeline
from penstock.protocols.media import JSON
from penstock.supervisor.queries import AllEngines

QUESTION: Final = "trace"
"""The query for the timelines of the engines' next requests."""

MOST_REQUESTS: Final = 10_000
MOST_SECONDS: Final = 60.0
_REQUESTS: Final = 100
_SECONDS: Final = 10.0

_HEAD: Final = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))


async def next_timelines(recorder: Recorder, requests: int, seconds: float) -> list[Plain]:
    """The timelines of this engine's next requests, as plain values, up to a number or a time."""
    found: list[Timeline] = []
    enough = asyncio.Event()

    def take(timeline: Timeline) -> None:
        if timeline.data_id != NO_ID:
            found.append(timeline)
            if len(found) == requests:
                enough.set()

    forget = recorder.listen(take)
    try:
        async with asyncio.timeout(seconds):
            await enough.wait()
    except TimeoutError:
        pass
    finally:
        forget()
    return [each.plain() for each in found[:requests]]


class TracePage:
    """``GET /trace``. An application; see ``penstock.service.blueprint``.

    Args:
        engines: those of the service.
        admitted: whether only operators reach it; else callers must be on this machine.
    """

    def __init__(self, engines: AllEngines, *, admitted: bool = False) -> None:
        self._engines = engines
        self._admitted = admitted

    def routes(self) -> Iterator[Http]:
        """What it answers."""
        yield Http(
            "GET",
            "/trace",
            self._answer,
            failed=failed,
            refusal=refusal,
            always=True,
            admin=True,
            summary="A trace of the next requests.",
            description="Answers when `requests` of them have ended, or after `seconds`. For"
            " callers on the same machine only.",
            group="Operation",
            query={
                "requests": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MOST_REQUESTS,
                    "default": _REQUESTS,
                },
                "seconds": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "maximum": MOST_SECONDS,
                    "default": _SECONDS,
                },
            },
            answers={
                **errors(400, 415),
                200: Answer(text="The trace.", contents={JSON: {"type": "object"}}),
                403: Answer(
                    text="The caller is on another machine, or a proxy.", contents={JSON: ERROR}
                ),
            },
        )

    def _answer(self, call: HttpCall, body: bytes) -> None:
        if not self._admitted and not is_local(call, "the trace"):
            return
        try:
            query = parse_qs(call.exchange.head.query.decode("ascii"), max_num_fields=8)
            requests = int(query.get("requests", [str(_REQUESTS)])[0])
            seconds = float(query.get("seconds", [str(_SECONDS)])[0])
            good = 1 <= requests <= MOST_REQUESTS and 0 < seconds <= MOST_SECONDS
        except ValueError:
            good = False
        if good:
            call.aside(self._give(call, requests, seconds))
        else:
            wanted = f"requests is 1 to {MOST_REQUESTS}, seconds up to {MOST_SECONDS:g}"
            call.send(error_body(400, "bad_request", wanted))

    async def _give(self, call: HttpCall, requests: int, seconds: float) -> None:
        answers = await self._engines.ask(QUESTION, requests, seconds, seconds=seconds)
        text = await run_aside(call.shared.threads, _traced, answers, requests)
        send_packed(call, 200, _HEAD, text)


def _traced(answers: list[list[Plain]], requests: int) -> bytes:
    timelines = [Timeline.of(each) for answer in answers for each in answer]
    timelines.sort(key=lambda each: each.ended)
    return json.dumps(trace(timelines[:requests])).encode()
