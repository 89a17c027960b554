"""One service for each module that uses it, with limits that are quickly reached."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hostile.bad_requests import MOST_BYTES
from tests.kit import http1, http2
from tests.services.process import ServiceProcess, running

SERVICE = Path(__file__).with_name("service.py")
LIMITS = {
    "PENSTOCK_MAX_MESSAGE_BYTES": str(MOST_BYTES),
    "PENSTOCK_HEADER_TIMEOUT": "1",
    "PENSTOCK_BODY_TIMEOUT": "1",
    "PENSTOCK_MAX_CONNECTIONS": "32",
}


def check_good(service: ServiceProcess) -> None:
    """Good requests on both ports are answered with the values that they sent."""
    http1.check_good(service.http_port)
    http2.check_good(service.rpc_port)


@contextmanager
def hostile_service(pipe: Path, **settings: str) -> Iterator[ServiceProcess]:
    """The service; ``settings`` are keys of its configuration.

    Raises:
        AssertionError: it did not exit with 0, or its log has an internal error.
    """
    os.mkfifo(pipe)
    os.mkfifo(f"{pipe}2")
    environment = LIMITS | {"HOSTILE_PIPE": str(pipe)}
    environment |= {f"PENSTOCK_{key.upper()}": value for key, value in settings.items()}
    with running(SERVICE, environment=environment) as server:
        yield server
        if server.is_ready():
            server.stop()
        assert server.wait_exit() == 0
        assert "please report this" not in server.log()


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "hold"


@pytest.fixture(scope="module")
def service(pipe: Path) -> Iterator[ServiceProcess]:
    with hostile_service(pipe) as server:
        yield server
