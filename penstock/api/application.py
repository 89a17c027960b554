"""What is behind the door: applications, what they declare, and the admission of callers.

An application declares its routes and, with each, its form of error: ``failed`` for errors before
the handler is called, ``refusal`` for other methods, unsupported codings and the door's refusals. A
``Section`` declares the same for paths without a route.

The built-in protocols serve every graph by its name, but give way to what other applications
declare: a graph with a route of its own (``Http.graph``) is not served by name, and paths of a
section are no calls of the pipeline protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from penstock.api.baidu_std import BaiduStd
from penstock.api.errors import no_route
from penstock.api.errors import refusal as refusal_of_ours
from penstock.api.grpc import Grpc
from penstock.api.http import Http, failure, text_reply
from penstock.door.exchange import Exchange, HttpReply
from penstock.engine.engine import Engine
from penstock.engine.graph import ServedGraph
from penstock.engine.submission import Submission
from penstock.errors import StartupError
from penstock.request import Feed

Route: TypeAlias = Http | Grpc | BaiduStd

WHOLE: Final = "/"
"""The path of a section that is the whole service."""


@dataclass(frozen=True, slots=True)
class Section:
    """Paths of one application, and its form of error for those without a route.

    Attributes:
        path: such as ``/v2``, for all paths below it; ``WHOLE`` for all that are in no other one:
            then the pipeline protocol only answers calls of known graphs.
        not_found: makes the answer to a path without a route; None: that of the service.
        refusal: makes the answer to other requests for such a path, from a status and a text; None:
            that of the service.
        takes: whether a path, as segments without percent-encoding, is in the section; None: all
            below ``path``.
    """

    path: str
    not_found: Callable[[str], HttpReply] | None = None
    refusal: Callable[[int, str], HttpReply] | None = None
    takes: Callable[[Sequence[bytes]], bool] | None = None

    def has(self, segments: Sequence[bytes]) -> bool:
        """Whether a path, as segments without percent-encoding, is in it."""
        above = self.path.rstrip("/").encode().split(b"/")
        below = len(segments) > len(above) and segments[: len(above)] == above
        return below and (self.takes is None or self.takes(segments))


class Application(Protocol):
    """One protocol, or a set of pages."""

    def routes(self) -> Iterable[Route | Section]:
        """Its routes with their handlers, and the sections of paths that it has; called once."""


@runtime_checkable
class Lifespan(Protocol):
    """What is to be started and ended with the engine. An application may be it as well."""

    async def start(self) -> None:
        """Start, before the service is ready.

        Raises:
            StartupError: it cannot start.
        """

    async def stop(self) -> None:
        """End, after the last request; must not raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An example request of a route, which runs before the service is ready, and in the deep health
    check.

    Attributes:
        path: of the route.
        graph: the name of the route's graph.
        number: its number within its route, from 1 on.
        submission: makes its submission, anew for each run, from a version of the graph, a timeout
            in seconds and a log id. Raises RequestError if the request is invalid.
        answer: the answer's body and its media type, from that submission and the graph's result.
            Raises RequestError if there is none.
        wanted: the expected answer as a plain value; None for any answer without an error.
    """

    path: str
    graph: str
    number: int
    submission: Callable[[ServedGraph, float, int], Submission]
    answer: Callable[[Any, Feed], tuple[bytes, str]]
    wanted: Any = None


@runtime_checkable
class HasExamples(Protocol):
    """What has example requests. An application may be it as well."""

    def example_requests(self) -> Iterable[Example]:
        """The examples of its routes; called once, before the service is ready."""


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


class Applications:
    """The applications of one service, and what they declare together.

    Read once all of them are added. Belongs to the engine's loop.

    Args:
        engine: has the graphs.

    Attributes:
        declared: the routes and sections of all, in the order of the applications.
        admission: admits callers; None admits all.
        readmit: admits the caller of a further message of a stream, whose key may be void by now;
            None admits all.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.declared: list[Route | Section] = []
        self.admission: Admission | None = None
        self.readmit: Callable[[Route, Exchange], object] | None = None
        self._front: tuple[int, Section | None] = -1, None  # as of the engine's epoch

    def add(self, application: Application) -> None:
        """Add what an application declares.

        Raises:
            StartupError: it admits callers, as another one does.
        """
        self.declared += application.routes()
        if isinstance(application, Admission):
            if self.admission is not None:
                raise StartupError("two applications admit callers: only one may")
            self.admission = application

    def take(self, wanted: Callable[[Route | Section], bool]) -> list[Route | Section]:
        """Remove what is declared for another port, and return it."""
        taken = [each for each in self.declared if wanted(each)]
        self.declared = [each for each in self.declared if not wanted(each)]
        return taken

    @property
    def routes(self) -> Iterator[Route]:
        """Of all."""
        return (each for each in self.declared if not isinstance(each, Section))

    @cached_property
    def graphs(self) -> frozenset[str]:
        """Names of the graphs with routes of their own, which are not served by name."""
        https = (each for each in self.routes if isinstance(each, Http))
        return frozenset(name for each in https for name in each.own_graphs)

    @cached_property
    def paths(self) -> Mapping[str, frozenset[str]]:
        """The paths of each graph's own routes, by its name."""
        https = [each for each in self.routes if isinstance(each, Http)]
        return {
            name: frozenset(each.pattern for each in https if name in each.own_graphs)
            for name in self.graphs
        }

    def is_taken(self, segment: bytes) -> bool:
        """Whether paths with this first segment are in a section of an application."""
        return segment in self._firsts

    @property
    def front(self) -> Section | None:
        """The section that is the whole service; None if the pipeline protocol answers for it.

        Either an application declares it, or each graph has routes of its own.
        """
        if self._front[0] != self._engine.epoch:
            self._front = self._engine.epoch, self._whole or self._own_routes()
        return self._front[1]

    def _own_routes(self) -> Section | None:
        names = {graph.name for graph in self._engine.graphs}
        return Section(WHOLE) if self.graphs and self.graphs >= names else None

    def no_route(self, path: str) -> HttpReply | None:
        """The answer to a path without a route, in the service's form; None if it has none."""
        whole = self._whole
        if whole is not None and whole.not_found is not None:
            return whole.not_found(path)
        if whole is None and not self.graphs:
            return None
        names = (name for name in self._engine.names if name not in self.graphs)
        return no_route([*self._paths, *(f"/{name}" for name in names)], path)

    def not_found(self, path: str) -> HttpReply:
        """The same with a usual answer."""
        return self.no_route(path) or text_reply(404, "Not Found")

    def refusal(self, status: int, text: str) -> HttpReply:
        """The answer to other requests without a route or a complete head."""
        front = self.front
        refusal = failure if front is None else front.refusal or refusal_of_ours
        return refusal(status, text)

    @cached_property
    def _paths(self) -> list[str]:
        https = (each for each in self.routes if isinstance(each, Http))
        return [each.pattern for each in https if "{" not in each.pattern]

    @cached_property
    def _firsts(self) -> frozenset[bytes]:
        sections = (each for each in self.declared if isinstance(each, Section))
        return frozenset(each.path.split("/")[1].encode() for each in sections) - {b""}

    @cached_property
    def _whole(self) -> Section | None:
        for each in self.declared:
            if isinstance(each, Section) and each.path == WHOLE and each.takes is None:
                return each
        return None


def sections_of(paths: Iterable[str]) -> Iterator[Section]:
    """The sections of routes with several segments, in the service's form of error."""
    firsts = (path.split("/")[1] for path in paths if path.count("/") > 1)
    return (Section(f"/{first}") for first in dict.fromkeys(firsts) if "{" not in first)
