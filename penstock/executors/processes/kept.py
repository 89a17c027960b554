"""Answers that a worker has not sent yet, in memory that the engine shares, so they outlive it.

To send each answer by itself costs more than many a batch. So the plain ones of a frame are laid
down here, one behind the other, and sent together when the last of them is there, or when there is
no more room. Meanwhile the engine finds them here: when the worker has died, and when what came
after them takes long.

    number of the first, 8 octets | how many, and how many octets, in one word of 8 | plain parts

The word is written last and cleared first, so what it tells of is whole wherever the worker ends.
No number comes first twice, by which the engine sees that the worker went on while it was reading.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.executors.processes.frame import (
    LENGTH,
    FrameError,
    Kind,
    framed,
    listed,
)

_NUMBER: Final = Struct("Q")  # in the processor's own order, which reads it as a whole
_NUMBERS: Final = 2 * _NUMBER.size
_ONE: Final = 1 << 32
_LOW: Final = _ONE - 1


class Keeper:
    """The worker's side.

    Args:
        memory: shared, and empty.

    Attributes:
        any: whether there are answers.
    """

    __slots__ = ("_numbers", "_plain", "_room", "_word", "any")

    def __init__(self, memory: memoryview) -> None:
        self._numbers = memory[:_NUMBERS].cast("Q")
        self._plain = memory[_NUMBERS:]
        self._room = len(self._plain)
        self._word = 0
        self.any = False

    def add(self, number: int, plain: bytes) -> bool:
        """Keep the answer to a batch, which follows the one before; whether there was room."""
        length = len(plain)
        word = self._word + _ONE + length
        end = word & _LOW
        if end > self._room:
            return False
        numbers = self._numbers
        if not self.any:
            numbers[0] = number
            self.any = True
        self._plain[end - length : end] = plain
        numbers[1] = self._word = word
        return True

    def frame(self, last: bytes | None = None) -> bytes:
        """All that is kept, and the plain part of one more answer behind it."""
        count, end = divmod(self._word, _ONE)
        plain = bytes(self._plain[:end])
        if last is not None:
            count, plain = count + 1, plain + last
        return framed(Kind.SEVERAL, self._numbers[0], listed(count, plain))

    def clear(self) -> None:
        """All of it was sent."""
        self._numbers[1] = self._word = 0
        self.any = False


def read_kept(memory: memoryview) -> tuple[int, bytes] | None:
    """The engine's side: the body of a frame with all that is kept, and the first one's number.

    Raises:
        FrameError: there cannot be so much.
    """
    (number,), (word,) = _NUMBER.unpack_from(memory, 0), _NUMBER.unpack_from(memory, _NUMBER.size)
    count, length = divmod(word, _ONE)
    if not count:
        return None
    end = _NUMBERS + length
    if end > len(memory):
        raise FrameError("the worker keeps more than there is room for")
    plain = listed(count, bytes(memory[_NUMBERS:end]))
    # If another is first by now, these were sent, and those that follow may stand where they did.
    if _NUMBER.unpack_from(memory, 0)[0] != number:
        return None
    return number, LENGTH.pack(len(plain)) + plain
