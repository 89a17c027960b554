"""``POST /reload``: runs the program of the service again, which then serves in place of the old
one. Answers when it does, or with the reason why nothing has changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import orjson

from penstock.admin.status import is_local
from penstock.api.descriptions import ERROR, errors
from penstock.api.errors import error_body, failed, refusal
from penstock.api.http import JSON as JSON_FIELD
from penstock.api.http import Http, HttpCall
from penstock.api.operation import Answer
from penstock.errors import StartupError
from penstock.protocols.media import JSON
from penstock.supervisor.client import SupervisorClient

_ONE_PROCESS = (
    "a service of one process cannot replace it while it serves: start it with"
    " penstock run --supervised, or with supervised: true"
)


class ReloadPage:
    """See the module. An application; see ``penstock.service.blueprint``.

    Args:
        supervisor: the client of the engine's supervisor; None without one.
        admitted: whether only operators reach it; else callers must be on this machine.
    """

    def __init__(self, supervisor: SupervisorClient | None, *, admitted: bool = False) -> None:
        self._supervisor = supervisor
        self._admitted = admitted

    def routes(self) -> Iterator[Http]:
        """Its routes."""
        local = "The caller is on another machine, or a proxy."
        done = {
            "type": "object",
            "required": ["seconds"],
            "properties": {"seconds": {"type": "number", "description": "How long it took."}},
        }
        yield Http(
            "POST",
            "/reload",
            self._answer,
            failed=failed,
            refusal=refusal,
            always=True,
            admin=True,
            summary="Run the program of the service again.",
            description="The new engines serve when all of them are ready. For callers on the same"
            " machine only.",
            group="Operation",
            answers={
                **errors(413, 415),
                200: Answer(text="The changed program serves.", contents={JSON: done}),
                403: Answer(text=local, contents={JSON: ERROR}),
                409: Answer(text="Nothing has changed.", contents={JSON: ERROR}),
            },
        )

    def _answer(self, call: HttpCall, body: bytes) -> None:
        if not self._admitted and not is_local(call, "the reload"):
            return
        if self._supervisor is None:
            call.send(error_body(409, "not_reloaded", _ONE_PROCESS))
            return
        call.aside(self._give(call, self._supervisor))

    @staticmethod
    async def _give(call: HttpCall, supervisor: SupervisorClient) -> None:
        began = time.monotonic()
        try:
            await supervisor.reload()
        except StartupError as error:
            call.send(error_body(409, "not_reloaded", str(error)))
            return
        body = orjson.dumps({"seconds": time.monotonic() - began})
        call.reply(200, (JSON_FIELD, (b"cache-control", b"no-store")), body)
