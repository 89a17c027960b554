"""A client for tests of a service, in the same process and without a port.

    from penstock.testing import client

    with client(app) as http:
        assert http.post("/predict", json={"x": 1.5}).json() == 3.0
        assert [*http.pieces("/spell", json={"word": "ab"})] == ["a", "b"]

Engine, batching and workers are those of a running service, on an event loop in a separate thread.
Ops with process workers run in threads here. Needs the package ``httpx``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.errors import StartupError

if TYPE_CHECKING:
    from penstock.service.app import App
    from penstock.testing.http_client import HttpClient


@contextmanager
def client(app: App) -> Iterator[HttpClient]:
    """Start a service; yields an ``httpx.Client`` that sends requests to it.

    Its method ``pieces`` yields the pieces of an answer that comes in pieces, as values; its
    ``stream`` is that of every ``httpx.Client``.

    Args:
        app: an App, or another service with ``asgi``.

    Raises:
        StartupError: the service cannot start, or ``httpx`` is not installed.
    """
    try:
        from penstock.testing.http_client import HttpClient
    except ImportError as error:
        raise StartupError(
            "penstock.testing.client needs the package httpx:"
            " pip install 'penstock-serving[testing]'"
        ) from error

    application = app.for_tests()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="penstock-test-client", daemon=True)
    thread.start()

    def run(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    try:
        run(application.start())
        with HttpClient(application, loop) as http:
            yield http
    finally:
        run(application.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
