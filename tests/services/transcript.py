"""Compares a program's output with the output in a README.

Numbers may differ a little: models are trained on the reader's machine, and the last digits of a
sum depend on the processor. Everything else, except for blanks, must be the same.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

_NUMBER = re.compile(r"-?\d+\.?\d*(?:e[-+]?\d+)?")
_BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def numbers_in(text: str) -> list[float]:
    """Every number in the text, in order; ``1.`` and ``1e-5`` as numpy writes them too."""
    return [float(number) for number in _NUMBER.findall(text)]


def shape_of(text: str) -> str:
    """The text without its numbers and blanks."""
    return re.sub(r"\s+", "", _NUMBER.sub("#", text))


def shown_like(readme: Path, printed: str) -> str:
    """The README's block that equals this output but for its numbers.

    Raises:
        AssertionError: there is no such block.
    """
    for block in _BLOCK.findall(readme.read_text()):
        if shape_of(block) == shape_of(printed):
            return str(block)
    raise AssertionError(f"{readme} shows nothing like:\n{printed}")


def output_of(script: Path, *arguments: str, timeout: float = 40.0) -> str:
    """The output of a client script, run as in the README: from its own folder.

    Raises:
        AssertionError: it failed; the text contains its error stream.
    """
    done = subprocess.run(
        [sys.executable, script.name, *arguments],
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{script} ended with {done.returncode}:\n{done.stderr}"
    return done.stdout
