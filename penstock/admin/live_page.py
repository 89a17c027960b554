"""The live page: the running graphs, and the requests of the last minutes, for people.

``GET /ui`` answers the page, which requests its data from routes below: the state of the service;
lists of slow, failed and recent requests; one request with its timeline. Data is of all engines.
``penstock.api.access`` decides who may see it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Any, Final
from urllib.parse import parse_qs

import orjson

from penstock.admin.history import HISTORY
from penstock.api.access import Access
from penstock.api.compression import send_packed
from penstock.api.descriptions import ERROR, errors
from penstock.api.errors import error_body, failed, refusal
from penstock.api.html import page
from penstock.api.http import Http, HttpCall
from penstock.api.operation import Answer, Contents
from penstock.api.threads import run_aside
from penstock.errors import StartupError
from penstock.observe.history import series
from penstock.observe.live import Shown, details, summary
from penstock.observe.recorder import Recorder
from penstock.observe.reports import total
from penstock.protocols.heads import Headers
from penstock.protocols.media import JSON
from penstock.supervisor.queries import AllEngines

LISTS: Final = "live lists"
TIMELINE: Final = "live timeline"
"""Queries to all engines: for lists of their requests, and for one request."""

_MOST: Final = 32
"""Requests in each list; a guess at what people read."""

_MOST_FAILED: Final = 2 * _MOST
"""Requests in the list of those that failed, which are of several errors."""
_MOST_OPS: Final = 16
"""Ops in one answer of the history."""
_MOST_NUMBER: Final = 2**53
"""Of a point, for JSON."""

_GROUP: Final = "Operation"
_JSON: Final[Headers] = (
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


async def listed_requests(recorder: Recorder, threads: Executor) -> dict[str, list[Shown]]:
    """This engine's requests: the slowest, the failed and the latest, each list in its order.

    They are written in a thread: in a graph of 200 ops that takes 40 ms. The recorder holds them,
    so that a reader of the lists can open them.
    """
    recorder.hold(_MOST, failed=_MOST_FAILED)
    return await run_aside(threads, _listed, recorder.snapshot())


def _listed(recorder: Recorder) -> dict[str, list[Shown]]:
    now = time.monotonic()
    return {
        "slowest": [summary(each, now) for each in recorder.slowest(_MOST)],
        "failed": [summary(each, now) for each in recorder.failed(_MOST_FAILED)],
        "latest": [summary(each, now) for each in reversed(recorder.latest(_MOST))],
    }


def recorded_request(recorder: Recorder, text: str) -> Shown | None:
    """The request of this engine with that id; see ``Recorder.find``."""
    timeline = recorder.find(text)
    return None if timeline is None else details(timeline, time.monotonic(), recorder.latest())


def merged(answers: list[dict[str, list[Shown]]]) -> dict[str, list[Shown]]:
    """The lists of several engines as one each."""

    def all_of(name: str, key: Callable[[Shown], float], most: int = _MOST) -> list[Shown]:
        return sorted((each for answer in answers for each in answer[name]), key=key)[:most]

    return {
        "slowest": all_of("slowest", lambda each: -each["ms"]),
        "failed": all_of("failed", lambda each: each["ago"], _MOST_FAILED),
        "latest": all_of("latest", lambda each: each["ago"]),
    }


class LivePage:
    """The live page and its data. An application; see ``penstock.service.blueprint``.

    Args:
        engines: queries the engines of the service.
        access: its access control.
        sends: whether the service's routes are on the page's port.
    """

    def __init__(self, engines: AllEngines, access: Access, *, sends: bool = True) -> None:
        self._engines = engines
        self._sends = sends
        self._access = access
        self._page, self._headers = page("ui/page.html")
        self._making: asyncio.Task[Any] | None = None

    def routes(self) -> Iterator[Http]:
        """What it answers."""
        text = "A page that shows the running service."
        yield self._route("/ui", self._give_page, text, html=True)
        text = (
            "The state for the page: `at`, a monotonic time in seconds; `sends`, whether the routes"
            " are on its port; `status`, as in `/status`, without sketches of durations."
        )
        yield self._route("/ui/state", self._give_state, text)
        text = (
            "The last 15 minutes, a point every 5 seconds: those after the point `after`, with the"
            " series of the ops `op`."
        )
        query: dict[str, Any] = {
            "after": {"type": "integer", "minimum": -1, "maximum": _MOST_NUMBER, "default": -1},
            "op": {"type": "array", "items": {"type": "string"}, "maxItems": _MOST_OPS},
        }
        yield self._route("/ui/history", self._give_history, text, query=query)
        text = "Lists of slow, failed and recent requests."
        yield self._route("/ui/requests", self._give_lists, text)
        text = "A request with its timeline, by its data id, log id or W3C trace id."
        missing = "No such request is stored."
        yield self._route("/ui/requests/{id}", self._give_timeline, text, missing=missing)

    def _route(
        self,
        path: str,
        answer: Callable[[HttpCall], None],
        summary: str,
        *,
        html: bool = False,
        missing: str | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> Http:
        denied = {
            401: Answer(text="The token is missing.", contents={JSON: ERROR}),
            403: Answer(
                text="The caller is on another machine, or a proxy.", contents={JSON: ERROR}
            ),
        }
        if missing is not None:
            denied[404] = Answer(text=missing, contents={JSON: ERROR})
        kind: Contents = {"text/html": {"type": "string"}} if html else {JSON: {"type": "object"}}

        def guarded(call: HttpCall, _body: bytes) -> None:
            exchange = call.exchange
            denial = self._access.denial(exchange.peer.address, exchange.head)
            # The page itself has no data, and asks for the token.
            if denial is None or (denial.status == 401 and html):
                answer(call)
            else:
                call.send(error_body(*denial))

        return Http(
            "GET",
            path,
            guarded,
            failed=failed,
            refusal=refusal,
            always=True,
            admin=True,
            open=html or self._access.has_token,
            summary=summary,
            description="For callers on the same machine, or with the token of `ui.token`.",
            group=_GROUP,
            query=query or {},
            answers={
                **errors(415, 503),
                **denied,
                200: Answer(text="The data, or the page.", contents=kind),
            },
        )

    def _give_page(self, call: HttpCall) -> None:
        send_packed(call, 200, self._headers, self._page)

    def _give_state(self, call: HttpCall) -> None:
        call.aside(self._state(call))

    def _give_history(self, call: HttpCall) -> None:
        try:
            query = parse_qs(call.exchange.head.query.decode("ascii"), max_num_fields=_MOST_OPS + 1)
            after, ops = int(query.get("after", ["-1"])[-1]), query.get("op", [])
            good = -1 <= after <= _MOST_NUMBER and len(ops) <= _MOST_OPS
        except ValueError:
            good = False
        if good:
            call.aside(self._history(call, after, ops))
        else:
            text = f"after is the number of a point, and op is given {_MOST_OPS} times at most"
            call.send(error_body(400, "bad_request", text))

    def _give_lists(self, call: HttpCall) -> None:
        call.aside(self._lists(call))

    def _give_timeline(self, call: HttpCall) -> None:
        call.aside(self._timeline(call))

    async def _state(self, call: HttpCall) -> None:
        # Concurrent callers share one sum.
        making = self._making
        if making is None or making.done():
            making = self._making = asyncio.create_task(self._engines.reports())
            making.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved
        try:
            reports = await asyncio.shield(making)
        except (TimeoutError, StartupError):
            call.send(error_body(503, "busy", "the sum over all engines is not available now"))
            return
        status = total(reports, sketches=False)
        state = {"at": time.monotonic(), "sends": self._sends, "status": status}
        await self._send(call, state)

    async def _history(self, call: HttpCall, after: int, ops: list[str]) -> None:
        asked = self._engines.ask(HISTORY, after, ops), self._engines.past(after)
        answers, past = await asyncio.gather(*asked)

        def joined() -> Any:
            points = [each for answer in (*answers, orjson.loads(past)) for each in answer]
            return series(points, time.monotonic(), after, ops)

        await self._send(call, await run_aside(call.shared.threads, joined))

    async def _lists(self, call: HttpCall) -> None:
        await self._send(call, merged(await self._engines.ask(LISTS)))

    async def _timeline(self, call: HttpCall) -> None:
        (wanted,) = call.values
        answers = await self._engines.ask(TIMELINE, wanted)
        kept = [each for each in answers if each is not None]
        if not kept:
            stored = "only slow, failed and the latest ones are, and those listed a short time ago"
            text = f"request {wanted} is not stored: {stored}"
            call.send(error_body(404, "unknown_request", text))
            return
        exact = [each for each in kept if each["id"] == wanted]
        latest = min(exact or kept, key=lambda each: each["ago"])
        await self._send(call, latest)

    async def _send(self, call: HttpCall, value: Any) -> None:
        body = await run_aside(call.shared.threads, orjson.dumps, value)
        headers = (*_JSON, *self._access.cookie(call.exchange.head))
        send_packed(call, 200, headers, body)
