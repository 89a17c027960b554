"""Quotas of callers: requests a second, and requests at once. Checked before a body is read.

A quota counts for the routes and callers that it names, and each caller has its own: by its name,
or by its address if the service does not know callers (an IPv6 address by its first 64 bits, which
one customer has). A request counts for all quotas that apply to it, or is refused by one of them
and counts for none. Each engine counts its own requests.

Source: RFC 6585 (429), draft-ietf-httpapi-ratelimit-headers-10 (``RateLimit``,
``RateLimit-Policy``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv6Address
from math import ceil
from time import monotonic
from types import MappingProxyType
from typing import Any, Final

from penstock.api.application import Route
from penstock.api.buckets import Buckets
from penstock.api.call import OfStream, exchange_of
from penstock.api.grpc import Grpc
from penstock.api.http import Http
from penstock.api.priorities import path_of
from penstock.caller import Caller, name_of
from penstock.door.exchange import Exchange
from penstock.engine.submission import Submission
from penstock.errors import TooManyRequests
from penstock.protocols.heads import Headers

_ABOUT_BUSY: Final = 1.0  # seconds after which a caller at its limit of open requests may retry


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What each caller may do.

    Attributes:
        name: for callers.
        rate: requests a second; None is no limit.
        burst: requests at once after a pause; None: those of a second.
        concurrency: open requests; None is no limit.
        callers: names of the callers to which it applies; empty for all.
        scopes: the same by a scope of the caller.
        routes: paths of routes and gRPC methods, and names of graphs, to which it applies; empty
            for all. That of a graph's own route applies to the graph by every route.
    """

    name: str
    rate: float | None = None
    burst: int | None = None
    concurrency: int | None = None
    callers: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    routes: frozenset[str] = frozenset()

    def applies(self, caller: str, scopes: frozenset[str], routes: Collection[str]) -> bool:
        """Whether a request of this caller to one of these routes, methods and graphs counts."""
        if self.routes and self.routes.isdisjoint(routes):
            return False
        listed = caller in self.callers or not self.scopes.isdisjoint(scopes)
        return listed or not (self.callers or self.scopes)


class _Counted:
    """A quota with the counts of its callers."""

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.open: dict[str, int] = {}
        self.buckets: Buckets | None = None
        self.policy: Headers = ()
        self.for_all = not (quota.routes or quota.callers or quota.scopes)
        self._left = b'"%b";r=' % quota.name.encode()
        if quota.rate is not None:
            burst = quota.burst or max(1, ceil(quota.rate))
            self.buckets = Buckets(quota.rate, burst)
            policy = f'"{quota.name}";q={burst};w={max(1, ceil(burst / quota.rate))}'
            self.policy = ((b"ratelimit-policy", policy.encode()),)

    def check(self, key: str, now: float) -> None:
        quota = self.quota
        wait = 0.0 if self.buckets is None else self.buckets.wait(key, now)
        if wait:
            text = f"over the quota {quota.name!r} of {quota.rate:g} requests a second"
            error = TooManyRequests(text, wait)
            limit = f'"{quota.name}";r=0;t={max(1, ceil(wait))}'
            error.headers = (*self.policy, (b"ratelimit", limit.encode()))
            raise error
        if quota.concurrency is not None and self.open.get(key, 0) >= quota.concurrency:
            text = f"over the quota {quota.name!r} of {quota.concurrency} open requests"
            raise TooManyRequests(text, _ABOUT_BUSY)

    def take(self, key: str, now: float) -> Headers:
        """Count a request; returns the fields of its answer."""
        if self.quota.concurrency is not None:
            self.open[key] = self.open.get(key, 0) + 1
        if self.buckets is None:
            return ()
        left = self.buckets.take(key, now)
        return (*self.policy, (b"ratelimit", b"%b%d" % (self._left, left)))

    def end(self, key: str) -> None:
        """A request that counts as open has ended."""
        left = self.open.pop(key) - 1
        if left:
            self.open[key] = left


class Quotas:
    """See the module. Belongs to the door's loop.

    Args:
        quotas: their names are ASCII without quotes and backslashes.
        paths: of the graphs' own routes, by the graphs' names.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        quotas: Sequence[Quota],
        paths: Mapping[str, frozenset[str]] = MappingProxyType({}),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._counted = [_Counted(each) for each in quotas]
        self._of_routes = [each for each in self._counted if each.quota.routes]
        self._graphs = {name: own | {name} for name, own in paths.items()}
        self._clock = clock

    def admit(self, route: Route, exchange: Exchange) -> None:
        """Count a request whose caller is known, until its exchange is over.

        Probes, and pages for operators, do not count; nor do streams whose messages are requests.

        Raises:
            TooManyRequests: a quota of its caller is used up.
        """
        if route.always or (isinstance(route, Http) and route.admin):
            return
        if isinstance(route, Grpc) and route.of_messages:
            return
        fields, over = self._count(self._counted, (path_of(route),), exchange.caller, exchange)
        exchange.added = (*exchange.added, *fields)
        if over is not None:
            exchange.on_over = over

    def permit(self, submission: Submission) -> None:
        """Count a request for the quotas of its graph, until its end; one that is a message of a
        stream for all quotas.

        Raises:
            TooManyRequests: a quota of its caller is used up.
        """
        call = submission.call
        if call is None:
            return
        counted, of_stream = self._of_routes, isinstance(call, OfStream)
        if not counted and not of_stream:
            return
        graph, path = submission.graph.name or "", path_of(call.route)
        routes = self._graphs.get(graph) or frozenset((graph,))
        if of_stream:
            counted, routes = self._counted, routes | {path}
        else:
            counted = [each for each in counted if path not in each.quota.routes]
        if counted:
            exchange = exchange_of(call)
            fields, over = self._count(counted, routes, submission.caller, exchange)
            if not of_stream:  # whose answers have one head
                exchange.added = (*exchange.added, *fields)
            if over is not None:
                submission.at_end(over)

    def _count(
        self,
        among: Sequence[_Counted],
        routes: Collection[str],
        caller: Any,
        exchange: Exchange,
    ) -> tuple[Headers, Callable[[], None] | None]:
        """Count a request for those of the quotas that apply to it; returns the fields of its
        answer, and what ends it.
        """
        name = name_of(caller)
        scopes = caller.scopes if isinstance(caller, Caller) else frozenset[str]()
        counted = [
            each for each in among if each.for_all or each.quota.applies(name, scopes, routes)
        ]
        if not counted:
            return (), None
        key = f"caller {name}" if name else _network_of(exchange.peer.address)
        now = self._clock()
        for each in counted:
            each.check(key, now)
        fields: Headers = ()
        ends = []
        for each in counted:
            fields += each.take(key, now)
            if each.quota.concurrency is not None:
                ends.append(each)
        if len(counted) > 1:
            fields = _as_lists(fields)
        return fields, partial(_end, ends, key) if ends else None


def _end(counted: Sequence[_Counted], key: str) -> None:
    for each in counted:
        each.end(key)


def _network_of(address: str) -> str:
    if ":" not in address:
        return address
    try:
        packed = IPv6Address(address.partition("%")[0])
    except ValueError:  # of another server, which may call it anything
        return address
    mapped = packed.ipv4_mapped
    return packed.packed[:8].hex() if mapped is None else str(mapped)


def _as_lists(fields: Headers) -> Headers:
    """The fields of several quotas as one field of each name."""
    lists: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        lists.setdefault(name, []).append(value)
    return tuple((name, b", ".join(values)) for name, values in lists.items())
