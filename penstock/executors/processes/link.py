"""The engine's end of the socket to one worker process: frames and descriptors, on the loop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from penstock.executors.processes.frame import Frame, FrameError, FrameReader
from penstock.executors.processes.passing import receive

_AT_ONCE: Final = 64 << 10  # bytes of one read
_MOST_DESCRIPTORS: Final = 16
"""Descriptors that wait for their frames, or come with one read."""
_MOST_PIECES: Final = 512  # of one write; the system takes 1024

Piece: TypeAlias = bytes | memoryview
Hear: TypeAlias = Callable[[Frame], None]


class Link:
    """See the module.

    Args:
        channel: the socket; closed with the link.
        loop: the engine's.
        most: bytes of the largest frame that is taken.
        hear: called with each frame. What it raises as FrameError ends the link.
        ended: called once, in a turn of its own, when the worker has hung up or broke the rules:
            with the reason in the latter case.

    Attributes:
        descriptors: those that came and were not taken, in order; each belongs to the frame that
            says so.
    """

    def __init__(
        self,
        channel: socket.socket,
        loop: asyncio.AbstractEventLoop,
        most: int,
        hear: Hear,
        ended: Callable[[FrameError | None], None],
    ) -> None:
        channel.setblocking(False)
        self.descriptors: deque[int] = deque()
        self._channel = channel
        self._loop = loop
        self._reader = FrameReader(most)
        self._hear = hear
        self._ended = ended
        self._open = True
        self._unsent: deque[tuple[list[Piece], list[int]]] = deque()
        loop.add_reader(channel, self._read)

    def send(self, pieces: Sequence[Piece], descriptors: Sequence[int] = ()) -> None:
        """Write a frame's pieces, now or as soon as the worker reads.

        The pieces must not change until they are written. ``descriptors`` are duplicated at once,
        so that their owner may close them.
        """
        if not self._open:
            return
        self._unsent.append((list(pieces), [os.dup(each) for each in descriptors]))
        if len(self._unsent) == 1:
            self._write()

    def take_descriptor(self) -> int:
        """The next descriptor; it is the caller's now.

        Raises:
            FrameError: none has come with the frame that needs one.
        """
        if not self.descriptors:
            raise FrameError("the worker sent no descriptor where one belongs")
        return self.descriptors.popleft()

    def close(self) -> None:
        """Hang up; ``ended`` is not called any more."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._channel)
        self._loop.remove_writer(self._channel)
        self._channel.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()
        for _, duplicates in self._unsent:
            for descriptor in duplicates:
                os.close(descriptor)
        self._unsent.clear()

    def _read(self) -> None:
        try:
            data, descriptors, lost = receive(self._channel, _AT_ONCE, _MOST_DESCRIPTORS)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, descriptors, lost = b"", [], False
        self.descriptors.extend(descriptors)
        if not data:
            self._end(None)
            return
        try:
            if lost or len(self.descriptors) > _MOST_DESCRIPTORS:
                raise FrameError("the worker sent more descriptors than frames")
            for frame in self._reader.receive(data):
                self._hear(frame)
                if not self._open:
                    return
        except FrameError as error:
            self._end(error)

    def _write(self) -> None:
        unsent = self._unsent
        while unsent:
            pieces, descriptors = unsent[0]
            try:
                sent = socket.send_fds(self._channel, pieces[:_MOST_PIECES], descriptors)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._channel, self._write)
                return
            except OSError:
                # It has hung up, which the reading side finds after what it has still said.
                self._loop.remove_writer(self._channel)
                return
            while descriptors:
                os.close(descriptors.pop())
            _drop(pieces, sent)
            if not pieces:
                unsent.popleft()
        self._loop.remove_writer(self._channel)

    def _end(self, error: FrameError | None) -> None:
        self._loop.remove_reader(self._channel)
        self._loop.call_soon(self._tell_end, error)

    def _tell_end(self, error: FrameError | None) -> None:
        if self._open:
            self._ended(error)


def _drop(pieces: list[Piece], sent: int) -> None:
    """Take so many bytes off the front."""
    whole = 0
    for piece in pieces:
        if len(piece) > sent:
            break
        sent -= len(piece)
        whole += 1
    del pieces[:whole]
    if sent:
        pieces[0] = memoryview(pieces[0])[sent:]
