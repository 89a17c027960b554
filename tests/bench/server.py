"""An HTTP server in a thread, with a reply function of the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Behaviour = Callable[["Server", bytes], Awaitable[bytes | None]]
"""Gives the bytes of an answer for a request's head; None closes the connection."""


@dataclass
class Server:
    """The server's port and received requests.

    Attributes:
        requests: heads and bodies, in order.
    """

    port: int = 0
    requests: list[tuple[bytes, bytes]] = field(default_factory=list)

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.port}{path}"


def answer(body: bytes = b"{}", status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


async def answer_at_once(server: Server, head: bytes) -> bytes | None:
    return answer()


@contextmanager
def serving(
    behaviour: Behaviour = answer_at_once, *, status: bytes | None = None
) -> Iterator[Server]:
    """Run the server. ``GET /status`` is answered with ``status``, and not recorded."""
    server = Server()
    ready, loop = threading.Event(), asyncio.new_event_loop()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET /status "):
                    writer.write(answer(b"", 404) if status is None else answer(status))
                    continue
                size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                server.requests.append((head, await reader.readexactly(size)))
                found = await behaviour(server, head)
                if found is None:
                    break
                writer.write(found)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def main() -> None:
        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        server.port = listening.sockets[0].getsockname()[1]
        ready.set()
        await forever.wait()
        listening.close()

    forever = asyncio.Event()
    thread = threading.Thread(target=_run, args=(loop, main))
    thread.start()
    ready.wait(5)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(forever.set)
        thread.join(5)


def _run(loop: asyncio.AbstractEventLoop, main: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())  # type: ignore[arg-type]
