"""App: typed functions and classes as a service over HTTP.

app = App("iris")

@app.route("/predict", batch=32)
def predict(flowers: list[Flower]) -> list[Species]: ...

app.run()
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.config.op import OpConfig
from penstock.config.schema import ServiceConfig
from penstock.config.section import keys_of
from penstock.errors import (
    ERROR_STATUSES,
    ConfigError,
    GraphError,
    HookError,
    RequestError,
)
from penstock.ops import words
from penstock.service import flags, unserved
from penstock.service.server import Service, Several, WebService, run

if TYPE_CHECKING:
    from penstock.api.application import Application
    from penstock.api.middleware import Middleware
    from penstock.api.mount import AsgiApp, MountApplication
    from penstock.api.openai import ModelRoute
    from penstock.api.openai_calls import Service as OpenAiService
    from penstock.api.pages import Page
    from penstock.api.plain import PlainRoute
    from penstock.api.typed import TypedRoute
    from penstock.engine.engine import Engine
    from penstock.instrument import Instrument
    from penstock.ops.op import Op
    from penstock.service.asgi import AsgiApplication
    from penstock.service.blueprint import Blueprint, MakeApplication
    from penstock.typed.lifespan import Lifespan
    from penstock.typed.op import TypedOp
    from penstock.typed.signature import Schema, Signature

METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
"""The methods of routes."""

_Value = TypeVar("_Value")
_Target = TypeVar("_Target", bound=Callable[..., Any])


class App(Several):
    """A service of typed routes, each a function or class with its own workers and queue.

    Args:
        name: of the service.
        instruments: hear of what happens to requests.
        applications: further protocols, as for WebService.
        config: top-level configuration keys, such as ``http_port=8000``.

    Raises:
        ConfigError: a key is unknown.
    """

    def __init__(
        self,
        name: str,
        *,
        instruments: Sequence[Instrument] = (),
        applications: Sequence[MakeApplication] = (),
        **config: Any,
    ) -> None:
        _check_options(f"App({name!r})", config)
        super().__init__()
        self.name = name
        self.routes: list[TypedRoute] = []
        self._instruments = list(instruments)
        self._applications = list(applications)
        self._config = config
        self._ops: list[TypedOp] = []
        self._pages: list[Page] = []
        self._lifespans: list[Lifespan] = []
        self._mounts: list[tuple[str, AsgiApp]] = []
        self._middleware: list[Middleware] = []
        self._errors: dict[type[BaseException], tuple[int, str | None]] = {}
        self._graphs: list[tuple[PlainRoute, Op, dict[str, Any]]] = []
        self._models: list[tuple[ModelRoute, TypedOp]] = []

    def __repr__(self) -> str:
        models = [model.models[0] for model, _ in self._models]
        return f"<App {self.name!r} {', '.join([*(each.path for each in self.routes), *models])}>"

    def route(
        self,
        path: str,
        *,
        method: str = "POST",
        batch: int | None = None,
        wait: float | None = None,
        workers: int | None = None,
        executor: str | None = None,
        timeout: float | None = None,
        retry: int | None = None,
        seats: int | None = None,
        status: int = 200,
        answers: Mapping[int, Any] | None = None,
        examples: Sequence[Any] = (),
        **options: Any,
    ) -> Callable[[_Target], _Target]:
        """Serve a function, or a class, at a path.

        Args:
            path: such as ``/predict``, or ``/items/{id:int}`` with a parameter ``id``. A
                placeholder is one segment; with ``:int``, ``:float`` or ``:uuid`` only one of that
                form, with ``:path`` the rest of the path. Literal segments have precedence.
            method: the HTTP method, such as ``GET``, which is answered for HEAD as well; see
                ``get``, ``post``, ``put``, ``patch`` and ``delete``. Parameters of GET and DELETE
                are those of the query; of other methods members of the body, but for those with
                ``Query()``, ``Header()`` or ``Cookie()``.
            batch: the most requests joined into one call; the function then takes and returns
                lists with an element for each of them, also with ``batch=1``: lists of one. None:
                one request in each call, without lists.
            wait: milliseconds that a request waits for its batch to fill; by default 0: the
                requests that arrived while the workers were busy are the next batch.
            workers: number of threads or processes that run it; of an ``async def`` function, the
                most calls in flight, by default 64 without ``batch``. Of any other one by default
                1.
            executor: ``thread`` (the default), ``process``, or ``external`` with the path of a
                ``socket`` for external workers; then the function only declares the types.
            timeout: seconds for one call of the function; by default no limit.
            retry: attempts in all, repeated after a timeout.
            seats: for a class with ``join`` and ``step``: the number of requests that each worker
                runs at once.
            status: of its answers, 200 to 299.
            answers: the further statuses that its answers may have (see ``Response``), each with
                the type of its value; None: without a body, ``HttpError``: an error that it raises,
                for the description.
            examples: request bodies as plain values, or tuples of a body and the expected answer;
                dicts of all parameters if some are outside of the body. The OpenAPI document shows
                them; each runs before the service is ready, and in ``GET /health/deep``. By default
                those of a pydantic model (``json_schema_extra``).
            options: further keys of an op's configuration, such as ``memory_limit_mib``.

        Raises:
            GraphError: the path is no path, or another route has it, or its name.
            HookError: the annotations make no schema, or an example is no plain value.
            ConfigError: an option is unknown, or ``timeout`` is no number.
        """
        from penstock.service.declared_route import DeclaredRoute, answers_of

        _check_options(f"route({path!r})", options, of_route=True)
        placeholders = self._check_route(path, method)
        own = {
            "batch": batch,
            "wait": wait,
            "workers": workers,
            "executor": executor,
            "timeout": timeout,
            "retry": retry,
            "seats": seats,
        }
        given = words.read(f"route({path!r})", {**own, **options})
        declared = DeclaredRoute(
            path=path,
            method=method,
            placeholders=placeholders,
            batched=batch is not None,
            external=executor == "external",
            given=given,
            status=status,
            answers=answers_of(path, status, answers or {}),
            examples=examples,
        )

        def add(target: _Target) -> _Target:
            op = declared.op(target, self._lifespans)
            self._check_name(op.name)
            self.routes.append(declared.route(op, target))
            self._ops.append(op)
            return target

        return add

    def get(self, path: str, **options: Any) -> Callable[[_Target], _Target]:
        """``route`` for GET, and HEAD: the parameters are those of the query and the path."""
        return self.route(path, method="GET", **options)

    def post(self, path: str, **options: Any) -> Callable[[_Target], _Target]:
        """``route`` for POST."""
        return self.route(path, method="POST", **options)

    def put(self, path: str, **options: Any) -> Callable[[_Target], _Target]:
        """``route`` for PUT."""
        return self.route(path, method="PUT", **options)

    def patch(self, path: str, **options: Any) -> Callable[[_Target], _Target]:
        """``route`` for PATCH."""
        return self.route(path, method="PATCH", **options)

    def delete(self, path: str, **options: Any) -> Callable[[_Target], _Target]:
        """``route`` for DELETE: the parameters are those of the query and the path."""
        return self.route(path, method="DELETE", **options)

    def chat(self, *models: str, **options: Any) -> Callable[[_Target], _Target]:
        """Serve a function, or a class, as a model of OpenAI's ``POST /v1/chat/completions``.

        Its parameters are members of the request, ``messages: list[ChatMessage]`` among them, or
        one parameter is the whole: a ``ChatRequest``. It returns or yields texts, ``ChatReply`` or
        dicts like it.

        Args:
            models: the name by which requests choose it, and others that mean the same;
                ``GET /v1/models`` lists all.
            options: as for ``route``, apart from ``method``, ``status``, ``answers`` and
                ``examples``.

        Raises:
            GraphError: another function has this name, or a route of the app this path.
            HookError: the function does not fit.
            ConfigError: an option is unknown.
        """
        from penstock.api.openai_calls import CHAT
        from penstock.typed.openai_op import ChatOp

        return self._model(CHAT, ChatOp, models, options)

    def completion(self, *models: str, **options: Any) -> Callable[[_Target], _Target]:
        """The same for ``POST /v1/completions``.

        Its parameter is ``prompt: str``, the whole request a ``CompletionRequest``, and it answers
        with texts or ``CompletionReply``.
        """
        from penstock.api.openai_calls import COMPLETION
        from penstock.typed.openai_op import CompletionOp

        return self._model(COMPLETION, CompletionOp, models, options)

    def embeddings(self, *models: str, **options: Any) -> Callable[[_Target], _Target]:
        """The same for ``POST /v1/embeddings``.

        Its parameter is ``input: list[str]``, the whole request an ``EmbeddingsRequest``, and it
        returns a row of numbers for each text: lists, an array or ``EmbeddingsReply``.
        """
        from penstock.api.openai_calls import EMBEDDINGS
        from penstock.typed.openai_op import EmbeddingsOp

        return self._model(EMBEDDINGS, EmbeddingsOp, models, options)

    def rerank(self, *models: str, **options: Any) -> Callable[[_Target], _Target]:
        """The same for ``POST /v1/rerank``, as of Jina, Cohere and vLLM.

        Its parameters are ``query: str`` and ``documents: list[str]``, the whole request a
        ``RerankRequest``, and it returns the score of each document: a list, an array or
        ``RerankReply``.
        """
        from penstock.api.openai_calls import RERANK
        from penstock.typed.openai_op import RerankOp

        return self._model(RERANK, RerankOp, models, options)

    def _model(
        self,
        service: OpenAiService,
        kind: type[TypedOp],
        models: tuple[str, ...],
        options: dict[str, Any],
    ) -> Callable[[_Target], _Target]:
        from penstock.api.openai import ModelRoute
        from penstock.service.declared_route import DeclaredRoute

        if not models or not all(isinstance(each, str) and each for each in models):
            raise GraphError("a model has a name, such as @app.chat('tiny')")
        where = f"the model {models[0]!r}"
        _check_options(where, options, of_route=True, without=_NOT_OF_MODELS)
        posted = [each.path for each in self.routes if each.method == "POST"]
        if service.path in [*posted, *(each.path for each, _, _ in self._graphs)]:
            raise GraphError(f"another route of {self.name} is POST {service.path}")
        if options.get("executor") == "external":
            raise GraphError(f"{where}: external workers cannot run functions of OpenAI's routes")
        known = [
            name for each, _ in self._models if each.service is service for name in each.models
        ]
        for name in models:
            if [*known, *models].count(name) > 1:
                raise GraphError(
                    f"two functions of {self.name} are the model {name!r} at {service.path}"
                )
        declared = DeclaredRoute(
            path=service.path,
            method="POST",
            placeholders=(),
            batched=options.get("batch") is not None,
            external=False,
            given=words.read(where, options),
            status=200,
            answers={},
            examples=(),
            kind=kind,
        )

        def add(target: _Target) -> _Target:
            op = declared.op(target, self._lifespans)
            self._check_name(op.name)
            route = ModelRoute(
                service=service, models=models, graph=op.name, signature=op.signature
            )
            self._models.append((route, op))
            return target

        return add

    def lifespan(self, function: Callable[[], Iterator[_Value]]) -> Callable[[], Iterator[_Value]]:
        """Run code before the routes below it serve, and after: a generator that yields once.

        It runs in each process that runs one of them: the engine's process, and each worker
        process. A function, or the ``__init__`` of a class, with a parameter of the yielded type
        gets the value; callers do not see that parameter.

        Args:
            function: annotated with ``-> Iterator[Pool]``, with the type of the value, if any.

        Raises:
            HookError: it is no such function, or another one has a value of this type.
        """
        from penstock.typed.lifespan import Lifespan

        found = Lifespan(function)
        if found.type is not None and found.type in [each.type for each in self._lifespans]:
            raise HookError(f"two lifespans of {self.name} have values of the type {found.type}")
        self._lifespans = [*self._lifespans, found]
        return function

    def graph(
        self,
        path: str,
        last: Op,
        *,
        request: Any = None,
        response: Any = None,
        name: str | None = None,
        examples: Sequence[Any] = (),
        **options: Any,
    ) -> None:
        """Serve a graph of ops at a path: models, functions and typed functions.

        Args:
            path: such as ``/ensemble``.
            last: the op whose output dict is the answer. Ops without inputs get the request's dict.
            request: the type of requests, such as a pydantic model, whose members are the request's
                dict; None accepts any object.
            response: the type of answers, which the last op's dict must match; of each piece, if it
                yields.
            name: of the graph; the path's last part by default.
            examples: as for ``route``.
            options: configuration of its ops: ``op={"name": {...}}``, ``dag={...}``.

        Raises:
            GraphError: the path is no path, or another route has it, or its name.
            HookError: a type makes no schema, or an example is no plain value.
            ConfigError: an option is unknown.
        """
        _check_options(f"graph({path!r})", options)
        from penstock.api.plain import PlainRoute
        from penstock.service.declared_route import examples_of
        from penstock.typed.files import file_members
        from penstock.typed.signature import Schema

        if self._check_route(path):
            raise GraphError(f"the path of a graph has no placeholders, as {path} has")
        name = name or path.rpartition("/")[2]
        self._check_name(name)
        request_schema = None if request is None else Schema(request, f"{path}, request")
        if request_schema is not None:
            request_schema.check_packages(path)
        route = PlainRoute(
            path=path,
            graph=name,
            request=request_schema,
            response=None
            if response is None
            else Schema(response, f"{path}, response", of_answers=True),
            files=file_members(request),
            group=self.name,
            examples=examples_of(path, request_schema, examples),
        )
        self._graphs.append((route, last, options))

    def error(self, kind: type[BaseException], *, status: int, code: str | None = None) -> None:
        """Answer exceptions of a class, and of those derived from it, with an HTTP status.

        The caller gets the exception's text. Over gRPC the status is the nearest of its own. Of two
        classes that fit, the nearer one decides.

        Args:
            kind: a class of exceptions that functions and ops of this app raise.
            status: 400 to 599; from 500 on the exception is logged with its traceback.
            code: the error's code for programs; by default that of the status, such as
                ``not_found``.

        Raises:
            GraphError: it is no class of exceptions, or no status of an error.
        """
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise GraphError(f"app.error takes a class of exceptions, not {kind!r}")
        if issubclass(kind, RequestError):
            raise GraphError(f"app.error: {kind.__name__} has a status already")
        if type(status) is not int or status not in ERROR_STATUSES:
            raise GraphError(f"app.error: the status of an error is 400 to 599, not {status!r}")
        self._errors[kind] = status, code

    def middleware(self, middleware: Middleware) -> None:
        """Call code of one's own before and after every request over HTTP to a route of this app.

        Args:
            middleware: see ``Middleware``; the one that is added first is the outermost.

        Raises:
            GraphError: it is no object of a class derived from ``Middleware``.
        """
        from penstock.api.middleware import Middleware

        if not isinstance(middleware, Middleware):
            raise GraphError(
                "app.middleware takes an object of a class derived from penstock.Middleware, not"
                f" {middleware!r}; middleware for ASGI goes around an application that is mounted"
            )
        self._middleware.append(middleware)

    def mount(self, path: str, app: AsgiApp) -> None:
        """Serve an ASGI application, such as one of FastAPI or Starlette, below a path.

        It gets every request below the path, except those to a route of this app, and its lifespan:
        it starts before the service is ready and ends after the last request, once in each engine.
        The path is ``root_path`` of its scope. It runs on the engine's event loop, so it must not
        block. WebSockets are refused with 501.

        Args:
            path: such as ``/web``.
            app: the application.

        Raises:
            GraphError: the path is no such path, or another application has it.
        """
        from penstock.api.mount import problem_of

        problem = problem_of(path, app)
        if problem is None and path in (each for each, _ in self._mounts):
            problem = f"two applications are mounted at {path}"
        if problem is not None:
            raise GraphError(problem)
        self._mounts.append((path, app))

    def page(self, path: str, file: str | PathLike[str]) -> None:
        """Answer GET at a path with a file, such as a demo page.

        Args:
            path: such as ``/``.
            file: relative to the folder of the calling script.
        """
        from penstock.api.pages import Page

        folder = Path(inspect.stack()[1].filename).parent
        self._pages.append(Page(path, folder / file))

    def _check_route(self, path: Any, method: str = "POST") -> tuple[str, ...]:
        """Check a route's path and method; returns the names of its placeholders."""
        from penstock.api.path_pattern import PathPattern

        if not isinstance(path, str):  # a function under @app.route without brackets
            raise GraphError(f"@app.route needs a path, such as '/predict', got {path!r}")
        if method not in METHODS:
            raise GraphError(f"the method of {path} is one of {', '.join(METHODS)}, not {method!r}")
        try:
            pattern = PathPattern(path)
        except ValueError as error:
            raise GraphError(f"the path {path!r}: {error}") from error
        if not path.startswith("/") or "?" in path:
            raise GraphError(f"a route's path is such as '/predict', not {path!r}")
        for name in pattern.names:
            if not name.isidentifier():
                raise GraphError(f"the path {path!r}: {name!r} is no name of a parameter")
        if path.startswith("/{") and method == "POST":
            raise GraphError(
                f"POST {path} would take the calls of other protocols: begin it with a literal"
                f" segment, such as /items{path}"
            )
        others = [(each.path, each.method) for each in self.routes]
        others += [(graph[0].path, "POST") for graph in self._graphs]
        others += [(model.service.path, "POST") for model, _ in self._models]
        for other, its in others:
            found = PathPattern(other)
            if found.shape == pattern.shape and its == method:
                raise GraphError(
                    f"two routes of {self.name} are {method} {path}: give each a path of its own"
                )
            if found.shape == pattern.shape and found.names != pattern.names:
                raise GraphError(f"{other} and {path} are one path: name its placeholders alike")
        return pattern.names

    def _check_name(self, name: str) -> None:
        if name in [
            *(each.graph for each in self.routes),
            *(graph[0].graph for graph in self._graphs),
            *(model.graph for model, _ in self._models),
        ]:
            raise GraphError(f"two routes of {self.name} are called {name}: rename one")

    @property
    def services(self) -> list[WebService]:
        """Its graphs, one for each route.

        Raises:
            GraphError: there is no route.
        """
        graphs: list[tuple[str, str, str, str, Op, dict[str, Any]]] = [
            (
                route.method,
                route.path,
                route.graph,
                _shape_of(op),
                op,
                {},
            )
            for route, op in zip(self.routes, self._ops, strict=True)
        ]
        graphs += [
            ("POST", f"{each.service.path} ({each.models[0]})", each.graph, _shape_of(op), op, {})
            for each, op in self._models
        ]
        graphs += [
            ("POST", each.path, each.graph or "", _shape(each.request, each.response), last, more)
            for each, last, more in self._graphs
        ]
        if not graphs:
            raise GraphError(f"the app {self.name!r} has no routes: put @app.route(...) above one")
        if flags.current().check_only:
            self._check_requests()
        from penstock.api.openai import OpenAiApplication
        from penstock.api.pages import PageApplication
        from penstock.api.plain import PlainApplication
        from penstock.api.typed import TypedApplication

        plain = [route for route, _, _ in self._graphs]
        errors = [status for status, _ in self._errors.values()]
        models = [model for model, _ in self._models]
        routed: list[MakeApplication] = [
            partial(OpenAiApplication, routes=models, title=self.name),
            partial(
                TypedApplication,
                routes=self.routes,
                title=self.name,
                errors=errors,
            ),
            partial(PlainApplication, routes=plain, errors=errors),
        ]
        if self._middleware:
            routed = [partial(_with_middleware, each, self._middleware) for each in routed]
        applications: list[MakeApplication] = [
            *routed,
            lambda _: PageApplication(self._pages),
            *(partial(_mounted, path, app) for path, app in self._mounts),
            *self._applications,
        ]
        found: list[WebService] = []
        for method, path, name, shape, last, options in graphs:
            first = not found
            for op in _ops_until(last):
                op.error_statuses = self._errors
            found.append(
                _Route(
                    self.name,
                    method,
                    path,
                    shape,
                    name,
                    last,
                    instruments=self._instruments if first else (),
                    applications=applications if first else (),
                    **{**self._config, **options},
                )
            )
        return found

    def _check_requests(self) -> None:
        """Find what the start would: a missing package, and examples that are no valid requests.

        Raises:
            HookError: a line for each problem.
        """
        from penstock.protocols import media
        from penstock.typed.op import BODY, KIND

        problems = []
        for path, signature in [(each.models[0], each.signature) for each, _ in self._models]:
            try:
                signature.request.check_packages(path)
                signature.response.check_packages(path)
            except HookError as error:
                problems.append(str(error))
        for route in self.routes:
            signature = route.signature
            try:
                signature.request.check_packages(route.path)
                signature.response.check_packages(route.path)
            except HookError as error:
                problems.append(str(error))
                continue
            for number, (request, _) in enumerate(route.examples, 1):
                outside: dict[str, Any] = {}
                if signature.parameters is not None:
                    outside, request = signature.parameters.feed(request)
                body = media.encode(request, media.JSON)
                try:
                    signature.read({BODY: body, KIND: media.JSON, **outside}, body, media.JSON)
                except RequestError as error:
                    problems.append(f"route {route.path}: example {number} fails: {error}")
        if problems:
            raise HookError("\n".join(problems))

    @cached_property
    def asgi(self) -> AsgiApplication:
        """The app as an ASGI application, for another server, or to be mounted into another app."""
        return self._asgi(in_threads=False)

    async def __call__(
        self, scope: Mapping[str, Any], receive: Callable[..., Any], send: Callable[..., Any]
    ) -> None:
        """See ASGI: the app itself can be given to an ASGI server, such as ``uvicorn``."""
        await self.asgi(scope, receive, send)

    def for_tests(self) -> AsgiApplication:
        """The same application with every op in threads; see ``penstock.testing.client``."""
        return self._asgi(in_threads=True)

    def _asgi(self, *, in_threads: bool) -> AsgiApplication:
        from penstock.service.asgi import AsgiApplication
        from penstock.service.blueprint import deploy
        from penstock.service.in_process import InProcessService

        unserved.used()

        def embedded() -> InProcessService:
            services = self.services
            for each in services:
                each.prepare_beside({})
            graphs = [each.blueprint() for each in services]
            deployment = deploy(graphs)
            if deployment.has_op_versions:
                from penstock.service.op_models import with_op_models

                deployment = with_op_models(deployment)
            return InProcessService(deployment.in_threads() if in_threads else deployment)

        return AsgiApplication(embedded)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises:
            StartupError: the service cannot start.
        """
        run(self)


class _Route(Service):
    """The graph behind one route of an app."""

    def __init__(
        self,
        app: str,
        method: str,
        path: str,
        shape: str,
        name: str,
        last: Op,
        **more: Any,
    ) -> None:
        super().__init__(name, last, **more)
        self._app = app
        self._method = method
        self._path = path
        self._shape = shape

    @property
    def _written_in(self) -> str:
        return f"App({self._app!r}), route {self._path}"

    def blueprint(self, other_ops: Container[str] = ()) -> Blueprint:
        """See PipelineServer."""
        return replace(
            super().blueprint(other_ops),
            app=self._app,
            method=self._method,
            route=self._path,
            shape=self._shape,
        )


def _with_middleware(
    make: MakeApplication, chain: Sequence[Middleware], engine: Engine
) -> Application:
    from penstock.api.middleware import WithMiddleware

    return WithMiddleware(make(engine), chain)


def _mounted(path: str, app: AsgiApp, _engine: Engine) -> MountApplication:
    from penstock.api.mount import MountApplication

    return MountApplication(path, app)


def _ops_until(last: Op) -> set[Op]:
    """The ops of a graph, by its last one."""
    found: set[Op] = set()
    open_ = [last]
    while open_:
        op = open_.pop()
        if op not in found:
            found.add(op)
            open_ += op.get_input_ops()
    return found


def _shape_of(op: TypedOp) -> str:
    """The same of a typed function."""
    return _shape(op.signature, op.signature.response)


def _shape(request: Schema | Signature | None, response: Schema | None) -> str:
    """A route's request and answer types in one line."""
    from penstock.typed.outline import outline

    sides = [
        "anything" if each is None else outline(each.describe(refs="{model}"))
        for each in (request, response)
    ]
    return " -> ".join(sides)


_PARAMETERS = inspect.signature(App.route).parameters.values()
_OF_ROUTES = (
    *(each.name for each in _PARAMETERS if each.kind is each.KEYWORD_ONLY),
    *keys_of(OpConfig),
)
_OF_APPS = tuple(keys_of(ServiceConfig))


_NOT_OF_MODELS: Final = ("method", "status", "answers", "examples")
"""Options of routes that those of OpenAI do not have."""


def _check_options(
    where: str, given: Iterable[str], *, of_route: bool = False, without: Collection[str] = ()
) -> None:
    """Refuse unknown options; the error names the nearest known one."""
    if flags.current().lenient:
        return
    known, others, place = _OF_APPS, _OF_ROUTES, "@app.route(...)"
    if of_route:
        known, others, place = _OF_ROUTES, _OF_APPS, "App(...)"
    known = tuple(each for each in known if each not in without)
    problems = []
    for option in given:
        if option in known:
            continue
        from penstock.typed.foreign import OPTIONS_INSTEAD

        near = get_close_matches(option, known, n=1)
        hint = f"; did you mean {words.WORDS.get(near[0], near[0])}?" if near else ""
        if option in others:
            hint = f"; it is one of {place}"
        elif option in OPTIONS_INSTEAD:
            hint = f": {OPTIONS_INSTEAD[option]}"
        problems.append(f"{where}: {option} is not a known option{hint}")
    if problems:
        raise ConfigError(problems)
