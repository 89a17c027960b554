"""A small fuzzer without instruments: it keeps the inputs that made a target say something new."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from tests.fuzz.targets import Target

LARGEST = 20_000
MEMORY = 8 << 20  # at most, beside a multiple of the input
MEMORY_PER_OCTET = 60
SLOW = 2.0  # seconds for one input of at most LARGEST octets
MEASURED = 256  # every so many inputs the memory is measured, which is slow


@dataclass
class Outcome:
    """How a run ended."""

    inputs: int = 0
    kept: int = 0
    seconds: float = 0.0
    most_memory: int = 0
    slowest: float = 0.0
    fault: BaseException | None = None
    culprit: bytes = b""
    signatures: set[Hashable] = field(default_factory=set)

    def __str__(self) -> str:
        text = (
            f"{self.inputs} inputs in {self.seconds:.1f} s, {self.kept} kept, "
            f"{len(self.signatures)} answers, slowest {self.slowest * 1000:.0f} ms, "
            f"most memory {self.most_memory >> 10} KiB"
        )
        if self.fault is not None:
            text += f"\n{type(self.fault).__name__}: {self.fault}\ninput {self.culprit!r}"
        return text


def measured(run: Callable[[bytes], Hashable], data: bytes) -> int:
    """The memory that one input needed at its peak; a fault when that is without measure."""
    tracemalloc.start()
    try:
        run(data)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most <= MEMORY + MEMORY_PER_OCTET * len(data), f"{most} bytes of memory"
    return most


def changed(data: bytes, chance: random.Random, target: Target, pool: list[bytes]) -> bytes:
    """One input made from another."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        at = chance.randrange(len(out) + 1)
        to = min(len(out), at + chance.choice((1, 1, 2, 4, 16, 64)))
        kind = chance.randrange(9)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = chance.choice((0, 1, 4, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif kind == 2:
            del out[at:to]
        elif kind == 3:
            out[at:at] = chance.randbytes(chance.choice((1, 2, 4, 8)))
        elif kind == 4:
            out[at:at] = out[at:to] * chance.choice((1, 2, 10))
        elif kind == 5 and target.words:
            out[at:at] = chance.choice(target.words)
        elif kind == 6 and target.words:
            out[at:to] = chance.choice(target.words)
        elif kind == 7:
            other = chance.choice(pool)
            start = chance.randrange(len(other) + 1)
            out[at:] = other[start:]
        elif kind == 8:
            out[at:at] = chance.choice(pool)[:64]
    return bytes(out[:LARGEST])


def explore(target: Target, seconds: float, seed: int) -> Outcome:
    """Run a target on seeds and what becomes of them, for so long."""
    outcome = Outcome()
    chance = random.Random(seed)
    pool: list[bytes] = []
    begin = time.monotonic()
    queue = list(target.seeds)
    while outcome.seconds < seconds or queue:
        data = queue.pop() if queue else changed(chance.choice(pool), chance, target, pool)
        outcome.inputs += 1
        started = time.monotonic()
        try:
            signature = target.run(data)
            took = time.monotonic() - started
            assert took < SLOW, f"{took:.1f} seconds"
            if outcome.inputs % MEASURED == 1:
                outcome.most_memory = max(outcome.most_memory, measured(target.run, data))
        except BaseException as fault:
            outcome.fault, outcome.culprit = fault, data
            if isinstance(fault, KeyboardInterrupt):
                raise
            break
        outcome.slowest = max(outcome.slowest, took)
        if signature not in outcome.signatures or not pool:
            outcome.signatures.add(signature)
            outcome.kept += 1
            pool.append(data)
        outcome.seconds = time.monotonic() - begin
    return outcome
