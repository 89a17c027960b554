"""The priority of a request: by its caller, its route or graph, and its own header field.

The first of these that is listed counts: the caller's name, the caller's scopes (the highest of
them), the route, the graph, the graph's own route; else the default. ``Penstock-Priority``, over
gRPC in the metadata, or the parameter ``priority`` of the Open Inference Protocol, may replace it
if the service allows that, the lower one of both; where callers are listed, they can only lower it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from penstock.api.baidu_std import BaiduStd
from penstock.api.call import exchange_of
from penstock.api.grpc import Grpc
from penstock.api.http import Http
from penstock.caller import Caller, name_of
from penstock.engine.submission import Submission
from penstock.errors import Undecodable

_FIELD: Final = b"penstock-priority"


class Priorities:
    """See the module. Priorities are 1, the highest, to ``levels``; levels of the engine are one
    less.

    Args:
        levels: the lowest priority.
        default: of requests without an entry.
        callers: by the caller's name.
        scopes: by a scope of the caller.
        routes: by a route's path, a gRPC method's path, or a graph's name.
        header: whether a request may name its priority.
        paths: of the graphs' own routes, by the graphs' names: a graph by another route has the
            lowest priority of these.
    """

    def __init__(
        self,
        *,
        levels: int,
        default: int,
        callers: Mapping[str, int],
        scopes: Mapping[str, int],
        routes: Mapping[str, int],
        header: bool,
        paths: Mapping[str, Iterable[str]] = MappingProxyType({}),
    ) -> None:
        self._levels = levels
        self._default = default
        self._callers = callers
        self._scopes = scopes
        self._routes = routes
        of_paths = {
            name: [routes[each] for each in own if each in routes] for name, own in paths.items()
        }
        self._graphs = {name: max(found) for name, found in of_paths.items() if found}
        self._graphs.update(routes)
        self._header = header

    def level_of(self, submission: Submission) -> int:
        """The level of a request, 0 for the highest. The service's own requests, such as those of
        a warm-up, have it.

        Raises:
            Undecodable: the header field is no priority.
        """
        call = submission.call
        if call is None:
            return 0
        own = self._of_caller(submission.caller)
        priority = own or self._of_route(call, submission.graph.name) or self._default
        if self._header:
            named = exchange_of(call).head.fields.get(_FIELD)
            if named is not None or submission.priority:
                wanted = max(self._parsed(named), self._checked(submission.priority))
                listed = self._callers or self._scopes
                priority = max(wanted, priority if listed else 1)
        return priority - 1

    def _of_caller(self, caller: Any) -> int | None:
        found = self._callers.get(name_of(caller))
        if found is None and self._scopes and isinstance(caller, Caller):
            listed = [self._scopes[each] for each in caller.scopes if each in self._scopes]
            found = min(listed, default=None)
        return found

    def _of_route(self, call: Any, graph: str | None) -> int | None:
        found = self._routes.get(path_of(call.route)) if self._routes else None
        return self._graphs.get(graph or "") if found is None else found

    def _parsed(self, value: bytes | None) -> int:
        """The priority in the header field; 0 without one."""
        if value is None:
            return 0
        if not value.isdigit() or len(value) > 4 or not 1 <= int(value) <= self._levels:
            text = f"penstock-priority is a number from 1, the highest, to {self._levels}"
            raise Undecodable(text)
        return int(value)

    def _checked(self, priority: int) -> int:
        """The priority in the message; 0 without one."""
        if priority > self._levels:
            text = f"the parameter priority is 1, the highest, to {self._levels}, or 0"
            raise Undecodable(text)
        return priority


def path_of(route: Http | Grpc | BaiduStd) -> str:
    """The path of a route, as the page of routes shows it."""
    return route.pattern if isinstance(route, Http) else route.path
