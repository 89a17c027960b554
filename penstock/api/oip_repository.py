"""Triton's extension of the Open Inference Protocol for the model repository, over HTTP and gRPC.

``RepositoryIndex`` lists versions with their states, ``RepositoryModelLoad`` and
``RepositoryModelUnload`` answer when every engine has done it, or say why not. What Triton's
clients have no call for is one more route of ours, ``.../models/NAME/update``: labels, weights, the
default version, and a rollback.

The routes are for operators: on their port if there is one; with ``security`` for callers with the
scope of operators, else for callers on this machine.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import orjson
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from penstock.api.access import why_not_local
from penstock.api.application import Route
from penstock.api.grpc import Grpc, GrpcCall
from penstock.api.http import JSON, Http, HttpCall, Whole
from penstock.api.oip_call import failed, send_json
from penstock.api.oip_description import answers
from penstock.door.exchange import HttpReply
from penstock.errors import PackageError, PermissionDenied, RequestError
from penstock.protocols import media
from penstock.protocols import standard_messages as messages

EXTENSIONS: Final = ("model_repository", "model_repository(unload_dependents)")
GROUP: Final = "Model repository"

_FILE: Final = "file:"
_OBJECT: Final = {media.JSON: {"type": "object"}}
_ROWS: Final = {media.JSON: {"type": "array", "items": {"type": "object"}}}
_DONE: Final = {media.JSON: {"type": "object"}}

Parameters: TypeAlias = Mapping[str, Any]
"""The parameters of a load: ``config``, a text, and files, bytes, by ``file:VERSION/NAME``; of an
unload: ``unload_dependents``."""


class Repository(Protocol):
    """What the routes do; in every engine."""

    async def index(self, *, ready: bool = False) -> list[dict[str, Any]]:
        """The versions of all models, with ``name``, ``version``, ``state`` and ``reason``.

        Args:
            ready: only those that serve.

        Raises:
            RequestError: the repository cannot be asked now.
        """

    async def load(self, name: str, parameters: Parameters) -> None:
        """Load a model, or load it again; returns when every engine serves it.

        Raises:
            RequestError: it does not, with the reason; what served before still does.
        """

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unload all versions of a model; returns when its processes have ended.

        Raises:
            RequestError: it cannot be unloaded.
        """

    async def update(self, name: str, wanted: Mapping[str, Any]) -> None:
        """Change labels, weights or the default version of a model, or roll it back.

        Raises:
            RequestError: nothing has changed, with the reason.
        """


class RepositoryApplication:
    """The routes. Belongs to the engine's loop.

    Args:
        repository: does what they say.
        admitted: whether only operators reach them; else callers must be on this machine.
        of_ops: whether models may be called ``GRAPH/OP``, too.
    """

    def __init__(
        self, repository: Repository, *, admitted: bool = False, of_ops: bool = False
    ) -> None:
        self._repository = repository
        self._admitted = admitted
        self._models = ("{model}", *(("{graph}/{op}",) if of_ops else ()))

    def routes(self) -> Iterator[Route]:
        """What to serve."""
        for path in ("/v2/repository/index", "/v2/repository/{repository}/index"):
            yield self._http("POST", path, self._index, "The versions of all models.", _ROWS)
        # For commands, which a port for operators redirects.
        yield self._http(
            "GET", "/v2/repository/index", self._index, "The versions of all models.", _ROWS
        )
        for start in ("/v2/repository", "/v2/repository/{repository}"):
            for model in self._models:
                path = f"{start}/models/{model}"
                yield self._http("POST", f"{path}/load", self._load, "Load a model.", _DONE)
                yield self._http("POST", f"{path}/unload", self._unload, "Unload a model.", _DONE)
        summary = "Change a model's labels, weights or default version, or roll it back."
        for model in self._models:
            path = f"/v2/repository/models/{model}/update"
            yield self._http("POST", path, self._update, summary, _DONE)
        methods: dict[str, Callable[[Any], Awaitable[dict[str, Any]]]] = {
            "RepositoryIndex": self._grpc_index,
            "RepositoryModelLoad": self._grpc_load,
            "RepositoryModelUnload": self._grpc_unload,
        }
        for name, answer in methods.items():
            handler = partial(self._call, *messages.inference_messages(name), answer)
            yield Grpc(f"/{messages.INFERENCE}/{name}", handler, admin=True)

    def _http(
        self,
        method: str,
        path: str,
        answer: Callable[[HttpCall, Mapping[str, Any]], Awaitable[Any]],
        summary: str,
        contents: Mapping[str, Mapping[str, Any]],
    ) -> Http:
        handler: Whole = partial(self._handle, answer)
        return Http(
            method,
            path,
            handler,
            failed=failed,
            refusal=_refusal,
            admin=True,
            summary=summary,
            description="For operators only.",
            group=GROUP,
            request=_OBJECT if method == "POST" else {},
            bodiless=True,
            answers=answers(contents),
        )

    def _check_caller(self, call: HttpCall | GrpcCall) -> None:
        exchange = call.exchange
        if not self._admitted:
            why = why_not_local(exchange.peer.address, exchange.head)
            if why is not None:
                raise PermissionDenied(f"the model repository {why}, or for callers with a key")

    # Over HTTP.

    def _handle(
        self,
        answer: Callable[[HttpCall, Mapping[str, Any]], Awaitable[Any]],
        call: HttpCall,
        body: bytes,
    ) -> None:
        try:
            self._check_caller(call)
            members = _members(body)
        except RequestError as error:
            failed(call, error)
        else:
            call.aside(self._answer(answer, call, members))

    async def _answer(
        self,
        answer: Callable[[HttpCall, Mapping[str, Any]], Awaitable[Any]],
        call: HttpCall,
        members: Mapping[str, Any],
    ) -> None:
        try:
            value = await _whole(answer(call, members))
        except RequestError as error:
            failed(call, error)
        else:
            send_json(call, 200, {} if value is None else value)

    async def _index(self, call: HttpCall, members: Mapping[str, Any]) -> Any:
        if not isinstance(members.get("ready", False), bool):
            raise PackageError("ready must be true or false")
        return await self._repository.index(ready=members.get("ready", False))

    async def _load(self, call: HttpCall, members: Mapping[str, Any]) -> None:
        found: dict[str, str | bytes] = {}
        for name, value in _known_of_load(_parameters(members)).items():
            if not isinstance(value, str):
                how = ", of JSON: json.dumps(config)" if name == "config" else ""
                raise PackageError(f"parameter {name[:64]!r} must be a text{how}")
            if name.startswith(_FILE):
                try:
                    found[name] = base64.b64decode(value, validate=True)
                except binascii.Error as error:
                    raise PackageError(f"parameter {name[:64]!r} is no base64") from error
            else:
                found[name] = value
        await self._repository.load(_model(call), found)

    async def _unload(self, call: HttpCall, members: Mapping[str, Any]) -> None:
        also = _unload_dependents(_parameters(members))
        await self._repository.unload(_model(call), unload_dependents=also)

    async def _update(self, call: HttpCall, members: Mapping[str, Any]) -> None:
        await self._repository.update(_model(call), members)

    # Over gRPC.

    def _call(
        self,
        request_class: Any,
        response_class: Any,
        answer: Callable[[Any], Awaitable[dict[str, Any]]],
        call: GrpcCall,
        message: bytes,
    ) -> None:
        try:
            self._check_caller(call)
            request = request_class.FromString(message)
        except DecodeError:
            call.fail_with(PackageError("the bytes are not the method's message"))
        except RequestError as error:
            call.fail_with(error)
        else:
            call.aside(self._reply(call, answer(request), response_class))

    async def _reply(
        self, call: GrpcCall, answer: Awaitable[dict[str, Any]], response_class: Any
    ) -> None:
        try:
            response = ParseDict(await _whole(answer), response_class())
        except RequestError as error:
            call.fail_with(error)
        else:
            call.reply(response.SerializeToString())

    async def _grpc_index(self, request: Any) -> dict[str, Any]:
        rows = await self._repository.index(ready=request.ready)
        members = ("name", "version", "state", "reason")
        return {"models": [{key: each[key] for key in members} for each in rows]}

    async def _grpc_load(self, request: Any) -> dict[str, Any]:
        found = {name: _value(each) for name, each in request.parameters.items()}
        for name, value in _known_of_load(found).items():
            if not isinstance(value, bytes if name.startswith(_FILE) else str):
                kind = "bytes" if name.startswith(_FILE) else "a text"
                raise PackageError(f"parameter {name[:64]!r} must be {kind}")
        await self._repository.load(request.model_name, found)
        return {}

    async def _grpc_unload(self, request: Any) -> dict[str, Any]:
        found = {name: _value(each) for name, each in request.parameters.items()}
        also = _unload_dependents(found)
        await self._repository.unload(request.model_name, unload_dependents=also)
        return {}


def _model(call: HttpCall) -> str:
    """The model that a path names: its last placeholder, or those of a graph and its op."""
    return "/".join(call.values[-2:] if "{op}" in call.route.pattern else call.values[-1:])


async def _whole(answer: Awaitable[Any]) -> Any:
    """The answer; what was begun for a caller that disconnects is still done."""
    task = asyncio.ensure_future(answer)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved
        raise


def _members(body: bytes) -> Mapping[str, Any]:
    if not body:
        return {}
    try:
        members = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise PackageError(f"the body is no JSON: {error}") from error
    if not isinstance(members, dict):
        raise PackageError("the body is no JSON object")
    return members


def _parameters(members: Mapping[str, Any]) -> Mapping[str, Any]:
    found = members.get("parameters", {})
    if not isinstance(found, dict):
        raise PackageError("parameters must be an object")
    return found


def _value(parameter: Any) -> Any:
    kind = parameter.WhichOneof("parameter_choice")
    return None if kind is None else getattr(parameter, kind)


def _known_of_load(parameters: Parameters) -> Parameters:
    """The parameters of a load; others are refused, because the model would not be what was
    asked for.
    """
    for name in parameters:
        if name != "config" and not name.startswith(_FILE):
            raise PackageError(f"a load has no parameter {name[:64]!r}: write config or file:...")
    return parameters


def _unload_dependents(parameters: Parameters) -> bool:
    for name in parameters:
        if name != "unload_dependents":
            raise PackageError(f"an unload has no parameter {name[:64]!r}")
    found = parameters.get("unload_dependents", False)
    if not isinstance(found, bool):
        raise PackageError("unload_dependents must be true or false")
    return found


def _refusal(status: int, text: str) -> HttpReply:
    return HttpReply(status, (JSON,), orjson.dumps({"error": text}), close=True)
