"""TLS options of clients: trusted authorities and client certificates."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from os import PathLike
from typing import TypeAlias

File: TypeAlias = str | PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Encrypts connections and verifies the server's certificate; files are PEM.

    Attributes:
        ca_file: trusted certificates instead of the system's authorities.
        cert_file: the client's certificate chain, for servers that require one.
        key_file: the private key of ``cert_file``.
        server_name: the name to expect in the server's certificate instead of the endpoint's host.
    """

    ca_file: File | None = None
    cert_file: File | None = None
    key_file: File | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together")


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """A ``Tls`` whose files were read.

    Attributes:
        context: has the certificates; for HTTP/2 only.
        server_name: as in ``Tls``.
    """

    context: ssl.SSLContext
    server_name: str | None


def read_files(tls: Tls) -> Security:
    """Read the files.

    Raises:
        OSError: a file cannot be read, or is invalid.
    """
    context = ssl.create_default_context(cafile=tls.ca_file)
    context.set_alpn_protocols(["h2"])
    if tls.cert_file is not None:
        # A key with a password is refused; otherwise OpenSSL would ask for it on the terminal.
        context.load_cert_chain(tls.cert_file, tls.key_file, password=lambda: "")
    return Security(context=context, server_name=tls.server_name)
