"""The engine's end of the socket to one worker process: frames both ways, descriptors to it.

The engine does not watch the socket, but an eventfd that the worker signals: so the worker can send
each answer at once, and still wake the engine once for many.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from penstock.executors.transport.frames import Frame, FrameError, FrameReader

_AT_ONCE: Final = 256 << 10  # bytes of one read
_READS_AT_ONCE: Final = 64
"""Most reads in one turn of the loop: more than a socket's buffer, unless the worker goes on
writing."""
_MOST_PIECES: Final = 512  # of one write; the system takes 1024
_CLOSED_ON_EXEC: Final = int(socket.MSG_CMSG_CLOEXEC)  # plain numbers: enumerations cost more
_LOST: Final = int(socket.MSG_CTRUNC)

Piece: TypeAlias = bytes | memoryview


class Channel:
    """See the module.

    Args:
        channel: the socket; closed with this.
        loop: the engine's.
        on_frame: called with each frame. A FrameError that it raises ends the channel.
        broken: called once, in a later turn, with the worker's violation of the protocol.
        limit: most bytes of a body.

    Attributes:
        event: the eventfd that the worker signals.
        over: it has ended, or is closed: nothing more is read.
    """

    def __init__(
        self,
        channel: socket.socket,
        loop: asyncio.AbstractEventLoop,
        on_frame: Callable[[Frame], None],
        broken: Callable[[FrameError], None],
        limit: int,
    ) -> None:
        channel.setblocking(False)
        self._reader = FrameReader(limit)
        self.event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.over = False
        self._channel = channel
        self._loop = loop
        self._on_frame = on_frame
        self._broken = broken
        self._unsent: deque[tuple[list[Piece], list[int]]] = deque()
        self._closed = False
        loop.add_reader(self.event, self._signalled)

    def send(self, pieces: Sequence[Piece], descriptors: Sequence[int] = ()) -> None:
        """Write a frame's pieces, now or when the socket is writable.

        The pieces must not change until they are written; the channel closes the descriptors.
        """
        if self.over or self._closed:
            for each in descriptors:
                os.close(each)
            return
        self._unsent.append((list(pieces), list(descriptors)))
        if len(self._unsent) == 1:
            self._write()

    def read(self) -> None:
        """Read and dispatch the available frames."""
        for _ in range(_READS_AT_ONCE):
            if self.over:
                return
            try:
                data = self._channel.recv(_AT_ONCE)
            except OSError:  # nothing to read now, or never again
                return
            if not data:
                return
            try:
                for frame in self._reader.receive(data):
                    self._on_frame(frame)
            except FrameError as error:
                self.end(error)
                return
            if len(data) < _AT_ONCE:
                return
        self._loop.call_soon(self.read)

    def end(self, error: FrameError) -> None:
        """Stop reading: the worker violated the protocol, here or elsewhere."""
        if not self.over:
            self.over = True
            self._loop.call_soon(self._report, error)

    def close(self) -> None:
        """Close the socket; ``broken`` is not called any more."""
        if self._closed:
            return
        self.over = self._closed = True
        self._loop.remove_reader(self.event)
        os.close(self.event)
        self._loop.remove_writer(self._channel)
        self._channel.close()
        for _, descriptors in self._unsent:
            for each in descriptors:
                os.close(each)
        self._unsent.clear()

    def _signalled(self) -> None:
        os.eventfd_read(self.event)
        self.read()

    def _report(self, error: FrameError) -> None:
        if not self._closed:
            self._broken(error)

    def _write(self) -> None:
        unsent = self._unsent
        while unsent:
            pieces, descriptors = unsent[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            try:
                sent = self._channel.sendmsg(pieces[:_MOST_PIECES], rights if descriptors else [])
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._channel, self._write)
                return
            except OSError as error:
                if descriptors:  # too many are in flight, or it has ended
                    self.end(FrameError(f"a descriptor cannot be sent: {error}"))
                self._loop.remove_writer(self._channel)  # else it has ended; the reader detects it
                return
            while descriptors:
                os.close(descriptors.pop())
            _drop(pieces, sent)
            if not pieces:
                unsent.popleft()
        self._loop.remove_writer(self._channel)


def _drop(pieces: list[Piece], sent: int) -> None:
    """Remove the bytes that were sent from the front."""
    whole = 0
    for piece in pieces:
        if len(piece) > sent:
            break
        sent -= len(piece)
        whole += 1
    del pieces[:whole]
    if sent:
        pieces[0] = memoryview(pieces[0])[sent:]


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
