"""Kills workers one after the other while many clients call two graphs, and measures the effects.

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

from tests.faults.site import Service, Site, site, until
from tests.kit.load import Answer

DIED = 9000
CLIENTS = 64
WORKERS = 2
BATCHES = {"left": 1, "right": 4}
"""The two services, and the batch size of their workers."""
WORK = {"do_second": "sleep:0.004", "do_work": "sleep:0.016"}
"""The requests' work: long enough that nearly every kill happens during a batch."""
PERIOD = 2.0
"""Seconds between two kills."""
RECOVERY = 1.0
"""Seconds after a kill within which the rate of answers must be as before."""
TICK = 0.1
"""Seconds of one count of answers."""
ENOUGH = 0.8
"""Fraction of the earlier rate that counts as recovered; an estimate that allows for noise."""
_BEFORE = round((PERIOD - RECOVERY) / TICK)
"""Ticks before a kill that give the normal rate: after the recovery from the kill before it."""


class Kill(NamedTuple):
    """One kill: the worker's service, and the time."""

    service: str
    t: float


@dataclass
class StormResult:
    """Results of a storm; answers and their times by service.

    Attributes:
        replaced: seconds after each kill until there were as many workers as before.
    """

    kills: list[Kill] = field(default_factory=list)
    replaced: list[float] = field(default_factory=list)
    answers: dict[str, Counter[int | None]] = field(default_factory=lambda: defaultdict(Counter))
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def rate(self, service: str) -> float:
        """The median rate of answers per second."""
        return _median(self._counts(service)) / TICK

    def recoveries(self) -> list[float]:
        """Seconds after each kill until its service's rate was as before; infinite if it never was.

        The rate before is that of the second before the kill, not of the whole run: a shared
        machine is slower at times.
        """
        found = []
        for kill in self.kills:
            before, after = self._around(kill, kill.service)
            enough = ENOUGH * _median(before)
            later = [n for n, count in enumerate(after, 1) if count >= enough]
            found.append(later[0] * TICK if later else float("inf"))
        return found

    def other_rates(self) -> list[float]:
        """For each kill: the other service's rate in the second after it, relative to before."""
        found = []
        for kill in self.kills:
            (other,) = BATCHES.keys() - {kill.service}
            before, after = self._around(kill, other)
            found.append(_median(after[: len(before)]) / _median(before))
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


def _median(counts: Sequence[int]) -> int:
    return sorted(counts)[len(counts) // 2]


def workers_of(supervisor: int) -> dict[int, str]:
    """The supervisor's worker processes, with each one's service."""
    found = {}
    for child in psutil.Process(supervisor).children():
        with suppress(OSError):
            service, several, _ = Path(f"/proc/{child.pid}/comm").read_text().partition("/")
            if several:  # else it is the engine
                found[child.pid] = service
    return found


async def kill_workers(at: Site, seconds: float, seed: int) -> StormResult:
    """Clients without pauses, and periodic kills; there is time to recover from the last one."""
    damage = StormResult()
    rng = random.Random(seed)
    began = time.monotonic()

    async def send_requests() -> None:
        while time.monotonic() < began + seconds:
            service = rng.choice(list(BATCHES))
            kind = rng.choice(("http", "grpc"))
            answer: Answer = await at.clients.send_request(service=service, kind=kind, **WORK)
            damage.answers[service][answer.err_no] += 1
            if answer.good:
                damage.times[service].append(time.monotonic())

    tasks = asyncio.gather(*(send_requests() for _ in range(CLIENTS)))
    all_workers = WORKERS * len(BATCHES)
    next_kill = began + PERIOD
    while next_kill < began + seconds - RECOVERY:
        await asyncio.sleep(next_kill - time.monotonic())  # the rate of kills
        if workers := workers_of(at.server.pid):
            pid = rng.choice(list(workers))
            psutil.Process(pid).kill()
            kill = Kill(workers[pid], time.monotonic())
            damage.kills.append(kill)
            await until(
                lambda killed=pid: len(workers_of(at.server.pid).keys() - {killed}) == all_workers
            )
            damage.replaced.append(time.monotonic() - kill.t)
        next_kill += PERIOD
    await tasks
    return damage


async def storm(folder: Path, seconds: float, seed: int = 1) -> StormResult:
    """Run one storm with two new services.

    Raises:
        AssertionError: a request has no answer, or several; more requests of a service failed than
            killed workers had in their batches; the services are not ready afterwards.
    """
    processes = {"concurrency": WORKERS, "executor": "process"}
    services = {
        "left": Service("chain", {"first": {"concurrency": 4}, "second": processes}),
        "right": Service("poison", {"work": {**processes, "batch_size": BATCHES["right"]}}),
    }
    async with site(folder, services=services) as at:
        damage = await kill_workers(at, seconds, seed)
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
        f" the other graph gave {100 * min(damage.other_rates()):.0f} % of its answers at the least"
    )


if __name__ == "__main__":
    main()
