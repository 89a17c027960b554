"""What is behind the door: applications with their routes, and the admission of callers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias, runtime_checkable

from penstock.api.baidu_std import BaiduStd
from penstock.api.grpc import Grpc
from penstock.api.http import Http
from penstock.door.exchange import Exchange

Route: TypeAlias = Http | Grpc | BaiduStd


class Application(Protocol):
    """One protocol, or a set of pages."""

    def routes(self) -> Iterable[Route]:
        """Its routes and their handlers; called once."""


@runtime_checkable
class Admission(Protocol):
    """Decides which callers a service admits. One of its applications may be it as well."""

    def admit(self, route: Route, exchange: Exchange) -> Any:
        """Admit a request of any protocol; called once for each, before its body is read.

        Called on the door's loop: must be quick, and must not block. Requests beyond the door's
        limits, and those without a route, are refused before. Under an ASGI server the first piece
        of the body has been read.

        Args:
            route: what is called; probes are ``always`` answered otherwise.
            exchange: has the ``head`` and the ``peer``.

        Returns:
            the caller's identity, of any type: ``caller`` of the call and its submission.

        Raises:
            RequestError: the caller is refused; the route's ``failed`` answers. An error with a
                status of its own needs a row in ``protocols.status.STATUS``.
        """
