"""How to trust a server, and how to be trusted by it."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import TypeAlias

File: TypeAlias = str | PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Encrypt the connection and check the server's certificate; files are PEM.

    Attributes:
        ca_file: certificates to trust instead of the well-known authorities.
        cert_file: the client's own certificate chain, for servers that ask for one.
        key_file: the private key to ``cert_file``.
        server_name: the name to expect in the server's certificate instead of the endpoint's host.
    """

    ca_file: File | None = None
    cert_file: File | None = None
    key_file: File | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together")
