"""The target of a load test: a service, and the requests that are sent to it in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

from penstock.client.token import Token
from penstock.errors import PenstockError
from penstock.observe.status import ask_status

Field: TypeAlias = tuple[str, str]
Calls: TypeAlias = Literal["pipeline", "inference"]
"""The gRPC services that can be called: the pipeline's, and the Open Inference Protocol's."""


class BadTarget(PenstockError):
    """There are no valid requests, or the service does not answer."""


class Body(NamedTuple):
    """One request's body and its header fields; for gRPC the message."""

    content: bytes
    fields: tuple[Field, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A service and the requests to send to it.

    Attributes:
        url: the URL as given.
        tls: whether connections are encrypted; ``ca_file`` has trusted certificates.
        calls: the gRPC service; None for HTTP.
        method: the HTTP method.
        path: path with query; for gRPC the method's path.
        headers: header fields of every request.
        token: a key or token for the service, in ``headers`` as well.
        bodies: the bodies, sent in turn.
        in_pieces: whether the answers come in pieces, whose times are measured; only over HTTP.
    """

    url: str
    host: str
    port: int
    tls: bool = False
    ca_file: str | None = None
    calls: Calls | None = None
    method: str = "POST"
    path: str = "/"
    headers: tuple[Field, ...] = field(default=(), repr=False)
    token: Token | None = field(default=None, repr=False)
    bodies: tuple[Body, ...] = (Body(b""),)
    in_pieces: bool = False

    @property
    def authority(self) -> str:
        """Host and port as in URLs."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def status_url(self) -> str:
        """The server's address for requests of its status."""
        return f"{'https' if self.tls else 'http'}://{self.authority}"

    def status(self) -> dict[str, Any]:
        """Request the server's status.

        Raises:
            NoStatus: there is none.
        """
        return ask_status(self.status_url, ca_file=self.ca_file, token=self.token)

    def with_requests(self, calls: Calls | None, path: str, bodies: Sequence[Body]) -> Target:
        """Return a target of the same service with other requests; without a body by GET."""
        method = "POST" if bodies else "GET"
        sent = (*bodies,) or (Body(b""),)
        return replace(self, calls=calls, method=method, path=path, bodies=sent)
