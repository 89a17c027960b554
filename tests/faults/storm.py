"""Workers that are killed one after the other while many callers ask, and what it costs.

python -m tests.faults.storm --seconds 60
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.faults.load import Answer
from tests.faults.site import Site, site

DIED = 9000
CALLERS = 64
WORKERS = 2
PERIOD = 2.0
"""Seconds between two kills."""
RECOVERY = 1.0
"""Seconds after a kill within which as much must be answered as before."""
TICK = 0.1
"""Seconds of one count of answers."""
ENOUGH = 0.8
"""Part of the number before that counts as recovered; a guess at what noise takes."""
_BEFORE = round((PERIOD - RECOVERY) / TICK)
"""Ticks before a kill that tell what is usual then: by then the one before it is forgotten."""


@dataclass
class Damage:
    """What a storm did."""

    kills: list[float] = field(default_factory=list)
    answers: Counter[int | None] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Answers a second in an ordinary moment: the middle one of all."""
        return _middle(self._counts()) / TICK

    def recoveries(self) -> list[float]:
        """Seconds after each kill until the answers came as before; infinite where they did not.

        Before is the second before that kill, not the whole run: a machine that others work on as
        well has slow minutes.
        """
        counts, first = self._counts(), self.times[0]
        found = []
        for kill in self.kills:
            at = int((kill - first) / TICK)
            enough = ENOUGH * _middle(counts[max(0, at - _BEFORE) : at])
            later = [n for n, count in enumerate(counts[at + 1 :], 1) if count >= enough]
            found.append(later[0] * TICK if later else float("inf"))
        return found

    def _counts(self) -> list[int]:
        """Answers in each tick from the first to the last."""
        first = self.times[0]
        found = Counter(int((each - first) / TICK) for each in self.times)
        return [found[n] for n in range(max(found))]


def _middle(counts: Sequence[int]) -> int:
    return sorted(counts)[len(counts) // 2]


def workers_of(supervisor: int) -> list[int]:
    """Its children but the engine, which is the one that listens."""
    found = []
    for child in psutil.Process(supervisor).children():
        with suppress(psutil.NoSuchProcess):
            ports = child.net_connections(kind="tcp")
            if not any(port.status == psutil.CONN_LISTEN for port in ports):
                found.append(child.pid)
    return found


async def rage(at: Site, seconds: float, seed: int) -> Damage:
    """Callers without a pause, and a kill now and then; the last one has time to be forgotten."""
    damage = Damage()
    chance = random.Random(seed)
    began = time.monotonic()

    async def caller() -> None:
        while time.monotonic() < began + seconds:
            answer: Answer = await at.clients.ask()
            damage.answers[answer.err_no] += 1
            if answer.good:
                damage.times.append(time.monotonic())

    callers = asyncio.gather(*(caller() for _ in range(CALLERS)))
    next_kill = began + PERIOD
    while next_kill < began + seconds - RECOVERY:
        await asyncio.sleep(next_kill - time.monotonic())  # the pace is what is asked for
        if workers := workers_of(at.server.pid):
            psutil.Process(chance.choice(workers)).kill()
            damage.kills.append(time.monotonic())
        next_kill += PERIOD
    await callers
    damage.times.sort()
    return damage


async def storm(folder: Path, seconds: float, batch_size: int, seed: int = 1) -> Damage:
    """One storm over a service of its own.

    Raises:
        AssertionError: a request has no answer, or several; more failed than were in the hands of
            those killed; the service is not well afterwards.
    """
    ops = {
        "work": {"concurrency": WORKERS, "batch_size": batch_size, "executor": "process"},
    }
    async with site(folder, graph="poison", ops=ops) as at:
        damage = await rage(at, seconds, seed)
        failed = damage.answers[DIED]
        assert set(damage.answers) <= {0, DIED}, damage.answers
        assert failed <= batch_size * len(damage.kills), damage.answers
        assert len(workers_of(at.server.pid)) == WORKERS
        assert at.server.is_ready()
        assert at.server.stop() == 0
        assert at.verdict(failures=failed) == []
    return damage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        damage = asyncio.run(storm(Path(folder), options.seconds, options.batch_size, options.seed))
    print(
        f"{sum(damage.answers.values())} requests, each answered once; {len(damage.kills)} kills;"
        f" {damage.answers[DIED]} requests failed, each with {DIED};"
        f" {damage.rate:.0f} answers a second;"
        f" as many again {max(damage.recoveries()):.1f} s after a kill at the latest"
    )


if __name__ == "__main__":
    main()
