"""The options of a remote op: which servers it calls, and as what. Plain data.

Apart from the code that calls them, which a service without such an op does not import.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.client.endpoints import Endpoint
from penstock.client.tls import Tls

RemoteKind: TypeAlias = Literal["model", "general_model", "pipeline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """The options of a remote op.

    Attributes:
        kind: the protocol of the endpoints.
        endpoints: the endpoints.
        name: name of the remote model or pipeline; None: the op's name for a model, no name for a
            pipeline.
        op: the op's name.
        fetch_list: the outputs to return; None for all.
        client_config: path of the file with aliases, or of its folder.
        encryption_key: path of the key of an encrypted model; None if it is not encrypted.
        token: the place of the token that is sent, see ``token_at``; None for none.
        tls: files for TLS; None for connections without it.
    """

    kind: RemoteKind
    endpoints: tuple[Endpoint, ...]
    name: str | None
    op: str
    fetch_list: tuple[str, ...] | None = None
    client_config: str | None = None
    encryption_key: str | None = None
    token: str | None = None
    tls: Tls | None = None

    def __str__(self) -> str:
        what = self.kind if self.name is None else f"{self.kind} {self.name}"
        return f"{what} at {', '.join(map(str, self.endpoints))}"
