"""The actor on a node of the cluster: starts one worker as its child process, and tells its end.

The worker is a process of its own, and not the actor's, because it is executed anew: Ray's threads
and its replaced signal handlers are not in it. It ends with the actor.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from penstock.executors.elsewhere.opening import Opening
from penstock.executors.elsewhere.relay import Relay
from penstock.version import VERSION

_COMMAND = (sys.executable, "-P", "-m", "penstock.executors.elsewhere", "--with-parent")
_VARIABLES: Final = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
"""Of the worker: what it prints is not lost with it, and a crash leaves its stack."""
_LAST_OUTPUT: Final = 5.0  # seconds to send the last of what the worker wrote


class Host:
    """See the module. Its methods run in several threads, each is called once.

    Args:
        version: of the engine's Penstock.
        leave: ends this process, if the engine does not.
        linger: seconds after the worker's end until then.
    """

    def __init__(
        self, version: str, leave: Callable[[], object] | None = None, linger: float = 60.0
    ) -> None:
        if version != VERSION:
            raise RuntimeError(f"the node has Penstock {VERSION}, the service {version}")
        self._process: subprocess.Popen[bytes] | None = None
        self._started, self._ended = threading.Event(), threading.Event()
        self._how = ""
        self._leave = leave or _leave
        self._linger = linger

    def begin(self, opening: str, folder_is_here: bool) -> dict[str, Any]:
        """Start the worker; returns ``where`` it runs, for messages, and its ``node``.

        Args:
            opening: what it reads.
            folder_is_here: whether its program is in the actor's working directory, instead of the
                folder that it has on the engine's machine.

        Raises:
            OSError: it cannot be started, or would not reach its engine.
        """
        given = Opening.decode(opening.encode())
        if folder_is_here:
            given = replace(given, program=replace(given.program, folder=os.getcwd()))
        node = _node()
        try:
            relay = Relay(given)
        except OSError as error:
            engine = f"{given.host}:{given.port}"
            raise OSError(
                f"{_called(node)} cannot connect to the service at {engine}: {error}"
            ) from None
        # The kernel ends the child together with the thread that started it.
        threading.Thread(target=self._run, args=(given.encode(), node, relay), daemon=True).start()
        self._started.wait()
        if self._process is None:
            raise OSError(self._how)
        return {"where": f"{_called(node)}, pid {self._process.pid}", "node": node}

    def wait(self) -> str:
        """Wait for the worker's end; returns how it ended."""
        self._ended.wait()
        return self._how

    def kill(self) -> None:
        """End the worker now."""
        if self._process is not None:
            self._process.kill()

    def _run(self, opening: bytes, node: dict[str, str], relay: Relay) -> None:
        command = [*_COMMAND, str(os.getpid())]
        output, written = os.pipe()
        try:
            self._process = process = subprocess.Popen(  # noqa: S603 - the command is ours
                command,
                stdin=subprocess.PIPE,
                stdout=written,
                stderr=written,
                env={**os.environ, **_VARIABLES},
            )
        except OSError as error:
            self._how = str(error)
            os.close(output)
            relay.finish(0.0)
            return
        finally:
            os.close(written)
            self._started.set()
        relay.begin(f"{_called(node)}, pid {process.pid}", output)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(opening)
        self._how = _how_it_ended(process.wait())
        relay.finish(_LAST_OUTPUT)  # before the engine is told of the end
        self._ended.set()
        # The engine ends the actor, if it can: a node that was cut off does not hear of it.
        time.sleep(self._linger)
        self._leave()


def _node() -> dict[str, str]:
    import ray

    node = ray.get_runtime_context().get_node_id()
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return {"id": node[:8], "address": address, "host": socket.gethostname()}


def _called(node: dict[str, str]) -> str:
    return f"node {node['id']} at {node['address']}"


def _leave() -> None:
    """End this process, so that Ray can give its place to others."""
    signal.raise_signal(signal.SIGKILL)


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
