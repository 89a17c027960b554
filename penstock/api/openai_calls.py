"""What each of OpenAI's routes does, and its requests in progress."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias
from uuid import uuid4

from penstock.api.body import LARGE
from penstock.api.compression import send_packed
from penstock.api.graph_call import GraphCall
from penstock.api.http import JSON, HttpCall
from penstock.api.openai_errors import error_reply, fail
from penstock.api.stream_call import StreamCall
from penstock.engine.gathered import RESULT
from penstock.engine.graph import ServedGraph
from penstock.errors import RequestError
from penstock.protocols import openai
from penstock.protocols.heads import Headers
from penstock.protocols.openai import PREFIX, Answer, Asked, ChatAnswer, CompletionAnswer
from penstock.request import Feed

_MANY: Final = 256
"""Parts of an answer, or ranked documents, from which on a thread writes it."""
_HEADERS: Final[Headers] = (JSON,)


class _Whole(GraphCall):
    """An answer at once. Its context is the protocol's answer.

    Attributes:
        in_events: whether it is sent as events.
    """

    __slots__ = ("in_events",)

    call: HttpCall
    context: Answer
    in_events: bool

    def is_large(self, value: Feed) -> bool:
        """See ``GraphCall``."""
        parts = _parts(value)
        return len(parts) > _MANY or sum(len(each.get(openai.TEXT, b"")) for each in parts) > LARGE

    def encode(self, value: Feed) -> bytes:
        """See ``GraphCall``."""
        answer = self.context
        return answer.events(_parts(value)) if self.in_events else answer.whole(_parts(value))

    def send(self, reply: bytes) -> None:
        """See ``GraphCall``."""
        if self.in_events:
            self.call.reply(200, self.context.headers, reply)
        else:
            send_packed(self.call, 200, _HEADERS, reply)

    def fail(self, error: RequestError) -> None:
        """See ``GraphCall``."""
        fail(self.call, error, self.log_id)


def _parts(value: Feed) -> list[Feed]:
    """The parts of an answer: the pieces of one that comes in pieces, or the only one."""
    found: Any = value.get(RESULT)
    return [value] if found is None else found


class _Chunks(StreamCall):
    """An answer in chunks. Its context is the protocol's answer."""

    __slots__ = ()
    form = staticmethod(error_reply)
    context: Any

    def piece(self, piece: Feed) -> bool:
        """See ``Submission``: send a chunk, unless the piece has nothing to be sent now."""
        text = self.context.chunk(piece)
        return self.pass_on(text) if text else True


class _Once(GraphCall):
    """An answer that never comes in chunks. Its context makes the body of the graph's result."""

    __slots__ = ()

    call: HttpCall
    context: Callable[[Feed], bytes]

    def is_large(self, value: Feed) -> bool:
        """See ``GraphCall``: a ranking of many documents. The worker has written embeddings."""
        return len(value.get(openai.SCORES, ())) > _MANY

    def encode(self, value: Feed) -> bytes:
        """See ``GraphCall``."""
        return self.context(value)

    def send(self, reply: bytes) -> None:
        """See ``GraphCall``."""
        send_packed(self.call, 200, _HEADERS, reply)

    def fail(self, error: RequestError) -> None:
        """See ``GraphCall``."""
        fail(self.call, error, self.log_id)


_Begin: TypeAlias = Callable[[ServedGraph, Feed, float | None, Asked, str], GraphCall]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What one of OpenAI's routes does.

    Attributes:
        path: of the route.
        summary: one line.
        begin: makes the call of a request from its graph, feed, timeout, what it asks for, and the
            name of its model.
        check: returns further members of the feed, from the body. Raises InvalidInput.
    """

    path: str
    summary: str
    begin: _Begin
    check: Callable[[Mapping[str, Any]], Feed]


def _texts(
    kind: type[Answer],
    graph: ServedGraph,
    feed: Feed,
    timeout: float | None,
    asked: Asked,
    model: str,
) -> GraphCall:
    """The call of a chat or a completion."""
    answer = kind(uuid4().hex, int(time.time()), model, usage=asked.usage)
    if asked.stream and graph.streams:
        chunks = _Chunks(graph, feed, timeout, random.getrandbits(63), answer)
        chunks.status = 200
        return chunks
    whole = _Whole(graph, feed, timeout, random.getrandbits(63), answer)
    whole.in_events = asked.stream
    return whole


def _embeddings(
    graph: ServedGraph, feed: Feed, timeout: float | None, _asked: Asked, model: str
) -> GraphCall:
    make = partial(openai.embeddings, model)
    return _Once(graph, feed, timeout, random.getrandbits(63), make)


def _ranking(
    graph: ServedGraph, feed: Feed, timeout: float | None, asked: Asked, model: str
) -> GraphCall:
    make = partial(openai.ranking, uuid4().hex, model, asked.body)
    return _Once(graph, feed, timeout, random.getrandbits(63), make)


CHAT: Final = Service(
    path=f"{PREFIX}/chat/completions",
    summary="The next message of a chat.",
    begin=partial(_texts, ChatAnswer),
    check=openai.of_chat,
)
COMPLETION: Final = Service(
    path=f"{PREFIX}/completions",
    summary="The continuation of a text.",
    begin=partial(_texts, CompletionAnswer),
    check=openai.of_completion,
)
EMBEDDINGS: Final = Service(
    path=f"{PREFIX}/embeddings",
    summary="Embeddings of texts.",
    begin=_embeddings,
    check=openai.of_embeddings,
)
RERANK: Final = Service(
    path=f"{PREFIX}/rerank",
    summary="A ranking of documents by their relevance to a query.",
    begin=_ranking,
    check=openai.of_rerank,
)
