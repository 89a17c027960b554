"""The engine's end of the socket to one worker process: a channel that also carries descriptors.

The engine does not watch the socket, but an eventfd that the worker signals: so the worker can send
each answer at once, and still wake the engine once for many. The supervisor reports its end.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections.abc import Callable
from typing import Final

from penstock.executors.transport.frames import Frame, FrameError
from penstock.executors.workers.channel import Channel

_CLOSED_ON_EXEC: Final = int(socket.MSG_CMSG_CLOEXEC)  # plain numbers: enumerations cost more
_LOST: Final = int(socket.MSG_CTRUNC)


class ProcessChannel(Channel):
    """See the module.

    Args:
        link: a Unix socket; closed with this.

    Attributes:
        event: the eventfd that the worker signals.
    """

    def __init__(
        self,
        link: socket.socket,
        loop: asyncio.AbstractEventLoop,
        on_frame: Callable[[Frame], None],
        broken: Callable[[FrameError], None],
        limit: int,
    ) -> None:
        super().__init__(loop, on_frame, broken, lambda: None, limit)
        self.event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.attach(link)

    def _watch(self, link: socket.socket) -> None:
        self._loop.add_reader(self.event, self._signalled)

    def _unwatch(self, link: socket.socket) -> None:
        self._loop.remove_reader(self.event)
        os.close(self.event)

    def _reached_end(self) -> None:
        """The process is ending, which its pidfd shows."""

    def _signalled(self) -> None:
        os.eventfd_read(self.event)
        self.read()


def receive(channel: socket.socket, size: int, most: int) -> tuple[bytes, list[int], bool]:
    """Read bytes that may come with descriptors. ``socket.recv_fds`` of 3.11 ignores its flags.

    Args:
        channel: a Unix socket.
        size: most bytes.
        most: most descriptors; the caller closes them, and child programs do not inherit them.

    Returns:
        The bytes, the descriptors, and whether some descriptors were lost.

    Raises:
        OSError: as ``recvmsg``.
    """
    each = array.array("i")
    data, ancillary, flags, _ = channel.recvmsg(
        size, socket.CMSG_SPACE(most * each.itemsize), _CLOSED_ON_EXEC
    )
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            each.frombytes(content[: len(content) // each.itemsize * each.itemsize])
    return data, list(each), bool(flags & _LOST)
