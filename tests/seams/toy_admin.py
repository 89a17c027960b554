"""An application that changes the version of a graph."""

from __future__ import annotations

import json
import os
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

from penstock.api.http import Http, HttpCall
from penstock.engine.engine import Engine
from penstock.errors import StartupError
from penstock.repository.served import Served


class Admin:
    """``POST /swap`` with a version's description answers when every engine serves it; ``POST
    /change`` with a name, the name of a function of ``Served`` and its arguments, when every engine
    has changed.

    The file ``asked`` has the pid of the engine that was asked.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> Iterator[Http]:
        yield Http("POST", "/swap", self._swap, summary="Swap.")
        yield Http("POST", "/change", self._change, summary="Change.")

    def _swap(self, call: HttpCall, body: bytes) -> None:
        Path("asked").write_text(str(os.getpid()))
        assert self._engine.versions is not None
        call.aside(self._answer(call, self._engine.versions.swap(json.loads(body))))

    def _change(self, call: HttpCall, body: bytes) -> None:
        name, function, *arguments = json.loads(body)

        def update(state: Served | None) -> Served:
            changed: Served = getattr(state or Served(name=name), function)(*arguments)
            return changed

        assert self._engine.versions is not None
        call.aside(self._answer(call, self._engine.versions.change(name, update, ended=True)))

    async def _answer(self, call: HttpCall, change: Coroutine[Any, Any, None]) -> None:
        try:
            await change
        except StartupError as error:
            call.reply(409, (), str(error).encode())
        else:
            call.reply(200, (), b"")
