"""What a scenario is: a floor and its contenders under the same loads, and what is promised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.rounds import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How many requests are in flight, and over what.

    ``heads``: whether the requests' heads are the ``same`` or ``different``; without it they hold
    only what the protocol needs.
    """

    protocol: str
    connections: int
    streams: int = 1
    heads: str | None = None

    @property
    def label(self) -> str:
        """How the table names it."""
        heads = f", {self.heads} heads" if self.heads is not None else ""
        if self.protocol == "http":
            return f"{self.connections} conn{heads}"
        return f"{self.connections}x{self.streams} calls{heads}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One side of a comparison: a server script, or a bare loop when it has none.

    Attributes:
        loop: the module of that loop, which runs models or whatever its options say.
        exact: every answer must equal the first one, byte by byte. Off where batches of changing
            size may change the last bit of a result.
        client: what is measured is this client of ``benchmarks.client_calls``, against the server.
    """

    name: str
    server: str | None = None
    loop: str = "runtime_loop"
    protocols: tuple[str, ...] = ("http", "grpc")
    options: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    batch: int = 1
    exact: bool = True
    client: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A floor and its contenders under the same loads.

    Attributes:
        body: what is sent: a JSON text for HTTP, a serialised Request for gRPC.
        right: whether an answer's body holds the right values; gets the folder of the models.
        programs: the load comes from h2load and wrk where they are installed. They hardly cost
            CPU, which counts where the server answers in microseconds, but of an answer they see
            only status and weight.
        scales: servers have every core, and what another of them brings is measured. The clients
            need some of it, so the table says how much more there could have been.
        targets: (contender, load's label) to what is promised.
        patience: how many times the usual length one measurement takes.
    """

    name: str
    title: str
    path: str
    body: Callable[[], bytes]
    right: Callable[[bytes, Path], bool]
    floor: Contender
    ours: tuple[Contender, ...]
    loads: tuple[Load, ...]
    programs: bool = False
    scales: bool = False
    targets: Mapping[tuple[str, str], Target] = field(default_factory=dict)
    patience: float = 1.0
