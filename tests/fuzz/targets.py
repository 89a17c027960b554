"""What can be fuzzed: each target takes any bytes, checks its promises, and says what it heard.

A target's ``run`` lets nothing out but faults. What it gives is a short signature of the answer
(kinds of events, texts of errors); an input with a new one is worth keeping.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

MODULES = {
    "http2": "tests.fuzz.http2",
    "header_blocks": "tests.fuzz.header_blocks",
    "http1": "tests.fuzz.http1",
    "paddle_message": "tests.fuzz.paddle_message",
    "paddle_json": "tests.fuzz.paddle_json",
    "oip": "tests.fuzz.oip",
    "general_model": "tests.fuzz.general_model",
    "baidu_std": "tests.fuzz.baidu_std",
    "frame": "tests.fuzz.frame",
}


@dataclass(frozen=True)
class Target:
    """One of them.

    Attributes:
        name: as the command line says it.
        run: takes one input.
        seeds: inputs to begin with.
        words: pieces that are worth putting in.
    """

    name: str
    run: Callable[[bytes], Hashable]
    seeds: Sequence[bytes]
    words: Sequence[bytes]


def load(name: str) -> Target:
    """Import a target; whoever wants to watch its branches must have prepared that before."""
    module = importlib.import_module(MODULES[name])
    return Target(name, module.run, module.SEEDS, getattr(module, "WORDS", ()))


if __name__ == "__main__":
    print(*MODULES)
