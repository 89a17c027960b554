"""Service scripts for tests, in the users' style: no ``__main__`` guard, run at the end."""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.services.process import ServiceProcess, direct

NAME = "work"
"""The name of the service of ``script``."""
PYTHON = (sys.executable,)
PENSTOCK = (sys.executable, "-m", "penstock", "run")

ECHO = """
import threading, time
from penstock import Op, PipelineServer, RequestOp, ResponseOp, WebService

class WorkOp(Op):
{hooks}

class Work(WebService):
    def get_pipeline_response(self, read_op):
        return WorkOp("work", input_ops=[read_op])

{before}
service = Work("work")
service.prepare_pipeline_config(yml_dict={{"rpc_port": 9, "http_port": 9, {config}}})
service.run_service()
print("after the service")
"""


def script(
    folder: Path,
    hooks: str = "pass",
    config: str = "",
    before: str = "",
    text: str = ECHO,
    name: str = "service.py",
) -> Path:
    """Writes a script. Its op is ``WorkOp`` with these hooks; its ports come from the
    environment."""
    lines = "\n".join(f"    {line}" for line in hooks.strip("\n").splitlines())
    path = folder / name
    filled = text.format(hooks=lines, config=config, before=before)
    path.write_text(filled.replace('"rpc_port": 9, "http_port": 9', '"rpc_port": 0'))
    return path


class Answer:
    """An HTTP response."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> dict[str, Any]:
        """The decoded body."""
        value: dict[str, Any] = json.loads(self.body)
        return value


def post(server: ServiceProcess, name: str = NAME, timeout: float = 30, **pairs: str) -> Answer:
    """Sends one prediction request over HTTP."""
    body = json.dumps({"key": list(pairs), "value": list(pairs.values())}).encode()
    return fetch(f"{server.http_url}/{name}/prediction", body, timeout)


def fetch(url: str, body: bytes | None = None, timeout: float = 30) -> Answer:
    """Sends one HTTP request; error statuses are returned too."""
    return _answered(urllib.request.Request(url, data=body), timeout)


def fetch_as(url: str, body: bytes | None = None, **headers: str) -> Answer:
    """The same with header fields; ``_`` in their names stands for ``-``."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return _answered(urllib.request.Request(url, body, named), 30)


def _answered(request: urllib.request.Request, timeout: float) -> Answer:
    try:
        with direct.open(request, timeout=timeout) as reply:
            return Answer(reply.status, dict(reply.headers), reply.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, dict(error.headers), error.read())


class BackgroundCall:
    """A call that runs in its own thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._result = error

    @property
    def is_over(self) -> bool:
        """Whether it has returned."""
        return not self._thread.is_alive()

    def result(self, timeout: float = 30) -> Any:
        """The call's result; raises the call's exception."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "still running"
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


def until(true: Callable[[], object], what: str, timeout: float = 40) -> None:
    """Waits until ``true()`` is true."""
    pause = threading.Event()
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout} s"
        pause.wait(0.01)
