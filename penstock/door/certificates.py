"""The certificates of a service, which are read again when their files change."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from penstock.door.detection import PROTOCOLS
from penstock.errors import StartupError

_log = logging.getLogger(__name__)

_MISSING: Final = (0, 0, 0)

_Stamp: TypeAlias = tuple[int, int, int]


class Certificates:
    """Makes the TLS context of new connections: that of the files, or the last one if the files
    cannot be used now. Belongs to one loop.

    Files are compared by inode, size and time of change, so that a replaced symbolic link, as of
    Kubernetes' secrets, is noticed as well. Connections that are open keep their context.

    Args:
        files: absolute paths.
        read: makes a context from them; raises StartupError if they cannot be used.

    Raises:
        StartupError: they cannot be used.
    """

    def __init__(self, files: Sequence[str], read: Callable[[], ssl.SSLContext]) -> None:
        self._files = files
        self._read = read
        # Before they are read: what changes meanwhile is noticed later.
        self._stamps = self._stamps_now()
        self._context = prepared(read())

    def current(self) -> ssl.SSLContext:
        """The context of a new connection."""
        stamps = self._stamps_now()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._context = prepared(self._read())
            except StartupError as error:
                _log.error("the certificates of before remain in use: %s", error)
            else:
                _log.info("new connections use the changed certificates")
        return self._context

    def _stamps_now(self) -> list[_Stamp]:
        return [_stamp(each) for each in self._files]


def _stamp(path: str) -> _Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return _MISSING
    return found.st_ino, found.st_size, found.st_mtime_ns


def prepared(context: ssl.SSLContext) -> ssl.SSLContext:
    """The same context, which offers HTTP/2 and HTTP/1.1, and at least TLS 1.2."""
    context.set_alpn_protocols(PROTOCOLS)
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
    return context
