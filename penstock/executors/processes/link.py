"""The engine's end of the sockets to one worker process: frames and descriptors, on the loop.

There are two. Over the one that it was started with go our frames, and back its first word, the
last answer to each of our frames, and word of the others. These come over another, at which nobody
waits: so the worker can send each answer as soon as there is one, and wakes us once for many.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from penstock.executors.processes.frame import Frame, FrameError, FrameReader
from penstock.executors.processes.passing import duplicates, lacks, receive, unusable

_AT_ONCE: Final = 64 << 10  # bytes of one read
_MOST_DESCRIPTORS: Final = 16
"""Descriptors that wait for their frames, or come with one read."""
_READS_AT_ONCE: Final = 64
"""Reads in one turn of the loop: more than a socket holds, unless the worker goes on writing."""
_DO_NOT_WAIT: Final = int(socket.MSG_DONTWAIT)
_MOST_PIECES: Final = 512  # of one write; the system takes 1024

Piece: TypeAlias = bytes | memoryview
Hear: TypeAlias = Callable[[Sequence[Frame]], None]


class Link:
    """See the module.

    Args:
        channel: the socket; closed with the link.
        loop: the engine's.
        most: bytes of the largest frame that is taken.
        hear: called with the frames of each read; takes one after the other until the link is
            ``over``. What it raises as FrameError ends the link.
        ended: called once, in a turn of its own, when the worker has hung up or broke the rules:
            with the reason in the latter case.
        expects: whether a large frame may come now; see FrameReader.

    Attributes:
        descriptors: those that came and were not taken, in order; each belongs to the frame that
            says so.
        over: it has ended, or is closed: nothing more is to be heard.
    """

    def __init__(
        self,
        channel: socket.socket,
        loop: asyncio.AbstractEventLoop,
        most: int,
        hear: Hear,
        ended: Callable[[FrameError | None], None],
        expects: Callable[[], bool] | None = None,
    ) -> None:
        channel.setblocking(False)
        self.descriptors: deque[int] = deque()
        self._channel = channel
        self._loop = loop
        self._reader = FrameReader(most, expects)
        self._hear = hear
        self._ended = ended
        self._answers: socket.socket | None = None
        self._answer_reader = FrameReader(most, expects)
        self.over = False
        self._open = True
        self._unsent: deque[tuple[list[Piece], list[int]]] = deque()
        loop.add_reader(channel, self._read)

    def send(self, pieces: Sequence[Piece], descriptors: Sequence[int] = ()) -> None:
        """Write a frame's pieces, now or as soon as the worker reads.

        The pieces must not change until they are written. ``descriptors`` are duplicated at once,
        so that their owner may close them; where that is impossible the link ends.
        """
        if self.over:
            return
        if not descriptors and not self._unsent and len(pieces) <= _MOST_PIECES:
            try:
                sent = self._channel.sendmsg(pieces)
            except OSError:  # maybe it cannot take more; if it is anything else that comes again
                sent = 0
            if sent == sum(map(len, pieces)):
                return
            pieces = list(pieces)
            _drop(pieces, sent)
        try:
            self._unsent.append((list(pieces), duplicates(descriptors)))
        except FrameError as error:
            self._end(error)
            return
        if len(self._unsent) == 1:
            self._write()

    @property
    def blocked(self) -> bool:
        """Whether something waits to be written until the worker reads."""
        return bool(self._unsent)

    def send_at_once(self, piece: bytes) -> bool:
        """Write a short frame where the worker sees it from now on; whether that was possible.

        It is not while something else waits to be written: that must be read first.
        """
        if self.over or self._unsent:
            return False
        try:
            # So little comes in whole or not at all: a Unix socket cuts no piece of a page.
            return self._channel.send(piece) == len(piece)
        except OSError:
            return False

    def take_descriptor(self) -> int:
        """The next descriptor; it is the caller's now.

        Raises:
            FrameError: none has come with the frame that needs one.
        """
        if not self.descriptors:
            raise FrameError("the worker sent no descriptor where one belongs")
        return self.descriptors.popleft()

    def take_answers(self, descriptor: int) -> None:
        """The other socket; it is ours now.

        Raises:
            FrameError: it is no such thing.
        """
        try:
            answers = socket.socket(fileno=descriptor)
        except OSError as error:
            os.close(descriptor)
            raise FrameError("the worker's answers come from no socket") from error
        if (answers.family, answers.type) != (socket.AF_UNIX, socket.SOCK_STREAM):
            answers.close()
            raise FrameError("the worker's answers come from a socket of another kind")
        self._answers = answers

    def read_answers(self) -> None:
        """Hear what has come over the other socket, announced or not."""
        try:
            more = self._read_answers()
        except FrameError as error:
            self._end(error)
            return
        if more:
            self._loop.call_soon(self.read_answers)

    def read_rest(self) -> None:
        """Hear what has come over both, as nothing more will."""
        for _ in range(_READS_AT_ONCE):
            if self.over or not self._read():
                break
        self.read_answers()

    def cut(self, error: FrameError) -> None:
        """End the line for a rule that was broken elsewhere than on it."""
        if not self.over:
            self._end(error)

    def close(self) -> None:
        """Hang up; ``ended`` is not called any more."""
        if not self._open:
            return
        self.over = True
        self._open = False
        self._loop.remove_reader(self._channel)
        self._loop.remove_writer(self._channel)
        self._channel.close()
        if self._answers is not None:
            self._answers.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()
        for _, unsent in self._unsent:
            for descriptor in unsent:
                os.close(descriptor)
        self._unsent.clear()

    def _read(self) -> bool:
        """Whether there may be more."""
        try:
            data, descriptors, lost = receive(self._channel, _AT_ONCE, _MOST_DESCRIPTORS)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data, descriptors, lost = b"", [], False
        except FrameError as error:
            self._end(error)
            return False
        if not data:
            self.read_answers()
            self._end(None)
            return False
        try:
            self._take(self._reader, data, descriptors, lost)
        except FrameError as error:
            self._end(error)
            return False
        return True

    def _take(self, reader: FrameReader, data: bytes, descriptors: list[int], lost: bool) -> None:
        self.descriptors.extend(descriptors)
        if lost or len(self.descriptors) > _MOST_DESCRIPTORS:
            raise FrameError("the worker sent more descriptors than frames")
        self._hear(reader.receive(data))

    def _read_answers(self) -> bool:
        """Whether there may be more."""
        for _ in range(_READS_AT_ONCE):
            answers = self._answers
            if answers is None or self.over:
                return False
            try:
                # Whether the socket blocks is nothing that the worker may decide: it has it, too.
                data, descriptors, lost = receive(
                    answers, _AT_ONCE, _MOST_DESCRIPTORS, _DO_NOT_WAIT
                )
            except OSError:  # nothing there as yet, or never again
                return False
            self._take(self._answer_reader, data, descriptors, lost)
            if len(data) < _AT_ONCE and not descriptors:
                return False
        return True

    def _write(self) -> None:
        unsent = self._unsent
        while unsent:
            pieces, descriptors = unsent[0]
            try:
                sent = socket.send_fds(self._channel, pieces[:_MOST_PIECES], descriptors)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._channel, self._write)
                return
            except OSError as error:
                # Else it has hung up, which the reading side finds after what it has still said.
                if descriptors and lacks(error):
                    self._end(unusable("a descriptor cannot be sent", error))
                self._loop.remove_writer(self._channel)
                return
            while descriptors:
                os.close(descriptors.pop())
            _drop(pieces, sent)
            if not pieces:
                unsent.popleft()
        self._loop.remove_writer(self._channel)

    def _end(self, error: FrameError | None) -> None:
        self.over = True
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
