"""A Redis of this machine, Debian's; it may be stopped, killed, and started again, empty."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from tests.peers.programs import program
from tests.services.process import free_port

START_SECONDS = 30.0


class RedisServer:
    """See the module. It keeps nothing on disk.

    Args:
        folder: its working directory.
        options: of its command line, such as ``"--maxmemory", "2mb"``.

    Attributes:
        port: the same after a new start.
    """

    def __init__(self, folder: Path, *options: str, tls: tuple[Path, Path] | None = None) -> None:
        self.port = free_port()
        self._tls = tls
        plain = ["--port", str(self.port)]
        if tls is not None:
            files = ["--tls-cert-file", str(tls[0]), "--tls-key-file", str(tls[1])]
            plain = ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no"]
            plain += [*files, "--tls-ca-cert-file", str(tls[0])]
        kept = ["--save", "", "--appendonly", "no", "--dir", str(folder)]
        self._command = [program("redis-server"), "--bind", "127.0.0.1", *plain, *kept, *options]
        self._log = folder / "redis.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"{'redis' if self._tls is None else 'rediss'}://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> redis.Redis:
        if self._tls is not None:
            options |= {"ssl": True, "ssl_ca_certs": str(self._tls[0])}
        return redis.Redis(port=self.port, protocol=2, **options)

    def start(self) -> None:
        """Start it, with the same port and options."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        until = time.monotonic() + START_SECONDS
        with self.client(socket_timeout=START_SECONDS) as client:
            while True:
                try:
                    client.ping()
                except redis.AuthenticationError:
                    return
                except redis.ConnectionError:
                    assert time.monotonic() < until, self._log.read_text()
                    assert self._process.poll() is None, self._log.read_text()
                    time.sleep(0.01)
                else:
                    return

    def kill(self) -> None:
        """End it at once, with all it has."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)

    def stop(self) -> None:
        """Let it answer nothing, as if it had hung."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """End ``stop``."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def redis_server(
    folder: Path, *options: str, tls: tuple[Path, Path] | None = None
) -> Iterator[RedisServer]:
    """Start one, and end it."""
    server = RedisServer(folder, *options, tls=tls)
    try:
        yield server
    finally:
        server.kill()
