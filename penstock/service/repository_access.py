"""The way of every engine to the controller of the service's repositories.

One engine, the first, has the controller (``service/repository.py``). It answers the others, which
pass on what they are asked.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from penstock.engine.engine import Engine
from penstock.errors import HttpError, RequestError
from penstock.protocols.status import status_of
from penstock.service.repository import NO_CONTROL, Controller
from penstock.supervisor.queries import AllEngines

_log = logging.getLogger(__name__)

REPOSITORY: Final = "repository"
"""The query by which an engine asks the one with the controller."""

_LONGEST: Final = 86_400.0  # seconds in which a load must be over, for engines that pass it on
_LOOK: Final = 0.1  # seconds between two looks for the end of the first loads

_LONGEST_GAP: Final = 10.0  # seconds between two engines with the controller; a guess
_REPEATED: Final = ("index", "load", "unload")  # what may be done twice
_NOBODY: Final = "the engine that loads models is being replaced: try again later"


class FixedModels:
    """The models of a service that do not change (control mode ``none``), for its index; see
    ``api.oip_repository.Repository``.

    Args:
        engine: has them.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def index(self, *, ready: bool = False) -> list[dict[str, Any]]:
        """See ``Repository``."""
        rows = []
        for graph in self._engine.graphs:
            why = graph.why_stuck()
            if graph.name is not None and not (ready and why):
                state = "READY" if why is None else "UNAVAILABLE"
                row = {"name": graph.name, "version": graph.version, "state": state}
                rows.append({**row, "reason": why or ""})
        return rows

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """See ``Repository``."""
        raise HttpError(503, NO_CONTROL)

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """See ``Repository``."""
        raise HttpError(503, NO_CONTROL)

    async def update(self, name: str, wanted: Mapping[str, Any]) -> None:
        """See ``Repository``."""
        raise HttpError(503, NO_CONTROL)


class RepositoryOfService:
    """What every engine has: the controller, if it is the first one, else the way to it; see
    ``api.oip_repository.Repository``.

    Args:
        engines: those of the service.
        controller: of this engine; None in all but the first.
    """

    def __init__(self, engines: AllEngines, controller: Controller | None) -> None:
        self._engines = engines
        self._controller = controller
        self._is_ready = False
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to load what is wanted at the start; to be called when the engine serves."""
        if self._controller is not None:
            self._controller.start()
        else:
            self._watch = asyncio.get_running_loop().create_task(self._wait_until_ready())

    async def close(self) -> None:
        """End: from now on another engine has the controller, or none."""
        if self._watch is not None:
            self._watch.cancel()
        controller, self._controller = self._controller, None
        if controller is not None:
            self._is_ready = True  # this engine goes on to answer what was sent to it
            await controller.close()

    def why_unready(self) -> str | None:
        """Why requests are not accepted yet; None if they are."""
        if self._controller is not None:
            return self._controller.why_unready()
        return None if self._is_ready else "models are being loaded"

    async def _wait_until_ready(self) -> None:
        while not self._is_ready:
            await asyncio.sleep(_LOOK)
            with suppress(RequestError):
                self._is_ready = await self._ask("why_unready") is None

    async def answer(self, action: str, *arguments: Any) -> dict[str, Any] | None:
        """Answer an engine; None if this is not the one with the controller."""
        controller = self._controller
        if controller is None:
            return None
        actions: dict[str, Callable[..., Any]] = {
            "why_unready": controller.why_unready,
            "index": lambda ready: controller.index(ready=ready),
            "load": lambda name, sent: controller.load(name, _decoded(sent)),
            "unload": lambda name, also: controller.unload(name, unload_dependents=also),
            "update": controller.update,
        }
        try:
            value = actions[action](*arguments)
            return {"value": await value if isinstance(value, Awaitable) else value}
        except RequestError as error:
            return {"error": [status_of(error).http, str(error)]}
        except asyncio.CancelledError:
            if self._controller is controller:  # else it was closed, not this call
                raise
            return None
        except Exception as error:  # noqa: BLE001 - our bug: the other engine must not wait for ever
            _log.exception("what another engine or an operator asked cannot be done: %s", action)
            return {"error": [500, repr(error)]}

    async def _ask(self, action: str, *arguments: Any, seconds: float = 1.0) -> Any:
        """Ask the engine with the controller.

        Raises:
            HttpError: it refuses, or there is none now.
        """
        until: float | None = None
        while True:
            answers = await self._engines.ask(REPOSITORY, action, *arguments, seconds=seconds)
            found = next((each for each in answers if each is not None), None)
            if found is not None:
                break
            until = until or monotonic() + _LONGEST_GAP
            if action not in _REPEATED or monotonic() > until:
                raise HttpError(503, _NOBODY)
            await asyncio.sleep(_LOOK)
        if "error" in found:
            raise HttpError(*found["error"])
        return found["value"]

    async def index(self, *, ready: bool = False) -> list[dict[str, Any]]:
        """See ``Repository``."""
        rows: list[dict[str, Any]] = await self._ask("index", ready, seconds=30.0)
        return rows

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """See ``Repository``."""
        await self._ask("load", name, _encoded(parameters), seconds=_LONGEST)

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """See ``Repository``."""
        await self._ask("unload", name, unload_dependents, seconds=_LONGEST)

    async def update(self, name: str, wanted: Mapping[str, Any]) -> None:
        """See ``Repository``."""
        await self._ask("update", name, dict(wanted), seconds=_LONGEST)


def _encoded(parameters: Mapping[str, Any]) -> dict[str, list[str]]:
    """Parameters of a load as values of JSON."""
    return {
        name: ["base64", b64encode(value).decode()] if isinstance(value, bytes) else ["", value]
        for name, value in parameters.items()
    }


def _decoded(encoded: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    return {
        name: b64decode(value) if coding else value for name, (coding, value) in encoded.items()
    }
