"""Compares what a program prints with what a README shows.

Numbers may differ a little: models are trained on the reader's machine, and processors do not
agree on the last digits of a sum. Everything else, blanks apart, must be the same.
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
    """The block of the README that shows this, its numbers apart.

    Raises:
        AssertionError: there is none.
    """
    for block in _BLOCK.findall(readme.read_text()):
        if shape_of(block) == shape_of(printed):
            return str(block)
    raise AssertionError(f"{readme} shows nothing like:\n{printed}")


def output_of(script: Path, *arguments: str, timeout: float = 40.0) -> str:
    """What a client script prints, run as the README says: from its own folder.

    Raises:
        AssertionError: it failed; with what it wrote to the error stream.
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
