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


def without_our_way(lines: Sequence[str]) -> Iterator[str]:
    """The lines, without the frames of a stack from the first one that led into the op's code, and
    without the list of modules behind it.
    """
    ours = False
    for line in lines:
        if not line.startswith(_FRAME):
            ours = False
            if not line.startswith(_MODULES):
                yield line
            continue
        ours = ours or _OURS.match(line) is not None
        if not ours:
            yield line
