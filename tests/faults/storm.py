"""Workers that are killed one after the other while many callers ask two graphs, and what it costs.

python -m tests.faults.storm --seconds 60
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.faults.load import Answer
from tests.faults.site import Service, Site, site, until

DIED = 9000
CALLERS = 64
WORKERS = 2
BATCHES = {"left": 1, "right": 4}
"""The two services, and what a worker of theirs has in its hands at most."""
WORK = {"do_second": "sleep:0.004", "do_work": "sleep:0.016"}
"""What is asked for: nearly every kill must hit a worker in the middle of a batch."""
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


class Kill(NamedTuple):
    """One of them: whose worker, and when."""

    service: str
    t: float


@dataclass
class Damage:
    """What a storm did; answers and their times by service.

    Attributes:
        replaced: seconds after each kill until there were as many workers as before.
    """

    kills: list[Kill] = field(default_factory=list)
    replaced: list[float] = field(default_factory=list)
    answers: dict[str, Counter[int | None]] = field(default_factory=lambda: defaultdict(Counter))
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def rate(self, service: str) -> float:
        """Answers a second in an ordinary moment: the middle one of all."""
        return _middle(self._counts(service)) / TICK

    def recoveries(self) -> list[float]:
        """Seconds after each kill until its service answered as before; infinite where it did not.

        Before is the second before that kill, not the whole run: a machine that others work on as
        well has slow minutes.
        """
        found = []
        for kill in self.kills:
            before, after = self._around(kill, kill.service)
            enough = ENOUGH * _middle(before)
            later = [n for n, count in enumerate(after, 1) if count >= enough]
            found.append(later[0] * TICK if later else float("inf"))
        return found

    def spared(self) -> list[float]:
        """For each kill: what part of its answers the other service gave in the second after it."""
        found = []
        for kill in self.kills:
            (other,) = BATCHES.keys() - {kill.service}
            before, after = self._around(kill, other)
            found.append(_middle(after[: len(before)]) / _middle(before))
        return found

    def _around(self, kill: Kill, service: str) -> tuple[list[int], list[int]]:
        """Counts of a service before and after a kill."""
        counts = self._counts(service)
        at = int((kill.t - self.times[service][0]) / TICK)
        return counts[max(0, at - _BEFORE) : at], counts[at + 1 :]

    def _counts(self, service: str) -> list[int]:
        """Answers in each tick from the first to the last."""
        first, *_ = times = self.times[service]
        found = Counter(int((each - first) / TICK) for each in times)
        return [found[n] for n in range(max(found))]


def _middle(counts: Sequence[int]) -> int:
    return sorted(counts)[len(counts) // 2]


def workers_of(supervisor: int) -> dict[int, str]:
    """Its worker processes, and which service each of them works for."""
    found = {}
    for child in psutil.Process(supervisor).children():
        with suppress(OSError):
            service, several, _ = Path(f"/proc/{child.pid}/comm").read_text().partition("/")
            if several:  # else it is the engine
                found[child.pid] = service
    return found


async def rage(at: Site, seconds: float, seed: int) -> Damage:
    """Callers without a pause, and a kill now and then; the last one has time to be forgotten."""
    damage = Damage()
    chance = random.Random(seed)
    began = time.monotonic()

    async def caller() -> None:
        while time.monotonic() < began + seconds:
            service = chance.choice(list(BATCHES))
            grpc = chance.random() < 0.5
            answer: Answer = await at.clients.ask(service=service, grpc=grpc, **WORK)
            damage.answers[service][answer.err_no] += 1
            if answer.good:
                damage.times[service].append(time.monotonic())

    callers = asyncio.gather(*(caller() for _ in range(CALLERS)))
    all_of_them = WORKERS * len(BATCHES)
    next_kill = began + PERIOD
    while next_kill < began + seconds - RECOVERY:
        await asyncio.sleep(next_kill - time.monotonic())  # the pace is what is asked for
        if workers := workers_of(at.server.pid):
            pid = chance.choice(list(workers))
            psutil.Process(pid).kill()
            kill = Kill(workers[pid], time.monotonic())
            damage.kills.append(kill)
            await until(
                lambda killed=pid: len(workers_of(at.server.pid).keys() - {killed}) == all_of_them
            )
            damage.replaced.append(time.monotonic() - kill.t)
        next_kill += PERIOD
    await callers
    return damage


async def storm(folder: Path, seconds: float, seed: int = 1) -> Damage:
    """One storm over two services of its own.

    Raises:
        AssertionError: a request has no answer, or several; more of a service failed than were in
            the hands of those killed; the services are not well afterwards.
    """
    processes = {"concurrency": WORKERS, "executor": "process"}
    services = {
        "left": Service("chain", {"first": {"concurrency": 4}, "second": processes}),
        "right": Service("poison", {"work": {**processes, "batch_size": BATCHES["right"]}}),
    }
    async with site(folder, services=services) as at:
        damage = await rage(at, seconds, seed)
        kills = Counter(kill.service for kill in damage.kills)
        most = {service: size * kills[service] for service, size in BATCHES.items()}
        assert all(counts.keys() <= {0, DIED} for counts in damage.answers.values()), damage.answers
        assert Counter(workers_of(at.server.pid).values()) == dict.fromkeys(BATCHES, WORKERS)
        assert at.server.is_ready()
        at.end(failures=most)
    return damage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        damage = asyncio.run(storm(Path(folder), options.seconds, options.seed))
    for service, answers in damage.answers.items():
        kills = sum(kill.service == service for kill in damage.kills)
        print(
            f"{service}: {answers.total()} requests, each answered once by its own graph;"
            f" {kills} kills; {answers[DIED]} requests failed, each with {DIED};"
            f" {damage.rate(service):.0f} answers a second"
        )
    print(
        f"all workers are there again {max(damage.replaced):.2f} s after a kill at the latest, and"
        f" as many answers {max(damage.recoveries()):.1f} s;"
        f" the other graph gave {100 * min(damage.spared()):.0f} % of its answers at the least"
    )


if __name__ == "__main__":
    main()
