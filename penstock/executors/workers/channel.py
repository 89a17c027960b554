"""The engine's end of the byte stream to one worker: frames both ways."""

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

Piece: TypeAlias = bytes | memoryview


class Channel:
    """See the module. Frames that are sent before ``attach`` wait for it.

    Args:
        loop: the engine's.
        on_frame: called with each frame. A FrameError that it raises ends the channel.
        broken: called once, in a later turn, with the worker's violation of the protocol.
        ended: called once, in a later turn, when the other end is closed.
        limit: most bytes of a body.

    Attributes:
        over: it has ended, or is closed: nothing more is read.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_frame: Callable[[Frame], None],
        broken: Callable[[FrameError], None],
        ended: Callable[[], None],
        limit: int,
    ) -> None:
        self.over = False
        self._reader = FrameReader(limit)
        self._link: socket.socket | None = None
        self._loop = loop
        self._on_frame = on_frame
        self._broken = broken
        self._ended = ended
        self._unsent: deque[tuple[list[Piece], list[int]]] = deque()
        self._closed = self._at_end = False

    def attach(self, link: socket.socket) -> None:
        """Use this stream socket, which is closed with this."""
        if self._closed:
            link.close()
            return
        link.setblocking(False)
        self._link = link
        self._watch(link)
        if self._unsent:
            self._write()

    def send(self, pieces: Sequence[Piece], descriptors: Sequence[int] = ()) -> None:
        """Write a frame's pieces, now or when the socket is writable.

        The pieces must not change until they are written; the channel closes the descriptors, which
        only a Unix socket carries.
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
        link = self._link
        for _ in range(_READS_AT_ONCE):
            if self.over or link is None:
                return
            try:
                data = link.recv(_AT_ONCE)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self._reached_end()
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
        """Close the socket; ``broken`` and ``ended`` are not called any more."""
        if self._closed:
            return
        self.over = self._closed = True
        if self._link is not None:
            self._unwatch(self._link)
            self._loop.remove_writer(self._link)
            self._link.close()
        for _, descriptors in self._unsent:
            for each in descriptors:
                os.close(each)
        self._unsent.clear()

    def _watch(self, link: socket.socket) -> None:
        self._loop.add_reader(link, self.read)

    def _unwatch(self, link: socket.socket) -> None:
        self._loop.remove_reader(link)

    def _reached_end(self) -> None:
        if not self._at_end:
            self._at_end = True
            assert self._link is not None
            self._unwatch(self._link)
            self._loop.call_soon(self._report_end)

    def _report_end(self) -> None:
        if not self._closed:
            self._ended()

    def _report(self, error: FrameError) -> None:
        if not self._closed:
            self._broken(error)

    def _write(self) -> None:
        unsent, link = self._unsent, self._link
        if link is None:
            return
        while unsent:
            pieces, descriptors = unsent[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            try:
                sent = link.sendmsg(pieces[:_MOST_PIECES], rights if descriptors else [])
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(link, self._write)
                return
            except OSError as error:
                if descriptors:  # too many are in flight, or it has ended
                    self.end(FrameError(f"a descriptor cannot be sent: {error}"))
                self._loop.remove_writer(link)  # else it has ended; the reader detects it
                return
            while descriptors:
                os.close(descriptors.pop())
            _drop(pieces, sent)
            if not pieces:
                unsent.popleft()
        self._loop.remove_writer(link)


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
