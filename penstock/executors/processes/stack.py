"""What of a Python stack in a worker's standard error says something to whoever wrote the op. Pure.

When a signal ends a worker, its stack is there (``faulthandler``), the innermost frame first. From
the frame on in which we called the op's code, it is the way that every worker came.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_FRAME: Final = '  File "'
_PACKAGE: Final = Path(__file__).parents[2]
_OURS: Final = re.compile(f'  File "{re.escape(str(_PACKAGE))}/(executors|service)/')
_MODULES: Final = "Extension modules: "
_INNERMOST: Final = 8
_OUTERMOST: Final = 4
"""Frames of a deep stack that are told: where it is, and which of the op's hooks that was."""


def without_our_way(lines: Sequence[str]) -> Iterator[str]:
    """The lines, without the frames of a stack from the first one that led into the op's code, the
    middle of what is left of it where that is deep, and the list of modules behind it.
    """
    frames: list[str] = []
    ours = False
    for line in lines:
        if line.startswith(_FRAME):
            ours = ours or _OURS.match(line) is not None
            if not ours:
                frames.append(line)
            continue
        yield from _shortened(frames)
        frames = []
        ours = False
        if not line.startswith(_MODULES):
            yield line
    yield from _shortened(frames)


def _shortened(frames: Sequence[str]) -> Iterator[str]:
    left_out = len(frames) - _INNERMOST - _OUTERMOST
    if left_out <= 1:
        yield from frames
        return
    yield from frames[:_INNERMOST]
    yield f"  ... {left_out} frames ..."
    yield from frames[-_OUTERMOST:]
