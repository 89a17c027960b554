"""Bytes that come with descriptors. ``socket.recv_fds`` of Python 3.11 ignores its flags."""

from __future__ import annotations

import array
import errno
import os
import socket
from collections.abc import Sequence
from typing import Final

from penstock.executors.processes.frame import FrameError

# As plain numbers: what the flags of an enumeration do costs more than the system's part of it.
_CLOSED_ON_EXEC: Final = int(socket.MSG_CMSG_CLOEXEC)
_LOST: Final = int(socket.MSG_CTRUNC)
_EACH: Final = array.array("i").itemsize

_LACKING: Final = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM)
)


class NoDescriptorError(FrameError):
    """None is left in this process, which is not the fault of who is at the other end."""


def lacks(error: OSError) -> bool:
    """Whether there is no room for a descriptor, or for one more on its way: of those the kernel
    counts all that a user has.
    """
    return error.errno in _LACKING


def unusable(text: str, error: OSError | ValueError) -> FrameError:
    """Why a descriptor that came, or is to be sent, is of no use."""
    lacking = isinstance(error, OSError) and lacks(error)
    kind = NoDescriptorError if lacking else FrameError
    return kind(f"{text}: {error}")


def duplicates(descriptors: Sequence[int]) -> list[int]:
    """As many new ones; they are the caller's.

    Raises:
        NoDescriptorError: so many are not left.
    """
    made: list[int] = []
    try:
        for each in descriptors:
            made.append(os.dup(each))
    except OSError as error:
        for each in made:
            os.close(each)
        raise NoDescriptorError(f"a descriptor cannot be sent: {error}") from error
    return made


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
        NoDescriptorError: some were lost because this process may have no more.
        OSError: as ``recv``.
    """
    data, ancillary, told, _ = channel.recvmsg(
        size, socket.CMSG_SPACE(most * _EACH), flags | _CLOSED_ON_EXEC
    )
    if not ancillary and not told & _LOST:
        return data, [], False
    each = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            each.frombytes(content[: len(content) // _EACH * _EACH])
    lost = bool(told & _LOST)
    if lost and len(each) < most:
        for descriptor in each:
            os.close(descriptor)
        raise NoDescriptorError("a descriptor that came cannot be taken: there are too many")
    return data, list(each), lost
