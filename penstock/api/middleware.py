"""Middleware: code of the user's own before and after the routes of an App, and at their errors.

    class Stamp(Middleware):
        def before(self, request):
            if request.headers.get("x-tenant") is None:
                raise HttpError(400, "the header X-Tenant is missing")

        def after(self, request, answer):
            answer.add_header("x-seconds", f"{answer.seconds:.3f}")

It is called on the engine's loop, so it must be quick and must not block. ``before`` runs in the
order in which middleware was added, ``after`` and ``on_error`` in the reverse order. A route
without middleware does not pay for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import monotonic
from typing import Any

from penstock.api.application import Application, Example, HasExamples, Route, Section
from penstock.api.http import Http, HttpCall, Whole
from penstock.door.exchange import HttpReply
from penstock.errors import RequestError
from penstock.protocols import media
from penstock.protocols.heads import Headers, RequestHead
from penstock.typed.response import BODILESS, Response

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Request:
    """What middleware sees of a request; its body is not among it.

    Attributes:
        method: such as ``POST``.
        path: as sent, percent-encoded.
        query: as sent, after the ``?``.
        route: the pattern of the called route.
        address: of the caller; empty over a Unix socket.
        caller: who calls, as the service's admission says; None without one.
        state: for the middleware's own values, from ``before`` to ``after``.
    """

    method: str
    path: str
    query: str
    route: str
    address: str
    caller: Any
    state: dict[str, Any] = field(default_factory=dict)
    head: RequestHead = field(repr=False)

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """The header fields, with names in lower case; of repeated ones the last."""
        return {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in self.head.fields.items()
        }


class Answer:
    """What middleware sees of an answer, to which it may add header fields.

    Attributes:
        status: of the answer.
        headers: its fields, with names in lower case.
        size: bytes of the body; None for an answer in pieces.
        seconds: since the request's head had arrived.
    """

    def __init__(self, status: int, headers: Headers, size: int | None, seconds: float) -> None:
        self.status = status
        self.headers = [(name.decode(), value.decode("latin-1")) for name, value in headers]
        self.size = size
        self.seconds = seconds
        self.added: Response[None] = Response(None)

    def add_header(self, name: str, value: str) -> None:
        """Add a header field.

        Raises:
            TypeError, ValueError: see ``Response``.
        """
        self.added.add_header(name, value)


class Middleware:
    """The base class of middleware; a class overrides what it needs."""

    def before(self, request: Request) -> Response[Any] | None:
        """Called when the request's body has arrived, before it is decoded.

        Returns:
            None, or an answer: then the route is not run.

        Raises:
            RequestError: the request is refused, such as by ``HttpError``.
        """
        return None

    def after(self, request: Request, answer: Answer) -> None:
        """Called with every answer, those of errors included, before it is sent."""

    def on_error(self, request: Request, error: RequestError) -> Response[Any] | None:
        """Called with the error of a request, before ``after``.

        Returns:
            None, or the answer instead of the error's.
        """
        return None


class WithMiddleware:
    """An application, with middleware around its routes over HTTP.

    Args:
        inner: the application.
        chain: the middleware, the outermost first.

    Attributes:
        inner: the application.
    """

    def __init__(self, inner: Application, chain: Sequence[Middleware]) -> None:
        self.inner = inner
        self._chain = chain

    def routes(self) -> Iterator[Route | Section]:
        """What the application serves."""
        for each in self.inner.routes():
            if isinstance(each, Http) and each.whole is not None:
                yield replace(
                    each,
                    whole=partial(_handle, self._chain, each.whole, each.failed),
                    failed=partial(_failed, self._chain, each.failed),
                )
            else:
                yield each

    def example_requests(self) -> Iterable[Example]:
        """Those of the application, which run without middleware."""
        return self.inner.example_requests() if isinstance(self.inner, HasExamples) else ()


class _WatchedCall(HttpCall):
    """A call whose answers pass through middleware."""

    __slots__ = ("chain", "request")

    chain: Sequence[Middleware]
    request: Request

    def note(self, error: RequestError) -> HttpReply | RequestError:
        for each in reversed(self.chain):
            try:
                instead = each.on_error(self.request, error)
                if instead is not None:
                    return _reply_of(instead)
            except RequestError as other:
                return other
            except Exception:  # noqa: BLE001 - the user's
                _log.exception("%s.on_error raised", type(each).__name__)
        return error

    def reply(self, status: int, headers: Headers, body: bytes, *, close: bool = False) -> None:
        more = self._after(status, headers, len(body))
        self.exchange.reply(status, (*headers, *more), body, close=close)

    def start(self, status: int, headers: Headers) -> None:
        super().start(status, (*headers, *self._after(status, headers, None)))

    def _after(self, status: int, headers: Headers, size: int | None) -> Headers:
        """Call ``after``; returns the fields that it adds."""
        answer = Answer(status, headers, size, monotonic() - self.exchange.began)
        for each in reversed(self.chain):
            try:
                each.after(self.request, answer)
            except Exception:  # noqa: BLE001 - the user's
                _log.exception("%s.after raised", type(each).__name__)
        return answer.added.fields

    def send(self, reply: HttpReply) -> None:
        status, headers, body, close = reply
        self.reply(status, headers, body, close=close)


def _watched(chain: Sequence[Middleware], call: HttpCall) -> _WatchedCall:
    exchange, head = call.exchange, call.exchange.head
    found = _WatchedCall(exchange, call.shared, call.route, call.values, call.timeout)
    found.chain = chain
    found.request = Request(
        method=head.method,
        path=head.path.decode("latin-1"),
        query=head.query.decode("latin-1"),
        route=call.route.pattern,
        address=exchange.peer.address,
        caller=call.caller,
        head=head,
    )
    return found


def _handle(
    chain: Sequence[Middleware],
    handler: Whole,
    failed: Callable[[HttpCall, RequestError], None],
    call: HttpCall,
    body: bytes,
) -> None:
    watched = _watched(chain, call)
    for each in chain:
        try:
            answer = each.before(watched.request)
            reply = None if answer is None else _reply_of(answer)
        except RequestError as error:
            failed(watched, error)
            return
        except Exception:  # noqa: BLE001 - the user's
            _log.exception("%s.before raised", type(each).__name__)
            text = "the service failed to answer; its log says why"
            reply = call.route.refusal(500, text)._replace(close=False)
        if reply is not None:
            watched.send(reply)
            return
    handler(watched, body)


def _failed(chain: Sequence[Middleware], failed: Any, call: HttpCall, error: RequestError) -> None:
    """Answer an error before the handler is called; the body may not have arrived."""
    failed(_watched(chain, call), error)


def _reply_of(answer: Response[Any]) -> HttpReply:
    """An answer of middleware; its value is a plain one, or bytes or a text with a media type.

    Raises:
        TypeError: the value is none of these.
    """
    status, value = answer.status or 200, answer.value
    if status in BODILESS or (value is None and 300 <= status < 400):
        return HttpReply(status, answer.fields)
    if answer.media_type is None:
        kind, body = media.JSON, media.encode(value, media.JSON)
    elif isinstance(value, (bytes, str)):
        kind, body = answer.media_type, value.encode() if isinstance(value, str) else value
    else:
        raise TypeError("with media_type, the value is bytes or a text")
    return HttpReply(status, ((b"content-type", kind.encode()), *answer.fields), body)
