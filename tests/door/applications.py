"""Small applications for a door, controlled by the request's path."""

from __future__ import annotations

import threading
import time
from typing import Any

from penstock.door.exchange import Exchange, Receiver

TEXT = ((b"content-type", b"text/plain"),)
PIECE = 16 << 10


class Planted(Exception):
    """An error of the application, on purpose."""


class EchoApplication:
    """Answers by the path.

    /echo        the body
    /size        how many bytes the body has
    /refuse      404, from the head alone
    /hold        nothing, until ``release_held``
    /later       the body, in a later turn of the loop
    /large/N     N bytes in one piece
    /stream/N    N pieces of 16 KiB, with back-pressure
    /flood/N     N pieces without back-pressure
    /duplex      each piece of the body when it is received
    /count       the body's length, which is taken from the budget
    /lazy        pauses the sender after the first piece, until ``release_held``
    /patient     the body, without a timeout
    /soon        the body, if it is received within 0.1 s
    /own         the body; if it is late, the application's own answer
    /probe       the body, even over the limit of open requests
    /raise       fails at the head; /raise/body at the body; /raise/gone at a disconnect
    /begun       fails after the answer has begun
    /broken      aborts its answer
    /trailers    a streamed answer with trailers; /sum has it in one piece
    /peer        the client's address and port
    """

    def __init__(self) -> None:
        self.loop: Any = None
        self.gone = threading.Semaphore(0)
        self.began = threading.Semaphore(0)
        self.arrived = threading.Semaphore(0)
        self.late_count = 0
        self.sent = 0
        self.holding: list[Exchange] = []
        self.begun: list[str] = []

    def begin(self, exchange: Exchange) -> Receiver | None:
        path = exchange.head.path.decode()
        self.begun.append(path)
        if exchange.over_limit and path != "/probe":
            exchange.reply(503, TEXT, b"too many")
            return None
        if path == "/refuse":
            exchange.reply(404, TEXT, b"no")
            return None
        if path == "/raise":
            raise Planted(path)
        exchange.state = []
        exchange.on_gone = lambda: self._disconnected(path)
        if path == "/patient":
            exchange.body_deadline = float("inf")
        if path == "/soon":
            exchange.deadline = time.monotonic() + 0.1
        if path == "/duplex":
            exchange.start(200, TEXT)
        self.began.release()
        return self

    def _disconnected(self, path: str) -> None:
        self.gone.release()
        if path == "/raise/gone":
            raise Planted(path)

    def data(self, exchange: Exchange, piece: bytes, ended: bool) -> None:
        path = exchange.head.path.decode()
        self.arrived.release()
        if path == "/raise/body":
            raise Planted(path)
        if path == "/duplex":
            if piece:
                exchange.send(piece)
            if ended:
                exchange.finish()
            return
        if path == "/count":
            exchange.take(len(piece))
        if path == "/lazy" and not exchange.state:
            exchange.pause()
            self.holding.append(exchange)
        exchange.state.append(piece)
        if ended:
            self.answer(exchange, path, b"".join(exchange.state))

    def late(self, exchange: Exchange) -> None:
        self.late_count += 1
        if exchange.head.path == b"/own":
            exchange.reply(200, TEXT, b"too late")

    def answer(self, exchange: Exchange, path: str, body: bytes) -> None:
        word, _, number = path[1:].partition("/")
        if word in ("size", "lazy", "count"):
            exchange.reply(200, TEXT, b"%d" % len(body))
        elif word == "hold":
            self.holding.append(exchange)
        elif word == "later":
            self.loop.call_soon(exchange.reply, 200, TEXT, body)
        elif word == "large":
            exchange.reply(200, TEXT, bytes(int(number)))
        elif word == "stream":
            Pieces(self, exchange, int(number))
        elif word == "flood":
            exchange.start(200, TEXT)
            for _ in range(int(number)):
                exchange.send(bytes(PIECE))
            exchange.finish()
        elif word == "begun":
            exchange.start(200, TEXT)
            exchange.send(b"some")
            raise Planted(path)
        elif word == "broken":
            exchange.start(200, TEXT)
            exchange.send(b"some")
            exchange.abort()
        elif word == "sum":
            exchange.reply(200, TEXT, body, ((b"x-sum", b"%d" % len(body)),))
        elif word == "peer":
            peer = exchange.peer
            exchange.reply(200, TEXT, f"{peer.address} {peer.port} {peer.certificate}".encode())
        elif word == "trailers":
            exchange.start(200, TEXT)
            exchange.send(body)
            exchange.finish(((b"x-sum", b"%d" % len(body)),))
        else:
            exchange.reply(200, TEXT, body)

    def release_held(self) -> None:
        """Answer held requests; called in the loop."""
        holding, self.holding = self.holding, []
        for exchange in holding:
            if exchange.head.path == b"/lazy":
                exchange.resume()
            else:
                exchange.reply(200, TEXT, b"held")


class Pieces:
    """A streamed answer with back-pressure."""

    def __init__(self, echo_app: EchoApplication, exchange: Exchange, left: int) -> None:
        self.echo_app = echo_app
        self.exchange = exchange
        self.left = left
        exchange.on_writable = self.go_on
        exchange.start(200, TEXT)
        self.go_on()

    def go_on(self) -> None:
        while self.left and self.exchange.unsent <= 64 << 10:
            self.left -= 1
            self.echo_app.sent += PIECE
            self.exchange.send(bytes(PIECE))
        if not self.left:
            self.exchange.finish()
