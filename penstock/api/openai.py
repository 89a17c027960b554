"""OpenAI's routes for functions of the user's own: chats, completions and the list of models.

The body of a request names its model, each of which has a graph of its own; the graph's worker
reads the body's other members.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import uuid4

from penstock.api import openai_description as description
from penstock.api.application import Route, Section
from penstock.api.body import LARGE
from penstock.api.compression import send_packed
from penstock.api.decoding import decode_body
from penstock.api.graph_call import GraphCall
from penstock.api.http import JSON, Http, HttpCall
from penstock.api.openai_errors import error_reply, fail, failed, no_route, refusal
from penstock.api.stream_call import StreamCall
from penstock.engine.engine import Engine
from penstock.engine.gathered import RESULT
from penstock.engine.graph import ServedGraph
from penstock.errors import InvalidInput, RequestError, UnknownService
from penstock.protocols import openai
from penstock.protocols.heads import Headers
from penstock.protocols.openai import PREFIX, Answer, Asked, ChatAnswer, CompletionAnswer
from penstock.request import Feed
from penstock.typed.op import BODY, KIND
from penstock.typed.parameters import FIELDS, PATH, QUERY
from penstock.typed.signature import Signature

MODELS: Final = f"{PREFIX}/models"
_MANY: Final = 256
"""Parts of an answer from which on a thread joins them."""
_HEADERS: Final[Headers] = (JSON,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What one of OpenAI's routes does.

    Attributes:
        path: of the route.
        summary: one line.
        answer: makes its answers.
    """

    path: str
    summary: str
    answer: type[Answer]


CHAT: Final = Service(
    path=f"{PREFIX}/chat/completions", summary="The next message of a chat.", answer=ChatAnswer
)
COMPLETION: Final = Service(
    path=f"{PREFIX}/completions", summary="The continuation of a text.", answer=CompletionAnswer
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRoute:
    """A model of one of OpenAI's routes.

    Attributes:
        service: the route.
        model: the name in requests.
        graph: the name of its graph.
        signature: its function's types.
    """

    service: Service
    model: str
    graph: str
    signature: Signature


class OpenAiApplication:
    """OpenAI's routes of a service. Belongs to the engine's loop.

    Args:
        engine: answers requests.
        routes: the models, each with its route.
        title: of the service, for its description.
    """

    def __init__(self, engine: Engine, routes: Iterable[ModelRoute], title: str = "") -> None:
        self._engine = engine
        self._routes = list(routes)
        self._title = title
        self._created = int(time.time())
        self._models = list(dict.fromkeys(each.model for each in self._routes))

    def routes(self) -> Iterator[Route | Section]:
        """What to serve."""
        if not self._routes:
            return
        yield Section(PREFIX, no_route, refusal)
        for service in dict.fromkeys(each.service for each in self._routes):
            yield self._route(service)
        yield Http(
            "GET",
            MODELS,
            self._give_models,
            failed=failed,
            refusal=refusal,
            summary="The models.",
            group=self._title,
            answers=description.of_models(description.MODELS),
        )
        yield Http(
            "GET",
            f"{MODELS}/{{model:path}}",
            self._give_model,
            failed=failed,
            refusal=refusal,
            summary="One model.",
            group=self._title,
            answers=description.of_models(description.MODEL),
        )

    def _route(self, service: Service) -> Http:
        models = {each.model: each for each in self._routes if each.service is service}
        request, answer, example = description.of(service.path, next(iter(models)))
        return Http(
            "POST",
            service.path,
            partial(self._answer, service, models),
            failed=failed,
            refusal=refusal,
            summary=service.summary,
            description=f"Models: {', '.join(f'`{each}`' for each in models)}.",
            group=self._title,
            request=request,
            answers=description.answers(answer),
            examples=((example, None),),
            graphs=frozenset(each.graph for each in models.values()),
        )

    def _answer(
        self, service: Service, models: Mapping[str, ModelRoute], call: HttpCall, body: bytes
    ) -> None:
        kind = call.exchange.head.fields.get(b"content-type", b"").decode("latin-1")
        decode_body(
            call,
            len(body),
            partial(openai.asked, body, kind),
            partial(self._run, service, models, call, body, kind),
            failed,
            aside=len(body) > LARGE,
        )

    def _run(
        self,
        service: Service,
        models: Mapping[str, ModelRoute],
        call: HttpCall,
        body: bytes,
        kind: str,
        asked: Asked,
        timeout: float | None,
    ) -> None:
        try:
            route, graph = self._choose(models, asked.model)
        except RequestError as error:
            call.count_refusal(error)
            failed(call, error)
            return
        feed: Feed = {BODY: body, KIND: kind}
        outside = route.signature.parameters
        if outside is not None:
            head = call.exchange.head
            feed[PATH] = []
            feed[QUERY] = head.query
            feed[FIELDS] = [[*field] for field in head.headers if field[0] in outside.fields]
        key, created = uuid4().hex, int(time.time())
        answer = service.answer(key, created, route.model, usage=asked.usage)
        one: _Chunks | _Whole
        if asked.stream and graph.streams:
            one = _Chunks(graph, feed, timeout, random.getrandbits(63), answer)
            one.status = 200
        else:
            one = _Whole(graph, feed, timeout, random.getrandbits(63), answer)
            one.in_events = asked.stream
        one.run(call)

    def _choose(
        self, models: Mapping[str, ModelRoute], model: str | None
    ) -> tuple[ModelRoute, ServedGraph]:
        """The route of a model, and its graph.

        Raises:
            InvalidInput: none is named, and there are several.
            UnknownService: there is none of this name, or it is not served now.
        """
        if model is None and len(models) > 1:
            text = f"Field required: one of {', '.join(models)}"
            raise InvalidInput([{"loc": ["body", "model"], "msg": text, "type": "missing"}])
        name = next(iter(models)) if model is None else model
        route = models.get(name)
        if route is None:
            raise UnknownService(
                f"the model {name[:100]!r} does not exist here: there is {', '.join(models)}"
            )
        graph = self._engine.choose(route.graph)
        if graph is None:
            raise UnknownService(f"the model {name!r} is not served now")
        return route, graph

    def _give_models(self, call: HttpCall, _body: bytes) -> None:
        call.reply(200, _HEADERS, openai.models(self._models, self._created))

    def _give_model(self, call: HttpCall, _body: bytes) -> None:
        (name,) = call.values
        if name in self._models:
            call.reply(200, _HEADERS, openai.one_model(name, self._created))
        else:
            failed(call, UnknownService(f"the model {name[:100]!r} does not exist"))


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
