"""The three descriptors that every program expects to be open."""

from __future__ import annotations

import os
from typing import Final

_STANDARD: Final = (0, 1, 2)


def open_standard_descriptors() -> None:
    """Let those that whoever started this program has closed lead to nowhere.

    Otherwise the next files and sockets get their numbers, and what a program writes to its
    standard error, or what is put in that one's place in a child, goes there.
    """
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, and so this one
            os.set_inheritable(number, True)
