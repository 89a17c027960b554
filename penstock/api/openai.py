"""OpenAI's routes for functions of the user's own, and the list of their models.

The body of a request names its model, each of which has a graph of its own; the graph's worker
reads the body's other members.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock.api import openai_description as description
from penstock.api.application import Route, Section
from penstock.api.body import LARGE
from penstock.api.decoding import decode_body
from penstock.api.http import JSON, Http, HttpCall
from penstock.api.openai_calls import Service
from penstock.api.openai_errors import failed, no_route, refusal
from penstock.engine.engine import Engine
from penstock.engine.graph import ServedGraph
from penstock.errors import InvalidInput, RequestError, UnknownService
from penstock.protocols import openai
from penstock.protocols.heads import Headers
from penstock.protocols.openai import PREFIX, Asked
from penstock.request import Feed
from penstock.typed.op import BODY, KIND
from penstock.typed.parameters import FIELDS, PATH, QUERY
from penstock.typed.signature import Signature

MODELS: Final = f"{PREFIX}/models"
_HEADERS: Final[Headers] = (JSON,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRoute:
    """A model of one of OpenAI's routes.

    Attributes:
        service: the route.
        models: the names in requests, of which the first is shown.
        graph: the name of its graph.
        signature: its function's types.
    """

    service: Service
    models: tuple[str, ...]
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
        self._models = list(dict.fromkeys(name for each in self._routes for name in each.models))

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
        routes = [each for each in self._routes if each.service is service]
        models = {name: each for each in routes for name in each.models}
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
            graphs=frozenset(each.graph for each in routes),
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
            engine=self._engine,
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
            of_answer = service.check(asked.body)
            name, route, graph = self._choose(models, asked.model, call)
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
        feed |= of_answer
        service.begin(graph, feed, timeout, asked, name).run(call)

    def _choose(
        self, models: Mapping[str, ModelRoute], model: str | None, call: HttpCall
    ) -> tuple[str, ModelRoute, ServedGraph]:
        """The name of a model, its route, and its graph.

        Raises:
            InvalidInput: none is named, and there are several.
            UnknownService: there is none of this name, or it is not served now.
        """
        if model is None and len({each.graph for each in models.values()}) > 1:
            text = f"Field required: one of {', '.join(models)}"
            raise InvalidInput([{"loc": ["body", "model"], "msg": text, "type": "missing"}])
        name = next(iter(models)) if model is None else model
        route = models.get(name)
        if route is None:
            raise UnknownService(
                f"the model {name[:100]!r} does not exist here: there is {', '.join(models)}"
            )
        graph = self._engine.choose(route.graph, call=call)
        if graph is None:
            raise UnknownService(f"the model {name!r} is not served now")
        return name, route, graph

    def _give_models(self, call: HttpCall, _body: bytes) -> None:
        call.reply(200, _HEADERS, openai.models(self._models, self._created))

    def _give_model(self, call: HttpCall, _body: bytes) -> None:
        (name,) = call.values
        if name in self._models:
            call.reply(200, _HEADERS, openai.one_model(name, self._created))
        else:
            failed(call, UnknownService(f"the model {name[:100]!r} does not exist"))
