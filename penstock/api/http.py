"""HTTP routes, and their calls.

Source: RFC 9110.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final, TypeAlias

from penstock.api.body import SMALL, decompress
from penstock.api.body_call import BodyCall
from penstock.api.call import Shared
from penstock.api.inbox import PlainReader
from penstock.api.operation import Described
from penstock.door.exchange import Exchange, HttpReply, Receiver
from penstock.errors import RequestError, TooLarge
from penstock.protocols import paddle_json
from penstock.protocols.heads import Headers
from penstock.protocols.status import GRPC_OF_HTTP, GrpcCode, reply_fields, status_of

JSON = (b"content-type", b"application/json")
TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")

TOO_MANY: Final = "too many requests are open; try again later"
"""The text of the refusal, with status 503, of a request beyond the door's limit."""


class HttpCall(BodyCall):
    """One request to an HTTP route.

    Attributes:
        route: the called route.
        values: the path's values of the pattern's placeholders, percent-decoded.
    """

    __slots__ = ("_encoding", "route", "values")

    is_grpc = False

    def __init__(
        self,
        exchange: Exchange,
        shared: Shared,
        route: Http,
        values: tuple[str, ...] = (),
        timeout: float | None = None,
        encoding: bytes | None = None,
    ) -> None:
        self.exchange = exchange
        self.shared = shared
        self.timeout = timeout
        self.started = False
        self.route = route
        self.values = values
        self._encoding = encoding
        self.inbox = self.partial = None

    @property
    def label(self) -> str:
        return self.route.pattern

    def begin(self) -> Receiver | None:
        """Begin the request. An announced body is reserved before it is read."""
        exchange, route = self.exchange, self.route
        body = exchange.whole
        if body is None:
            if self.timeout is not None:
                exchange.deadline = monotonic() + self.timeout
        elif route.whole is not None and route.method != "GET" and self._encoding is None:
            # The fast path of nearly every request.
            size = len(body)
            if size <= SMALL and size <= self.shared.most and exchange.try_small(size):
                route.whole(self, body)
                return None
        if route.whole is not None and route.method == "GET":
            route.whole(self, b"")
            return None
        if route.stream is not None:
            self.run(route.stream, PlainReader())
            return self
        announced = exchange.head.content_length
        if announced is None:
            self.expect_body()
            return self
        return self if self.expect(announced) else None

    def reply(self, status: int, headers: Headers, body: bytes, *, close: bool = False) -> None:
        """Give the whole answer."""
        self.exchange.reply(status, headers, body, close=close)

    def send(self, reply: HttpReply) -> None:
        """Give the whole answer."""
        status, headers, body, close = reply
        self.exchange.reply(status, headers, body, close=close)

    def note(self, error: RequestError) -> HttpReply | RequestError:
        """Note the error with which the call ends; returns the answer instead of the usual one, or
        the error that is answered as usual.
        """
        return error

    def fail(self, code: GrpcCode, text: str, metadata: Headers = ()) -> None:
        if self.started:
            self.exchange.abort()
        else:
            status = 504 if code is GrpcCode.DEADLINE_EXCEEDED else 500
            self.send(self.route.refusal(status, text))

    def fail_with(self, error: RequestError) -> None:
        if self.started:
            self.exchange.abort()
        else:
            self.send(gateway_failure(error))

    def refuse_beyond_limit(self) -> None:
        self.send(self.route.refusal(503, TOO_MANY)._replace(close=False))

    def start(self, status: int, headers: Headers) -> None:
        """Begin a streamed answer; at most once."""
        if not self.started:
            self.started = True
            self.exchange.start(status, headers)

    async def write(self, piece: bytes) -> None:
        """Send a piece of a streamed answer; waits until the caller has read enough."""
        self.exchange.send(piece)
        await self.writable()

    def finish(self) -> None:
        """End a streamed answer; if none was started, answer 204."""
        if self.started:
            self.exchange.finish()
        else:
            self.exchange.reply(204, ())

    def data(self, exchange: Exchange, piece: bytes, ended: bool) -> None:
        """See ``Receiver``: handles the body, which is usually a single piece."""
        most = self.shared.most
        try:
            if exchange.head.content_length is None or self.inbox is not None:
                if len(piece) > most:
                    raise TooLarge(f"the body is over {most} bytes")
                exchange.take(len(piece))
            elif exchange.to_come:
                exchange.arrive(len(piece))
            if self.inbox is not None:
                self.inbox.feed(piece)
                self.inbox.wake(ended=ended)
                return
            body = self.collect(piece, ended)
        except RequestError as error:
            self.give_up(error)
            return
        if body is not None:
            assert self.route.whole is not None
            self.route.whole(self, body)

    def late(self, exchange: Exchange) -> None:
        """See ``Receiver``: the body took too long to arrive."""
        self.stop()
        if self.started:
            exchange.abort()
        else:
            self.send(self.route.refusal(408, "the request took too long to arrive"))

    @property
    def is_packed(self) -> bool:
        return self._encoding is not None

    def unpack(self, body: bytes) -> bytes:
        assert self._encoding is not None
        return decompress(self._encoding, body, self.shared.most)

    def take(self, body: bytes) -> None:
        assert self.route.whole is not None
        self.route.whole(self, body)

    def refuse(self, error: RequestError) -> None:
        self.count_refusal(error)
        self.route.failed(self, error)


def text_reply(status: int, text: str) -> HttpReply:
    """A line of plain text."""
    return HttpReply(status, (TEXT,), text.encode() + b"\n")


def gateway_failure(error: RequestError) -> HttpReply:
    """An error that fails the call itself, in the format of the original's gateway."""
    status = status_of(error)
    body = paddle_json.gateway_error(status.grpc, str(error))
    return HttpReply(status.http, (JSON, *reply_fields(error)), body, isinstance(error, TooLarge))


def failure(status: int, text: str) -> HttpReply:
    """A transport error in the gateway's format; it ends an HTTP/1.1 connection.

    The gateway answers other methods in plain text.
    """
    if status == 405:
        return text_reply(405, "Method Not Allowed")
    if text == TOO_MANY:
        return _TOO_MANY
    other = GrpcCode.INVALID_ARGUMENT if status < 500 else GrpcCode.UNIMPLEMENTED
    body = paddle_json.gateway_error(GRPC_OF_HTTP.get(status, other), text)
    return HttpReply(status, (JSON,), body, close=True)


_TOO_MANY: Final = HttpReply(
    503,
    (JSON, (b"retry-after", b"1")),
    paddle_json.gateway_error(GrpcCode.RESOURCE_EXHAUSTED, TOO_MANY),
)


Whole: TypeAlias = Callable[[HttpCall, bytes], None]


@dataclass(frozen=True, slots=True)
class Http(Described):
    """A route: ``whole`` or ``stream``.

    Attributes:
        method: the HTTP method; GET includes HEAD, and gets no body.
        pattern: the path; a segment such as ``{name}`` matches any one segment.
        failed: answers errors before the handler is called (a refused caller, too many bytes in
            flight).
        refusal: makes the answer of a refusal from a status and a text: another method, an unknown
            coding, too many open requests, what the door refuses; it may end an HTTP/1.1
            connection.
        listed: the routes listed in OpenAPI instead of the pattern, such as one for each served
            name; None for the pattern itself.
        there: whether these values of the placeholders are served, so that another method gets 405,
            not 404; None: always.
        takes: whether a path that matches the pattern, as segments without percent-encoding, is the
            route's; None: always.
        below: whether it answers every method, for the pattern and all paths below it, before
            patterns with placeholders.
        graph: the name of the only graph that it runs, if the graph is to be served by this route
            and not by its name.
        graphs: the same for a route that runs one of several.
    """

    method: str
    pattern: str
    whole: Whole | None = None
    stream: Callable[[HttpCall], Awaitable[None]] | None = None
    failed: Callable[[HttpCall, RequestError], None] = HttpCall.fail_with
    refusal: Callable[[int, str], HttpReply] = failure
    listed: Callable[[], Iterable[Http]] | None = None
    there: Callable[[tuple[str, ...]], bool] | None = None
    takes: Callable[[Sequence[bytes]], bool] | None = None
    graph: str | None = None
    graphs: frozenset[str] = frozenset()
    below: bool = False

    @property
    def own_graphs(self) -> frozenset[str]:
        """The names of the graphs that are served by this route and not by their names."""
        return self.graphs if self.graph is None else self.graphs | {self.graph}
