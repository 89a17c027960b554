"""An application that changes the version of a graph."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from penstock.api.http import Http, HttpCall
from penstock.engine.engine import Engine
from penstock.errors import StartupError


class Admin:
    """``POST /swap`` with a version's description answers when every engine serves it.

    The file ``asked`` has the pid of the engine that was asked.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> Iterator[Http]:
        yield Http("POST", "/swap", self._swap, summary="Swap.")

    def _swap(self, call: HttpCall, body: bytes) -> None:
        Path("asked").write_text(str(os.getpid()))
        call.aside(self._answer(call, json.loads(body)))

    async def _answer(self, call: HttpCall, description: dict[str, str]) -> None:
        assert self._engine.versions is not None
        try:
            await self._engine.versions.swap(description)
        except StartupError as error:
            call.reply(409, (), str(error).encode())
        else:
            call.reply(200, (), b"")
