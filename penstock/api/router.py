"""The router: finds the handler of a request; the application of the door.

Applications declare their routes when the service is built: an HTTP method and a path pattern
(``Http``), a gRPC method (``Grpc``), or a baidu_std method (``BaiduStd``). A path is looked up in a
dict; paths in another percent-encoding, and matches of patterns, are cached. A literal path takes
precedence over patterns; of two matching patterns, the one with the earlier literal segment wins
(``penstock.api.path_pattern``). Two routes that match the same paths with the same method are an
error at the start.

Requests without a route are answered here: 404, 405 with ``Allow``, 415 for a gRPC method that is
not called by gRPC, UNIMPLEMENTED for an unknown gRPC method, and ENOSERVICE or ENOMETHOD over
baidu_std; ``OPTIONS`` gets 204 with ``Allow``. The form of an error over HTTP is that of the route,
of the path's section (``Section``), or of the service.
Source: RFC 9110, the gRPC over HTTP/2 protocol, ``docs/compatibility.md`` (the HTTP gateway).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from urllib.parse import unquote, unquote_to_bytes

from penstock.api.application import Admission, Route, Section
from penstock.api.baidu_std import BaiduStd, BaiduStdCall
from penstock.api.call import ENDING, Shared
from penstock.api.cors import Cors, is_preflight
from penstock.api.grpc import Grpc, GrpcCall
from penstock.api.hosts import Hosts
from penstock.api.http import Http, HttpCall, failure, text_reply
from penstock.api.path_pattern import PathPattern, segment_value
from penstock.api.quotas import Quotas
from penstock.door.baidu_std import BaiduStdExchange
from penstock.door.exchange import Exchange, HttpReply, Limit, Receiver
from penstock.errors import RequestError, StartupError, Undecodable
from penstock.protocols import grpc
from penstock.protocols.grpc import GrpcError, parse_timeout
from penstock.protocols.grpc.request import is_grpc
from penstock.protocols.heads import HTTP_2, RequestHead
from penstock.protocols.status import (
    GRPC_OF_HTTP,
    BrpcCode,
    GrpcCode,
    brpc_code_of,
    reply_fields,
    reply_metadata,
    status_of,
)

_GRPC = b"application/grpc"
_MOST_REMEMBERED = 1024
"""Most cached paths of patterns."""
_SECONDS = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,9})?")
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_OF_PAGES = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
"""The methods that a page can call."""


class Target:
    """The routes at one path.

    Attributes:
        grpc: the gRPC method.
        http: the routes by method, with the values of their placeholders.
    """

    __slots__ = ("grpc", "http")

    def __init__(self) -> None:
        self.grpc: Grpc | None = None
        self.http: dict[str, tuple[Http, tuple[str, ...]]] = {}

    def add(self, route: Http, values: tuple[str, ...]) -> None:
        """Add a route, unless one with its method exists."""
        self.http.setdefault(route.method, (route, values))
        if route.method == "GET":
            self.http.setdefault("HEAD", (route, values))


class Router:
    """Finds the handler of each request.

    Args:
        routes: of all applications, and their sections.
        max_message_bytes: most bytes of a message or a body, before and after decompression.
        threads: join large bodies, and decompress; None for the loop's default threads.
        not_found: makes the answer to a path without a route, from the path, unless its section
            does; by default the gateway's.
        refusal: makes the answer to other such requests, and to those without a complete head, from
            a status and a text.
        hosts: checks Host and Origin of HTTP requests; None accepts all.
        admission: admits callers; None admits all.
        cors: which pages of other websites may call; None: no page.
        quotas: limits of each caller; None: there are none.
        authenticate: raises RequestError for an unknown caller of a request without a route, who is
            not told which routes exist; None answers all.

    Raises:
        StartupError: two routes are the same.
    """

    def __init__(
        self,
        routes: Iterable[Route | Section],
        *,
        max_message_bytes: int,
        threads: Executor | None = None,
        not_found: Callable[[str], HttpReply] = lambda _: text_reply(404, "Not Found"),
        refusal: Callable[[int, str], HttpReply] = failure,
        hosts: Hosts | None = None,
        admission: Admission | None = None,
        cors: Cors | None = None,
        quotas: Quotas | None = None,
        authenticate: Callable[[Exchange], object] | None = None,
    ) -> None:
        self._admission = admission
        self._quotas = quotas
        self._asks = admission is not None or quotas is not None
        self._cors = cors
        self._authenticate = authenticate
        self._sections: list[Section] = []
        self._hosts = hosts
        self._not_found = not_found
        self._refusal = refusal
        self._shared = Shared(max_message_bytes, threads)
        self._static: dict[bytes, Target] = {}
        self._mounted: list[tuple[list[bytes], Http]] = []
        self._services: dict[str, dict[str, BaiduStd]] = {}
        self._patterns: list[tuple[PathPattern, Http]] = []
        seen: set[tuple[str, ...]] = set()
        for route in routes:
            if isinstance(route, Section):
                self._sections.append(route)
                continue
            if isinstance(route, Grpc):
                key: tuple[str, ...] = ("gRPC", route.path)
                self._static.setdefault(route.path.encode(), Target()).grpc = route
            elif isinstance(route, BaiduStd):
                key = ("baidu_std", route.path)
                methods = self._services.setdefault(route.service, {})
                methods[route.method] = route
                # Some clients omit the package; brpc's servers accept that, too.
                self._services.setdefault(route.service.rpartition(".")[2], methods)
            elif route.below:
                key = ("all", route.pattern)
                self._mounted.append((unquote_to_bytes(route.pattern).split(b"/"), route))
            elif "{" in route.pattern:
                pattern = PathPattern(route.pattern)
                key = (route.method, "/".join(pattern.shape))
                self._patterns.append((pattern, route))
            else:
                path = unquote_to_bytes(route.pattern)
                key = (route.method, path.decode())
                self._static.setdefault(path, Target()).add(route, ())
            if key in seen:
                raise StartupError(f"two routes are {' '.join(key)}")
            seen.add(key)
        self._patterns.sort(key=lambda each: each[0].order)
        self._targets = dict(self._static)
        self._mounted.sort(key=lambda each: -len(each[0]))
        self._sections.sort(key=lambda each: -len(each.path))  # the inner ones first

    def end_streams(self, *, when_answered: bool = False) -> None:
        """End the calls of stream handlers, which may not end by themselves, at shutdown.

        Args:
            when_answered: those whose messages are requests end later, when the requests that have
                arrived are answered.
        """
        for call in list(self._shared.streams):
            inbox = call.inbox
            waits = when_answered and isinstance(call, GrpcCall) and call.route.of_messages
            if waits and inbox is not None:
                inbox.close()
                continue
            call.stop()
            call.fail(GrpcCode.UNAVAILABLE, ENDING)

    def begin(self, exchange: Exchange) -> Receiver | None:
        head = exchange.head
        target = self._targets.get(head.path)
        kind = head.fields.get(b"content-type")
        call: HttpCall | GrpcCall | BaiduStdCall | None
        # The first test holds for nearly every gRPC call: is_grpc, inlined.
        if kind is not None and (
            (kind == _GRPC and head.version == HTTP_2) or (kind[:16] == _GRPC and is_grpc(head))
        ):
            call = self._grpc_call(exchange, head, None if target is None else target.grpc)
        elif kind is None and isinstance(exchange, BaiduStdExchange):
            call = self._baidu_std_call(exchange)
        else:
            hosts = self._hosts
            trusted = False
            if self._cors is not None:
                target, trusted = self._share(self._cors, exchange, target)
            if hosts is not None and (head.authority not in hosts.seen or b"origin" in head.fields):
                why = hosts.why_refused(head, exchange.peer.address, trusted=trusted)
                if why is not None:
                    _send(exchange, self._failure(head, 403, why))
                    return None
            if trusted and is_preflight(head):
                self._answer_preflight(exchange, target)
                return None
            try:
                if target is None:
                    target = self._find(head)
                route, values = target.http[head.method]
            except KeyError:
                assert target is not None
                if self._is_unknown(exchange):
                    return None
                _send(exchange, self._not_served(head, target))
                return None
            except _Refused as refused:
                _send(exchange, refused.reply)
                return None
            encoding = head.fields.get(b"content-encoding")
            try:
                if encoding is not None:
                    encoding = _encoding(head, route)
                call = HttpCall(
                    exchange, self._shared, route, values, _client_timeout(head.fields), encoding
                )
            except RequestError as error:
                if not route.open and self._is_unknown(exchange):
                    return None
                route.failed(HttpCall(exchange, self._shared, route, values), error)
                return None
            except _Refused as refused:
                if route.open or not self._is_unknown(exchange):
                    _send(exchange, refused.reply)
                return None
        if call is None or ((exchange.over_limit or self._asks) and not self._admit(call)):
            return None
        return call.begin()

    def _is_unknown(self, exchange: Exchange) -> bool:
        """Whether a request without a route is of an unknown caller; refuses it."""
        if self._authenticate is None:
            return False
        try:
            exchange.caller = self._authenticate(exchange)
        except RequestError as error:
            exchange.count_refusal(Limit.CALLER, error.code)
            if isinstance(exchange, BaiduStdExchange):
                exchange.fail_call(brpc_code_of(error), str(error))
            elif is_grpc(exchange.head):
                status = status_of(error).grpc
                exchange.count_error(status.name)
                trailers = grpc.trailers(status, str(error), reply_metadata(error))
                exchange.reply(200, (*grpc.HEAD, *trailers))
            else:
                status_code = status_of(error).http
                made = self._refusal_below(exchange.head.path)(status_code, str(error))
                fields = [each for each in made.headers if each[0] != b"retry-after"]
                headers = (*fields, *reply_fields(error, status_code))
                _send(exchange, made._replace(headers=headers, close=False))
            return True
        return False

    def failure(self, head: RequestHead | None, status: int, text: str) -> HttpReply:
        """The door's own answer, in the format of the request's route; see ``Door``."""
        reply = self._failure(head, status, text)
        if self._cors is None or head is None or is_grpc(head):
            return reply
        if _is_admin(self._targets.get(head.path)):
            return reply
        added = self._cors.fields(head.fields.get(b"origin"))
        return reply._replace(headers=(*reply.headers, *added))

    def _failure(self, head: RequestHead | None, status: int, text: str) -> HttpReply:
        if head is not None and not is_grpc(head):
            target = self._targets.get(head.path)
            if target is not None and head.method in target.http:
                return target.http[head.method][0].refusal(status, text)
        refusal = self._refusal if head is None else self._refusal_below(head.path)
        return door_failure(head, status, text, refusal)

    def _share(
        self, cors: Cors, exchange: Exchange, target: Target | None
    ) -> tuple[Target | None, bool]:
        """Let the answer have the fields of CORS, unless the path is for operators. Returns the
        path's target, and whether the request's Origin may call it.
        """
        head = exchange.head
        if target is None:
            with suppress(_Refused):  # it is refused again, with these fields
                target = self._find(head)
        if _is_admin(target):
            return target, False
        origin = head.fields.get(b"origin")
        exchange.added = cors.fields(origin)
        return target, cors.allows(origin)

    def _answer_preflight(self, exchange: Exchange, target: Target | None) -> None:
        """Answer a preflight of an allowed Origin. The page may read the 404 of an unknown path.

        A preflight has no key: where unknown callers are not told which routes exist, it gets the
        same methods for every path.
        """
        assert self._cors is not None
        known = target is not None and target.http and self._authenticate is None
        methods = sorted(target.http) if target is not None and known else _OF_PAGES
        exchange.reply(204, self._cors.preflight(exchange.head, methods))

    def _admit(self, call: HttpCall | GrpcCall | BaiduStdCall) -> bool:
        """Admit a call of any protocol, or refuse it. Its body has not been read."""
        exchange, route = call.exchange, call.route
        if exchange.over_limit and not route.always:
            exchange.count_refusal(Limit.CALLS)
            call.refuse_beyond_limit()
            return False
        if self._asks:
            by_quota = False
            try:
                if self._admission is not None:
                    exchange.caller = self._admission.admit(route, exchange)
                if self._quotas is not None:
                    by_quota = True
                    self._quotas.admit(route, exchange)
            except RequestError as error:
                exchange.refused = "quota" if by_quota else error.code
                exchange.count_refusal(Limit.CALLER, exchange.refused)
                route.failed(call, error)  # type: ignore[arg-type]  # both of one protocol
                return False
        return True

    def _grpc_call(
        self, exchange: Exchange, head: RequestHead, method: Grpc | None
    ) -> GrpcCall | None:
        try:
            timeout, encoding = grpc.check_request(head)
            if method is None and self._is_unknown(exchange):
                return None
            if method is None:
                raise GrpcError(GrpcCode.UNIMPLEMENTED, "no such method")
        except GrpcError as refusal:
            exchange.count_error(refusal.code.name)
            status = grpc.trailers(refusal.code, refusal.text, refusal.headers)
            exchange.reply(refusal.http, (*grpc.HEAD, *status))
            return None
        return GrpcCall(exchange, self._shared, method, timeout, encoding)

    def _baidu_std_call(self, exchange: BaiduStdExchange) -> BaiduStdCall | None:
        called = exchange.meta.call
        assert called is not None, "the door begins no exchange without it"
        methods = self._services.get(called.service)
        if (methods is None or called.method not in methods) and self._is_unknown(exchange):
            return None
        if methods is None:
            exchange.fail_call(BrpcCode.ENOSERVICE, f"there is no service {called.service[:200]!r}")
            return None
        method = methods.get(called.method)
        if method is None:
            text = f"{called.service} has no method {called.method[:200]!r}"
            exchange.fail_call(BrpcCode.ENOMETHOD, text)
            return None
        return BaiduStdCall(exchange, self._shared, method)

    def _not_served(self, head: RequestHead, target: Target) -> HttpReply:
        """There is no route for the path, or for its method."""
        there = {
            method: route
            for method, (route, values) in target.http.items()
            if route.there is None or route.there(values)
        }
        if there:
            if head.method == "OPTIONS":
                return _options(there)
            refusal = next(iter(there.values())).refusal
            return _not_allowed(refusal, head.method, sorted(there))
        if target.grpc is not None:
            refusal = target.grpc.refusal
            if head.method == "OPTIONS":
                return _options(["POST"])
            if head.method != "POST":
                return _not_allowed(refusal, head.method, ["POST"])
            text = "the content-type of gRPC calls is application/grpc"
            return refusal(415, text)._replace(close=False)
        if head.path == b"*":
            if head.method == "OPTIONS":
                return HttpReply(204, ())
            return self._refusal(400, "the target * is for OPTIONS")
        section = self._section(head.path)
        not_found = None if section is None else section.not_found
        path = unquote(head.path.decode("latin-1"), errors="replace")
        return (not_found or self._not_found)(path)

    def _section(self, path: bytes) -> Section | None:
        """The section of a path without a route; None outside of all."""
        segments = [*map(unquote_to_bytes, path.split(b"/"))]
        return next((each for each in self._sections if each.has(segments)), None)

    def _refusal_below(self, path: bytes) -> Callable[[int, str], HttpReply]:
        """What makes the refusals of a path without a route."""
        section = self._section(path)
        return self._refusal if section is None else section.refusal or self._refusal

    def _find(self, head: RequestHead) -> Target:
        """Match a path that is not cached with the routes."""
        path = head.path
        target = Target()
        segments = path.split(b"/")
        if _BAD_ESCAPE.search(path):
            any_values: list[str | None] = [""] * (len(segments) - 1)
            like = (route.refusal for route, _ in self._matches(segments, any_values))
            refusal = next(like, None) or self._refusal_below(path)
            reply = refusal(400, "bad percent escape in the path")
            raise _Refused(reply._replace(close=False))
        values = [segment_value(raw) for raw in segments[1:]]
        decoded = [
            raw if value is None else value.encode()
            for raw, value in zip(segments[1:], values, strict=True)
        ]
        segments[1:] = decoded
        known = self._static.get(b"/".join(segments))
        mounted = (route for above, route in self._mounted if segments[: len(above)] == above)
        below = next(mounted, None)
        if known is not None:
            target = known
        elif below is not None:
            target.http = dict.fromkeys((*_OF_PAGES, "OPTIONS"), (below, ()))
        else:
            for route, taken in self._matches(segments, values):
                target.add(route, taken)
        if target.http:
            if len(self._targets) >= len(self._static) + _MOST_REMEMBERED:
                self._targets = dict(self._static)
            self._targets[path] = target
        return target

    def _matches(
        self, segments: list[bytes], values: list[str | None]
    ) -> Iterator[tuple[Http, tuple[str, ...]]]:
        """The routes whose pattern matches, with the values of their placeholders."""
        for pattern, route in self._patterns:
            taken = pattern.match(segments, values)
            if taken is not None and (route.takes is None or route.takes(segments)):
                yield route, taken


class _Refused(Exception):
    """The request is refused by its head, with this answer."""

    def __init__(self, reply: HttpReply) -> None:
        self.reply = reply
        super().__init__(f"HTTP {reply.status}")


def door_failure(
    head: RequestHead | None,
    status: int,
    text: str,
    refusal: Callable[[int, str], HttpReply] = failure,
) -> HttpReply:
    """The door's own answer to a request without a route, in the format of its protocol."""
    if head is not None and is_grpc(head):
        if status == 431:
            trailers = grpc.trailers(GrpcCode.RESOURCE_EXHAUSTED, "the metadata is too large")
            return HttpReply(status, (*grpc.HEAD, *trailers))
        return HttpReply(200, (*grpc.HEAD, *grpc.trailers(GRPC_OF_HTTP[status], text)))
    return refusal(status, text)


def _send(exchange: Exchange, reply: HttpReply) -> None:
    exchange.reply(reply.status, reply.headers, reply.body, close=reply.close)


def _is_admin(target: Target | None) -> bool:
    """Whether a path is for operators."""
    return target is not None and any(route.admin for route, _ in target.http.values())


def _options(methods: Iterable[str]) -> HttpReply:
    """The answer to OPTIONS: the methods of the path."""
    return HttpReply(204, ((b"allow", ", ".join(sorted([*methods, "OPTIONS"])).encode()),))


def _not_allowed(
    refusal: Callable[[int, str], HttpReply], method: str, allowed: Sequence[str]
) -> HttpReply:
    """Another method is called: 405 with ``Allow``."""
    allow = ", ".join(allowed)
    status, headers, body, _ = refusal(405, f"{method} is not answered here: use {allow}")
    return HttpReply(status, (*headers, (b"allow", allow.encode())), body)


def _encoding(head: RequestHead, route: Http) -> bytes | None:
    """The one content-encoding; None for ``identity``."""
    if [name for name, _ in head.headers].count(b"content-encoding") > 1:
        raise _Refused(route.refusal(415, "the header content-encoding occurs more than once"))
    encoding = head.fields[b"content-encoding"]
    return None if encoding.strip().lower() == b"identity" else encoding


def _client_timeout(fields: dict[bytes, bytes]) -> float | None:
    """Seconds from ``Grpc-Timeout`` or ``Penstock-Timeout``; None without either."""
    raw = fields.get(b"grpc-timeout")
    if raw is not None:
        try:
            return parse_timeout(raw)
        except GrpcError as error:
            raise Undecodable(error.text) from error
    raw = fields.get(b"penstock-timeout")
    if raw is None:
        return None
    if _SECONDS.fullmatch(raw) is None:
        raise Undecodable("malformed penstock-timeout: give seconds, such as 1.5")
    return float(raw)
