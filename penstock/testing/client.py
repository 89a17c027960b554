"""A client for tests of a service, in the same process and without a port.

    from penstock.testing import client

    with client(app) as http:
        assert http.post("/predict", json={"x": 1.5}).json() == 3.0

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
    import httpx

    from penstock.service.app import App


@contextmanager
def client(app: App) -> Iterator[httpx.Client]:
    """Start a service; yields an ``httpx.Client`` that sends requests to it.

    Args:
        app: an App, or another service with ``asgi``.

    Raises:
        StartupError: the service cannot start, or ``httpx`` is not installed.
    """
    try:
        import httpx
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

    inner = httpx.ASGITransport(application, raise_app_exceptions=True)

    class _Transport(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            return run(_exchange(request))  # type: ignore[no-any-return]

    async def _exchange(request: httpx.Request) -> httpx.Response:
        body = request.read()
        forwarded = httpx.Request(
            request.method, request.url, headers=request.headers, content=body
        )
        answer = await inner.handle_async_request(forwarded)
        content = b"".join([piece async for piece in answer.aiter_raw()])
        return httpx.Response(answer.status_code, headers=answer.headers, content=content)

    try:
        run(application.start())
        with httpx.Client(transport=_Transport(), base_url="http://service") as http:
            yield http
    finally:
        run(application.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
