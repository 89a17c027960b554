"""Runs a server script as a process of its own: start, wait until ready, stop, collect the log.

    with running(script) as server:
        urlopen(f"{server.http_url}/uci/prediction", ...)
        assert server.stop() == 0

Every process started here has ended when the ``with`` block ends, normally or by an exception.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil

ROOT = Path(__file__).parents[2]
ECHO = Path(__file__).with_name("echo.py")
"""The script of the echo service."""
LOG_TAIL_LINES = 60
KEPT = 2.0
"""Seconds for which a test's client keeps an idle connection. The ``keep_alive`` of a service is
5 s, and half a second more than that of httpx: on a busy machine a request could be sent just while
the service closes the connection."""

# The kernel's ephemeral ports for outgoing connections begin at 32768 (Linux's default), so a port
# below stays free between being chosen here and being bound by the server.
FIRST_PORT, END_OF_PORTS = 15_000, 32_000
_handed_out: set[int] = set()

# Never through a proxy: the servers are on this machine.
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServiceFailed(AssertionError):
    """The process did not become ready or did not exit in time; the text ends with its log."""


def candidate_ports(environment: Mapping[str, str]) -> range:
    """The ports to choose from; the workers of pytest-xdist have disjoint sets."""
    worker = int(environment.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(environment.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return range(FIRST_PORT + worker, END_OF_PORTS, workers)


def free_port() -> int:
    """A port without a listener, never the same one twice in a test run."""
    candidates = candidate_ports(os.environ)
    for _ in range(200):
        port = random.choice(candidates)
        if port not in _handed_out and _can_bind(port):
            _handed_out.add(port)
            return port
    raise RuntimeError(f"no free port found in {candidates}")


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


class ServiceProcess:
    """One started server process; ``running`` creates it.

    Attributes:
        http_port: the HTTP port it was given.
        rpc_port: the gRPC port it was given.
        pid: of the started process; its workers are its descendants.
    """

    def __init__(
        self, command: Sequence[str], cwd: Path, environment: Mapping[str, str], log: IO[bytes]
    ) -> None:
        self.http_port = free_port()
        self.rpc_port = free_port()
        self._log = log
        self._descendants: set[psutil.Process] = set()
        self._process = subprocess.Popen(
            command,
            cwd=cwd,
            env=_clean_environment()
            | {
                "PENSTOCK_HTTP_PORT": str(self.http_port),
                "PENSTOCK_RPC_PORT": str(self.rpc_port),
            }
            | dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # A process group of its own, so that it can be killed without killing the tests.
            start_new_session=True,
        )
        self.pid = self._process.pid

    def __repr__(self) -> str:
        code = self._process.returncode
        state = "running" if code is None else f"exit {code}"
        return f"<ServiceProcess {self.pid} http={self.http_port} rpc={self.rpc_port} {state}>"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def rpc_endpoint(self) -> str:
        return f"127.0.0.1:{self.rpc_port}"

    def log(self) -> str:
        """The output of the process and its children so far, both streams together."""
        return Path(self._log.name).read_text(errors="replace")

    def is_ready(self) -> bool:
        """Whether ``/readyz`` currently answers 200."""
        try:
            with direct.open(f"{self.http_url}/readyz", timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):  # HTTPError, refused, reset, timed out
            return False

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Return when ``/readyz`` answers 200.

        Raises:
            ServiceFailed: it exited first, or was not ready within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while not self.is_ready():
            self._descendants.update(_listed_descendants(self.pid))
            # Waiting for the exit is also the pause between two requests to /readyz.
            code = self._exit_code_within(0.05)
            if code is not None:
                raise ServiceFailed(self._failure(f"exited with {code} before it was ready"))
            if time.monotonic() > deadline:
                raise ServiceFailed(self._failure(f"not ready within {timeout} s"))

    def wait_exit(self, timeout: float = 30.0) -> int:
        """The exit status; negative for a signal.

        Raises:
            ServiceFailed: it was still running after ``timeout`` seconds.
        """
        self._record_descendants()
        code = self._exit_code_within(timeout)
        if code is None:
            raise ServiceFailed(self._failure(f"still running after {timeout} s"))
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to the started process only, as an operator or a container would."""
        self._record_descendants()
        self._process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM, timeout: float = 30.0) -> int:
        """Send the signal and return the exit status of ``wait_exit``."""
        self.send_signal(number)
        return self.wait_exit(timeout)

    def descendants(self) -> list[psutil.Process]:
        """Its living children, grandchildren and so on."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def memory(self) -> int:
        """Bytes of private and shared memory of the process and its descendants.

        Pages that they share with each other count once; pages of files do not count, because their
        share depends on which other processes have the same libraries open.
        """
        total = 0
        for pid in (self.pid, *(child.pid for child in self.descendants())):
            with suppress(FileNotFoundError, ProcessLookupError):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    name, _, value = line.partition(":")
                    if name in ("Pss_Anon", "Pss_Shmem"):
                        total += int(value.split()[0]) * 1024
        return total

    def leftovers(self, timeout: float = 5.0) -> list[psutil.Process]:
        """Descendants still alive ``timeout`` seconds after the process has ended."""
        _, alive = psutil.wait_procs(self._descendants, timeout=timeout)
        return alive

    def close(self) -> None:
        """Kill and reap the process and its descendants; does nothing when they have ended."""
        self._record_descendants()
        if self._process.poll() is None:
            # The whole group, while its leader is unreaped and its pid cannot be reused.
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for process in self._descendants:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(self._descendants, timeout=10)

    def _exit_code_within(self, timeout: float) -> int | None:
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def _record_descendants(self) -> None:
        # When the parent has ended, its children can no longer be found.
        self._descendants.update(self.descendants())

    def _failure(self, event: str) -> str:
        lines = self.log().splitlines()[-LOG_TAIL_LINES:]
        return "\n".join([f"{self!r}: {event}; its log ends with:", *lines])


def _listed_descendants(pid: int) -> set[psutil.Process]:
    """Its descendants that the kernel lists by parent.

    A hundred times cheaper than ``descendants``, which reads every process of the machine. The list
    may lack a process while another one ends.
    """
    found: set[psutil.Process] = set()
    with suppress(OSError, psutil.NoSuchProcess):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found |= {psutil.Process(int(child)), *_listed_descendants(int(child))}
    return found


def _clean_environment() -> dict[str, str]:
    """The tests' environment without settings of penstock and proxies, and with a log as text.

    This checkout comes first on the path, so that a second checkout tests itself and not the
    installed one.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PENSTOCK_") and not name.lower().endswith("_proxy")
    }
    path = [str(ROOT), *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {
        "PENSTOCK_LOG_FORMAT": "text",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(path),
    }


@contextmanager
def running(
    script: Path,
    *arguments: str,
    command: Sequence[str] = (sys.executable,),
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    ready: bool = True,
    timeout: float = 60.0,
) -> Iterator[ServiceProcess]:
    """Start a server script, wait until it is ready, and end it at the end of the block.

    Args:
        script: the server script.
        *arguments: what follows the script on the command line.
        command: what comes before it; ``(sys.executable, "-m", "penstock", "run")`` for the CLI.
        cwd: working directory; the script's folder when absent.
        environment: variables added last, so that they can replace the ports given here.
        ready: False to return at once, for services that are expected not to start.
        timeout: seconds for getting ready.

    Raises:
        ServiceFailed: the service did not get ready.
    """
    with tempfile.NamedTemporaryFile(prefix="service-", suffix=".log") as log:
        server = ServiceProcess(
            [*command, str(script), *arguments], cwd or script.parent, environment or {}, log
        )
        try:
            if ready:
                server.wait_ready(timeout)
            yield server
        finally:
            server.close()
