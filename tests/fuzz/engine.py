"""A small fuzzer without instrumentation: it keeps the inputs that give a new signature."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from tests.fuzz.targets import Target

LARGEST = 20_000
MEMORY = 8 << 20  # limit in bytes, besides a multiple of the input's size
MEMORY_PER_OCTET = 60
SLOW = 2.0  # seconds for one input of at most LARGEST octets
MEASURE_EVERY = 256  # inputs between two measurements of memory, which are slow


@dataclass
class Outcome:
    """The result of a run."""

    inputs: int = 0
    kept: int = 0
    seconds: float = 0.0
    most_memory: int = 0
    slowest: float = 0.0
    fault: BaseException | None = None
    failing_input: bytes = b""
    signatures: set[Hashable] = field(default_factory=set)

    def __str__(self) -> str:
        text = (
            f"{self.inputs} inputs in {self.seconds:.1f} s, {self.kept} kept, "
            f"{len(self.signatures)} answers, slowest {self.slowest * 1000:.0f} ms, "
            f"most memory {self.most_memory >> 10} KiB"
        )
        if self.fault is not None:
            text += f"\n{type(self.fault).__name__}: {self.fault}\ninput {self.failing_input!r}"
        return text


def peak_memory(run: Callable[[bytes], Hashable], data: bytes) -> int:
    """The peak memory of one input; a fault when it is above the limit."""
    tracemalloc.start()
    try:
        run(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= MEMORY + MEMORY_PER_OCTET * len(data), f"{peak} bytes of memory"
    return peak


def mutated(data: bytes, rng: random.Random, target: Target, pool: list[bytes]) -> bytes:
    """A mutation of an input."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(out) + 1)
        to = min(len(out), at + rng.choice((1, 1, 2, 4, 16, 64)))
        kind = rng.randrange(9)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = rng.choice((0, 1, 4, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 2:
            del out[at:to]
        elif kind == 3:
            out[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8)))
        elif kind == 4:
            out[at:at] = out[at:to] * rng.choice((1, 2, 10))
        elif kind == 5 and target.words:
            out[at:at] = rng.choice(target.words)
        elif kind == 6 and target.words:
            out[at:to] = rng.choice(target.words)
        elif kind == 7:
            other = rng.choice(pool)
            start = rng.randrange(len(other) + 1)
            out[at:] = other[start:]
        elif kind == 8:
            out[at:at] = rng.choice(pool)[:64]
    return bytes(out[:LARGEST])


def explore(target: Target, seconds: float, seed: int) -> Outcome:
    """Run a target on its seeds and their mutations for ``seconds``."""
    outcome = Outcome()
    rng = random.Random(seed)
    pool: list[bytes] = []
    begin = time.monotonic()
    queue = list(target.seeds)
    while outcome.seconds < seconds or queue:
        data = queue.pop() if queue else mutated(rng.choice(pool), rng, target, pool)
        outcome.inputs += 1
        started = time.monotonic()
        try:
            signature = target.run(data)
            took = time.monotonic() - started
            assert took < SLOW, f"{took:.1f} seconds"
            if outcome.inputs % MEASURE_EVERY == 1:
                outcome.most_memory = max(outcome.most_memory, peak_memory(target.run, data))
        except BaseException as fault:
            outcome.fault, outcome.failing_input = fault, data
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
