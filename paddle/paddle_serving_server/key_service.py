"""``serve --use_encryption_model``: receives the model's key from a client, then serves the model.

A client on this machine posts ``{"key": "<base64>"}`` to ``--port``. The response is the port of
the model server, ``{"endpoint_list": [port]}``, or an error, ``{"message": "…"}``. The key is kept
in memory only. Later clients get the same response for the same key.
"""

import hmac
import http.client
import json
import os
import signal
import socket
import sys
from base64 import b64decode
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import FrameType
from typing import Any, ClassVar, Final

from penstock.errors import StartupError
from penstock.service.model_server import DEFAULT_PORT
from penstock.service.serve_flags import parse, parser
from penstock.supervisor.child_processes import Child, ends_within, fork
from penstock_paddle import DEFAULTS

_ON: Final = ("--hot_loading=true",)  # as in ``serve``
_HOST: Final = "127.0.0.1"  # loopback only: the key is sent in plain text
_FIRST_PORT: Final = 12000  # the original's
_MAX_REQUEST: Final = 4096  # bytes
_REQUEST_TIMEOUT: Final = 10.0  # seconds for receiving a request
_POLL_INTERVAL: Final = 0.05  # seconds between two checks of a starting server
_STOP_TIMEOUT: Final = 40.0  # seconds until a stopped server is killed; longer than its drain
_FAILED: Final = "start serving failed"


class KeyService:
    """Starts the model server when it receives the key, and returns its port.

    Args:
        arguments: flags of ``penstock serve``.
        first_port: the lowest port for the model server.

    Thread: starting the server forks, so no other thread may run.
    """

    def __init__(self, arguments: Sequence[str], first_port: int) -> None:
        self._arguments = arguments
        self._first_port = first_port
        self._key = b""
        self._port = 0
        self._child: Child | None = None

    def answer(self, body: bytes) -> dict[str, Any]:
        """Return the response to a request with this body."""
        try:
            key = b64decode(json.loads(body)["key"], validate=True)
        except (ValueError, KeyError, TypeError):
            return {"message": f'{_FAILED}: send {{"key": "<the key in base64>"}}'}
        if self._child is not None and not ends_within(self._child.pidfd, 0.0):
            if hmac.compare_digest(self._key, key):
                return {"endpoint_list": [self._port]}
            return {"message": f"{_FAILED}: the model is served with another key"}
        self.close()
        self._key, self._port = key, _free_port(self._first_port)
        self._child = self._start()
        if _is_ready(self._port, self._child):
            return {"endpoint_list": [self._port]}
        return {"message": f"{_FAILED}: the server's log says why"}

    def close(self) -> None:
        """Stop the model server, if it runs."""
        child, self._child = self._child, None
        if child is None:
            return
        child.signal(signal.SIGTERM)
        if not ends_within(child.pidfd, _STOP_TIMEOUT):
            child.kill()
        child.reap()

    def _start(self) -> Child:
        holder = os.memfd_create("key", 0)
        try:
            os.write(holder, self._key)
            own = ["--port", str(self._port), "--encryption_key", f"/proc/self/fd/{holder}"]
            serve = [sys.executable, "-P", "-m", "penstock", "serve", *_ON, *self._arguments, *own]

            environment = {f"PENSTOCK_{key.upper()}": str(each) for key, each in DEFAULTS.items()}

            def main() -> int:
                os.execve(serve[0], serve, environment | os.environ)  # noqa: S606 - without a shell

            return fork("model server", main, lambda: None, stoppable=True, spawns=True)
        finally:
            os.close(holder)


class _Handler(BaseHTTPRequestHandler):
    """Handles requests to the key service, one at a time."""

    service: ClassVar[KeyService]
    timeout = _REQUEST_TIMEOUT

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MAX_REQUEST:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        answer = json.dumps(self.service.answer(self.rfile.read(int(length)))).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: the model server has a log of its own."""


class _Stopped(BaseException):
    """SIGTERM or SIGINT was received."""


def run(arguments: Sequence[str]) -> int:
    """Serve requests with keys until SIGTERM or SIGINT. Returns the exit status."""
    try:
        given = parser().parse_args([*arguments])
        parse([*arguments, "--encryption_key", os.devnull], DEFAULTS)  # all other flags
    except StartupError as error:
        print(error, file=sys.stderr)
        return 1
    port = DEFAULT_PORT if given.port is None else given.port
    service = KeyService(arguments, int(given.encryption_rpc_port or _FIRST_PORT))
    handler = type("Handler", (_Handler,), {"service": service})
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        with HTTPServer((_HOST, port), handler) as server:
            print(
                f"waits for the model's key at http://{_HOST}:{server.server_port}/,"
                " from clients on this machine",
                flush=True,
            )
            server.serve_forever()
    except OSError as error:
        print(f"port {port}: {error.strerror}", file=sys.stderr)
        return 1
    except _Stopped:
        service.close()
    return 0


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Stopped


def _free_port(first: int) -> int:
    for port in range(first, 65536):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"no port from {first} on is free")


def _is_ready(port: int, child: Child) -> bool:
    """Wait until the server is ready. Returns False if it exits instead."""
    while not ends_within(child.pidfd, _POLL_INTERVAL):
        connection = http.client.HTTPConnection(_HOST, port, timeout=_REQUEST_TIMEOUT)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == HTTPStatus.OK:
                return True
        except (OSError, http.client.HTTPException):
            continue
        finally:
            connection.close()
    return False
