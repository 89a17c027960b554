"""The targets of the fuzzer: each takes any bytes, checks its invariants, and returns a signature.

A target's ``run`` raises only for faults. It returns a short signature of the answer (kinds of
events, texts of errors); an input with a new signature is kept.
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
    """One target.

    Attributes:
        name: on the command line.
        run: runs one input.
        seeds: the first inputs.
        words: useful fragments to insert.
    """

    name: str
    run: Callable[[bytes], Hashable]
    seeds: Sequence[bytes]
    words: Sequence[bytes]


def load(name: str) -> Target:
    """Import a target; instrumentation of its branches must be set up before."""
    module = importlib.import_module(MODULES[name])
    return Target(name, module.run, module.SEEDS, getattr(module, "WORDS", ()))


if __name__ == "__main__":
    print(*MODULES)
