"""The port for operators: which routes it has, and what the service's other ports then answer.

Operators' routes move to it; probes are answered everywhere. Callers on this machine are
redirected, so that ``penstock status``, ``bench`` and a browser with the service's address reach
them. To all others, the paths do not exist on the other ports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from penstock.api.access import why_not_local
from penstock.api.application import Route, Section
from penstock.api.errors import no_route
from penstock.api.grpc import Grpc
from penstock.api.hosts import name_of
from penstock.api.http import Http, HttpCall
from penstock.door.exchange import HttpReply


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminPort:
    """Where operators find their routes.

    Attributes:
        port: the bound port.
        host: its address, if that is neither a loopback address nor all; None: the name by which
            the caller has requested the service.
        tls: whether it uses TLS.
    """

    port: int
    host: str | None = None
    tls: bool = False

    def redirected(
        self, routes: Iterable[Http], not_found: Callable[[str], HttpReply]
    ) -> Iterator[Http]:
        """What other ports have at the paths of operators' routes.

        Args:
            routes: those of operators.
            not_found: answers callers on other machines, for a path.
        """

        def answer(call: HttpCall, _body: bytes) -> None:
            exchange = call.exchange
            head = exchange.head
            if why_not_local(exchange.peer.address, head) is not None:
                call.send(not_found(head.path.decode("latin-1")))
                return
            host = self.host or name_of(head.authority) or "localhost"
            at = f"[{host}]" if ":" in host else host
            query = b"?" + head.query if head.query else b""
            scheme = "https" if self.tls else "http"
            where = f"{scheme}://{at}:{self.port}".encode() + head.path + query
            call.reply(307, ((b"location", where), (b"cache-control", b"no-store")), b"")

        for route in routes:
            if route.method in ("GET", "POST"):
                yield replace(route, whole=answer, stream=None)


def is_of_operators(route: Route | Section) -> bool:
    """Whether a route moves to the port for operators."""
    return isinstance(route, (Http, Grpc)) and route.admin


def of_operators(declared: Iterable[Route | Section]) -> list[Route]:
    """The routes of the port for operators: theirs, and probes."""
    routes = (each for each in declared if isinstance(each, (Http, Grpc)))
    return [each for each in routes if each.admin or each.always]


def not_found_there(routes: Iterable[Route], path: str) -> HttpReply:
    """The answer of the port for operators to a path without a route."""
    paths = [each.pattern for each in routes if isinstance(each, Http) and "{" not in each.pattern]
    return no_route(paths, path)
