"""Bytes that come with descriptors. ``socket.recv_fds`` of Python 3.11 ignores its flags."""

from __future__ import annotations

import array
import socket


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
    each = array.array("i")
    data, ancillary, told, _ = channel.recvmsg(
        size, socket.CMSG_SPACE(most * each.itemsize), flags | socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            each.frombytes(content[: len(content) // each.itemsize * each.itemsize])
    return data, list(each), bool(told & socket.MSG_CTRUNC)
