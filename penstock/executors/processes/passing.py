"""Bytes that come with descriptors. ``socket.recv_fds`` of Python 3.11 ignores its flags."""

from __future__ import annotations

import array
import socket
from typing import Final

# As plain numbers: what the flags of an enumeration do costs more than the system's part of it.
_CLOSED_ON_EXEC: Final = int(socket.MSG_CMSG_CLOEXEC)
_LOST: Final = int(socket.MSG_CTRUNC)
_EACH: Final = array.array("i").itemsize


def receive(
    channel: socket.socket, size: int, most: int, flags: int = 0
) -> tuple[bytes, list[int], bool]:
    """Read from a Unix socket.

    Args:
        channel: the socket.
        size: most bytes.
        most: most descriptors; they are the caller's to close, and programs that it starts do not
            inherit them.
        flags: as for ``recv``.

    Returns:
        The bytes, the descriptors, and whether some descriptors were lost because there were more.

    Raises:
        OSError: as ``recv``.
    """
    data, ancillary, told, _ = channel.recvmsg(
        size, socket.CMSG_SPACE(most * _EACH), flags | _CLOSED_ON_EXEC
    )
    if not ancillary:
        return data, [], bool(told & _LOST)
    each = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            each.frombytes(content[: len(content) // _EACH * _EACH])
    return data, list(each), bool(told & _LOST)
