"""The target of a load test: a service, and the requests that are sent to it in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from penstock.errors import PenstockError

Field: TypeAlias = tuple[str, str]
Calls: TypeAlias = Literal["pipeline", "inference"]
"""The gRPC services that can be called: the pipeline's, and the Open Inference Protocol's."""


class BadTarget(PenstockError):
    """There is nothing to send, or nobody who answers."""


class Body(NamedTuple):
    """One request's content, and the fields of its head that belong to it; of gRPC the message."""

    content: bytes
    fields: tuple[Field, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go, and which.

    Attributes:
        url: as it was given.
        tls: whether the connection is encrypted; ``ca_file`` has certificates to trust.
        calls: the gRPC service; None is HTTP.
        method: of HTTP.
        path: with the query; of gRPC the method's.
        headers: of every request.
        bodies: sent in turn.
    """

    url: str
    host: str
    port: int
    tls: bool = False
    ca_file: str | None = None
    calls: Calls | None = None
    method: str = "POST"
    path: str = "/"
    headers: tuple[Field, ...] = ()
    bodies: tuple[Body, ...] = (Body(b""),)

    @property
    def authority(self) -> str:
        """The host and the port, as URLs write them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def status_url(self) -> str:
        """The server, as its status is asked for."""
        return f"{'https' if self.tls else 'http'}://{self.authority}"

    def asked(self, calls: Calls | None, path: str, bodies: Sequence[Body]) -> Target:
        """The same service, asked this; without a body by GET."""
        method = "POST" if bodies else "GET"
        sent = (*bodies,) or (Body(b""),)
        return replace(self, calls=calls, method=method, path=path, bodies=sent)
