"""A worker's answers on their way to the engine, each safe before the next batch is begun.

The answer to a frame's last batch wakes the engine. Plain ones before it are kept where the engine
finds them if this process ends (kept.py), and go along with the last. All others go at once, over a
socket at which the engine does not wait: it reads there when it is told so, before it hears of the
last, and when this process has ended.
"""

from __future__ import annotations

import select
import socket
from array import array
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from numpy.typing import NDArray

from penstock.executors.processes.answers import simple_answer
from penstock.executors.processes.crossing import outcomes_out
from penstock.executors.processes.frame import (
    LENGTH,
    Encoder,
    FrameError,
    Kind,
    Ref,
    framed,
    header,
    packed_scalars,
)
from penstock.executors.processes.kept import Keeper
from penstock.executors.processes.lending import Borrower
from penstock.executors.processes.passing import lacks
from penstock.executors.processes.slab_pool import SlabPool
from penstock.executors.processes.upkeep import frees
from penstock.request import Outcome

_AT_ONCE: Final = 64 << 10
_DO_NOT_WAIT: Final = int(socket.MSG_DONTWAIT)
_ANSWERS: Final = header(Kind.ANSWERS, 0, 0)


class Answering:
    """See the module.

    Args:
        channel: to the engine, blocking; the last answers of frames go there.
        kept: memory for what is not sent at once.
        out: for large arrays.
        borrowed: what the engine has sent, of which something may be given on or back.
        most_bytes: of an answer beside large arrays.

    Attributes:
        socket: for the other answers.
        engines_end: of that one, until the engine has it.
        last: the number of the last batch of the frame at hand.
    """

    def __init__(
        self,
        channel: socket.socket,
        kept: memoryview,
        out: SlabPool,
        borrowed: Borrower,
        most_bytes: int,
    ) -> None:
        self._channel = channel
        self.socket, self.engines_end = socket.socketpair()
        self.last = 0
        self._kept = Keeper(kept[:most_bytes])
        self._out = out
        self._in = borrowed
        self._most_bytes = most_bytes
        self._places = True  # large arrays in slabs
        self._untold = False  # whether there are answers that were not announced
        self._encoder = Encoder(self._place)
        self._writable = select.poll()
        self._writable.register(self.socket, select.POLLOUT)

    def use(self, pickle: Callable[[Any], bytes] | None) -> None:
        """Make bytes of what is nothing plain with this; with None it does not travel."""
        self._encoder = Encoder(self._place, pickle)

    def answer(self, number: int, ran: float, outcomes: Sequence[Outcome]) -> None:
        """These came of a batch that took so many seconds.

        Raises:
            FrameError: something in them cannot travel; nothing was sent.
        """
        plain = None
        if not (self._in.returned or self._out.touched):
            plain = simple_answer(ran, outcomes)
        if plain is None:
            self.tell(number, *outcomes_out(ran, outcomes))
        elif number == self.last or not self._kept.add(number, plain):
            self._tell_plainly(number, plain)

    def tell(self, number: int, value: Any, strange: Collection[Any] = ()) -> None:
        """This is the answer to a batch; see ``encode`` for what is strange.

        Raises:
            FrameError: something in it cannot travel; nothing was sent.
        """
        plain = None
        if not (self._in.returned or self._out.touched):
            plain = packed_scalars(value, strange)
        if plain is None:
            self._tell_at_length(number, value, strange)
        else:
            self._tell_plainly(number, plain)

    def allowed(self, pieces: Sequence[bytes | memoryview]) -> int:
        """How long a body of these is, if that is no more than the engine takes.

        Raises:
            FrameError: it is longer.
        """
        return self._allowed(sum(map(len, pieces)))

    def _allowed(self, length: int) -> int:
        if length > self._most_bytes:
            raise FrameError(f"{length} bytes are more than the {self._most_bytes} allowed")
        return length

    def _tell_plainly(self, number: int, plain: bytes) -> None:
        self._allowed(LENGTH.size + len(plain))
        kept = self._kept
        if number == self.last:
            frame = kept.frame(plain) if kept.any else framed(Kind.DONE, number, plain)
            # What announces the others may as well say this itself.
            self._channel.sendall(_ANSWERS + frame if self._untold else frame)
            self._untold = False
            if kept.any:
                kept.clear()
        elif not kept.add(number, plain):
            self._send_kept()
            self._send_untold(framed(Kind.DONE, number, plain))

    def _tell_at_length(self, number: int, value: Any, strange: Collection[Any]) -> None:
        try:
            frames = self._encoded(value, strange)
            length = self.allowed(frames)
        except FrameError:
            self._out.rollback()
            raise
        self._send_kept()
        frames = [*frees(self._in), header(Kind.DONE, number, length), *frames]
        if length <= _AT_ONCE:
            frames = [b"".join(frames)]
        if self._out.touched:
            self._out.commit()
        last = number == self.last
        if last and self._untold:
            frames[0] = _ANSWERS + bytes(frames[0])
            self._untold = False
        send = self._channel.sendall if last else self._send_untold
        for piece in frames:
            send(piece)

    def _encoded(self, value: Any, strange: Collection[Any]) -> list[bytes | memoryview]:
        """The pieces, and the slabs that they need told; without any where that is impossible."""
        frames = self._encoder.encode(value, strange)
        if not self._out.touched:
            return frames
        try:
            for slab, descriptor in self._out.fresh():
                self._send_slab_untold(slab, descriptor)
                self._out.tell(slab)
        except OSError as error:
            if not lacks(error):
                raise
            self._out.rollback()
            self._places = False
            try:
                return self._encoder.encode(value, strange)
            finally:
                self._places = True
        return frames

    def _place(self, array: NDArray[Any]) -> Ref | None:
        if not self._places:
            return self._in.find(array)
        return self._in.find(array) or self._out.find(array) or self._out.place(array)

    def _send_kept(self) -> None:
        """They are answers to earlier batches than what is sent next."""
        if self._kept.any:
            self._send_untold(self._kept.frame())
            self._kept.clear()

    def _send_slab_untold(self, slab: int, descriptor: int) -> None:
        self._untold = True
        piece = header(Kind.SLAB, slab, 0)
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))]
        while True:
            try:
                # So little goes out whole or not at all.
                self.socket.sendmsg([piece], passed, _DO_NOT_WAIT)
                return
            except BlockingIOError:
                self._announce_and_wait()

    def _send_untold(self, piece: bytes | memoryview) -> None:
        self._untold = True
        while True:
            try:
                sent = self.socket.send(piece, _DO_NOT_WAIT)
                if sent == len(piece):
                    return
                piece = memoryview(piece)[sent:]
            except BlockingIOError:
                self._announce_and_wait()

    def _announce_and_wait(self) -> None:
        """No more fits there, and nobody reads what was not announced."""
        self._channel.sendall(_ANSWERS)
        self._writable.poll()
