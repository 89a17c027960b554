"""The JSON route of every graph: ``POST /{service}`` with a plain object, answered by one.

The request's dict has numbers and nested lists as they are, the bytes of files, and ``.npy`` files
as arrays; the last op's dict goes out as JSON or msgpack, arrays as nested lists.
"""

from __future__ import annotations

import random
import time
from typing import Any

from penstock.api.body import LARGE, SMALL
from penstock.api.calls import Http, HttpCall
from penstock.api.compression import send_packed
from penstock.api.errors import error_reply, failed
from penstock.api.replies import run_aside, what_is_left
from penstock.api.typed import HEADERS
from penstock.engine.engine import Engine
from penstock.engine.graph import ServedGraph
from penstock.engine.submission import Submission
from penstock.errors import InvalidInput, RequestError, ServiceBusy, UnknownService
from penstock.ops.failures import tell_unsendable
from penstock.protocols import media, npy, paddle
from penstock.request import Feed, Outcome

_RAW = "data"
"""What a raw body is called where the graph does not say what it wants."""

_A_NUMBER = 20
"""Bytes that an element of an array takes in JSON, at most as a rule."""


class PlainApplication:
    """A route for each graph. Belongs to the engine's loop.

    Args:
        engine: answers requests.
        threads: read and write what is large; None for the loop's own.
    """

    def __init__(self, engine: Engine, threads: Any = None) -> None:
        self._engine = engine
        self._threads = threads

    def routes(self) -> list[Http]:
        """What to serve."""
        summary = "Run the service of this name on a plain object."
        return [Http("POST", "/{name}", self._request, failed=failed, summary=summary)]

    def _request(self, call: HttpCall, body: bytes) -> None:
        (name,) = call.values
        graph = self._engine.graph(name)
        if graph is None:
            failed(call, UnknownService(f"there is no service {name!r}"))
            return
        fields = call.exchange.head.fields
        kind = fields.get(b"content-type", b"").decode("latin-1")
        if len(body) > LARGE:
            call.aside(self._large(call, graph, body, kind))
            return
        try:
            if len(body) > SMALL:
                call.exchange.decode(len(body))
            feed = decode(body, kind, graph)
        except RequestError as error:
            failed(call, error)
            return
        self._submit(call, graph, feed, kind, call.timeout)

    async def _large(self, call: HttpCall, graph: ServedGraph, body: bytes, kind: str) -> None:
        begun = time.monotonic()
        try:
            call.exchange.decode(len(body))
            feed = await run_aside(self._threads, decode, body, kind, graph)
        except RequestError as error:
            failed(call, error)
            return
        self._submit(call, graph, feed, kind, what_is_left(call.timeout, begun))

    def _submit(
        self, call: HttpCall, graph: ServedGraph, feed: Feed, kind: str, timeout: float | None
    ) -> None:
        accept = call.exchange.head.fields.get(b"accept")
        answer = media.answer_kind(None if accept is None else accept.decode("latin-1"), kind)
        asked = Submission(graph, feed, timeout, random.getrandbits(63), (call, answer))
        asked.start(self._answered)
        if not asked.over:
            call.exchange.on_gone = asked.cancel

    def _answered(self, asked: Submission, outcome: Outcome) -> None:
        call, _ = asked.context
        if outcome.error is not None:
            call.send(error_reply(outcome.error, asked.log_id))
        elif paddle.takes_long(outcome.value):
            call.aside(self._write(asked, outcome.value or {}))
        else:
            _reply(asked, outcome.value or {})

    async def _write(self, asked: Submission, value: Feed) -> None:
        """A large answer, which others do not wait for."""
        call, answer = asked.context
        size = sum(getattr(each, "size", 0) for each in value.values()) * _A_NUMBER
        try:
            if size > call.exchange.limit:
                raise ServiceBusy("the answer is larger than what may be in flight")
            call.exchange.take(size)
            body = await run_aside(self._threads, encode, asked, value, answer)
        except RequestError as error:
            call.send(error_reply(error, asked.log_id))
        else:
            send_packed(call, 200, HEADERS[answer], body)


def decode(body: bytes, kind: str, graph: ServedGraph) -> Feed:
    """The request's dict.

    Raises:
        RequestError: the body is none.
    """
    signature = graph.signature
    raw = _RAW
    if signature is not None and len(signature.inputs) == 1:
        raw = signature.inputs[0].alias
    value = media.decode(body, kind, raw)
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        where = {"loc": ["body"], "msg": "Input should be an object", "type": "dict_type"}
        raise InvalidInput([where])
    for key, each in value.items():
        if isinstance(each, bytes) and each.startswith(npy.MAGIC):
            try:
                value[key] = npy.read(each)
            except ValueError as error:
                told = {"loc": ["body", key], "msg": str(error), "type": "npy"}
                raise InvalidInput([told]) from None
    return value


def _reply(asked: Submission, value: Feed) -> None:
    call, answer = asked.context
    try:
        body = encode(asked, value, answer)
    except RequestError as error:
        call.send(error_reply(error, asked.log_id))
    else:
        send_packed(call, 200, HEADERS[answer], body)


def encode(asked: Submission, value: Feed, kind: str) -> bytes:
    """The answer's body.

    Raises:
        WrongType: the last op's dict cannot be written.
    """
    try:
        return media.encode(value, kind)
    except (TypeError, ValueError) as error:
        last = asked.graph.stages[-1].name
        raise tell_unsendable(last, asked.data_id, asked.log_id, error) from None
