"""TLS options of clients: trusted authorities and client certificates, which are read again when
their files change.
"""

from __future__ import annotations

import errno
import logging
import os
import ssl
from dataclasses import dataclass
from typing import TypeAlias

File: TypeAlias = str | os.PathLike[str]

_log = logging.getLogger(__name__)


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


class Security:
    """A ``Tls`` whose files were read. Belongs to one loop.

    Args:
        tls: the files.
        alpn: the protocol of the connections.

    Attributes:
        server_name: as in ``Tls``.

    Raises:
        OSError: a file cannot be read, or is invalid; it is ``filename``.
    """

    def __init__(self, tls: Tls, alpn: str = "h2") -> None:
        self._alpn = alpn
        self.server_name = tls.server_name
        # Absolute: they are read again, and a script may leave the folder.
        self._authorities, self._certificate, self._key = (
            None if each is None else os.path.abspath(each)
            for each in (tls.ca_file, tls.cert_file, tls.key_file)
        )
        self._stamps = self._stamps_now()  # first: what changes meanwhile is noticed later
        self._context = self._read()

    @property
    def context(self) -> ssl.SSLContext:
        """That of a new connection. If the files have changed and cannot be used
        now, the last one.
        """
        stamps = self._stamps_now()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._context = self._read()
            except OSError as error:
                _log.warning("%s; the certificates of before remain in use", error)
        return self._context

    def _files(self) -> list[str]:
        files = (self._authorities, self._certificate, self._key)
        return [each for each in files if each is not None]

    def _stamps_now(self) -> list[tuple[int, ...]]:
        return [_stamp(each) for each in self._files()]

    def _read(self) -> ssl.SSLContext:
        for each in self._files():  # OpenSSL's errors do not name the file
            with open(each, "rb") as file:
                file.read()
        try:
            context = ssl.create_default_context(cafile=self._authorities)
        except ssl.SSLError as error:
            raise _unusable(self._authorities, "no PEM file of certificates", error) from error
        context.set_alpn_protocols([self._alpn])
        if self._certificate is not None:
            assert self._key is not None, "they go together"
            try:
                # A key with a password is refused; otherwise OpenSSL would ask for it on the
                # terminal.
                context.load_cert_chain(self._certificate, self._key, password=lambda: "")
            except ssl.SSLError as error:
                raise self._problem(self._certificate, error) from error
        return context

    def _problem(self, certificate: str, error: ssl.SSLError) -> OSError:
        """Which file of a certificate and a private key cannot be used."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certificate)
        except ssl.SSLError:
            return _unusable(certificate, "no PEM file of a certificate", error)
        what = f"no PEM file of the private key, without a passphrase, of {certificate}"
        return _unusable(self._key, what, error)


def _unusable(file: str | None, what: str, error: ssl.SSLError) -> OSError:
    return OSError(errno.EINVAL, f"{what} ({error.reason or error})", file)


def _stamp(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns
