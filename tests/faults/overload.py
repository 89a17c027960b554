"""Five times more than fits, for a while: as much is served as before, the rest is told at once.

There are two graphs in the service. The one that is overloaded has a queue of its own that fills up
before the engine does, so that the other one, which is asked calmly, answers everything.

python -m tests.faults.overload --seconds 60

The generator needs the same cores as the service, so the op waits and computes nothing: with two
workers and calls of 20 ms a hundred answers a second are all that it can give, and five times that,
four fifths of it refusals, leave most of two slow cores idle. The peak is what callers get who wait
for their answers. Then requests are sent at a fixed rate, whatever becomes of those before, over
loopback, never more than 1,000 at once. The exit status is 1 when something was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.testing.history import Admitted, Replied
from tests.faults.load import Answer, Clients, Noise, percentile
from tests.faults.site import Service, Site, site

BUSY, CALM = "busy", "calm"
TIMES = 5
"""How many times the capacity is asked for."""
DEADLINE = 0.5
LATE = 0.1
"""Seconds after its deadline by which whoever was admitted has an answer."""
GOODPUT = 0.9
"""Part of the peak that is served under overload, and of the peak's rate afterwards."""
PROMPT = 0.005
"""Seconds that the middle one of all refusals takes."""
GROWTH = 1.05
AT_ONCE = 1000
"""Requests under way, beyond which none is sent: a service that hangs would get them all."""
WARM_SECONDS = 5.0
PEAK_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What the op can do: so many calls at once, so many seconds each."""

    workers: int = 2
    call: float = 0.02

    @property
    def rate(self) -> float:
        """Answers a second, at the very most."""
        return self.workers / self.call

    def config(self, executor: str) -> dict[str, Any]:
        """A site in which as many wait for the busy op as are needed to keep it so."""
        op = {"concurrency": self.workers, "executor": executor}
        return {
            "services": {
                BUSY: Service("one", {"work": op}, {"channel_size": 3 * self.workers}),
                CALM: Service("chain", {"second": {"executor": executor}}),
            },
            "max_requests": 4 * self.workers + 8,
            "deadline": DEADLINE,
        }


@dataclass(kw_only=True)
class Overload:
    """What came of one: rates are good answers a second."""

    seconds: float
    peak: float
    answers: list[Answer] = field(default_factory=list)
    calm: list[Answer] = field(default_factory=list)
    unsent: int = 0
    recovered: float = 0.0

    @property
    def goodput(self) -> float:
        return sum(answer.good for answer in self.answers) / self.seconds

    @property
    def refusals(self) -> list[float]:
        """Seconds that each took."""
        return [answer.seconds for answer in self.answers if answer.refused]

    def missed(self) -> list[str]:
        """What was promised and not kept, as sentences."""
        strange = Counter(
            f"{answer.err_no}: {answer.text}"
            for answer in self.answers
            if not (answer.good or answer.refused or answer.late)
        )
        harmed = sum(not answer.good for answer in self.calm)
        few = len(self.refusals) <= len(self.answers) / 2
        checks = {
            f"goodput fell from {self.peak:.1f} to {self.goodput:.1f} a second": (
                self.goodput < GOODPUT * self.peak
            ),
            f"afterwards {self.recovered:.1f} a second instead of {self.peak:.1f}": (
                self.recovered < GOODPUT * self.peak
            ),
            f"of {len(self.answers)} requests {len(self.refusals)} were refused": few,
            f"{self.unsent} requests were not sent, {AT_ONCE} were under way": self.unsent > 0,
            f"of {len(self.calm)} requests to the other graph {harmed} were not answered": (
                harmed > 0 or not self.calm
            ),
            f"neither served nor refused nor too late: {dict(strange)}": bool(strange),
        }
        found = [text for text, wrong in checks.items() if wrong]
        if self.refusals and (median := percentile(self.refusals, 50)) > PROMPT:
            found.append(f"refusals took {1000 * median:.1f} ms")
        return found


async def keep_busy(clients: Clients, capacity: Capacity, seconds: float) -> float:
    """Good answers a second when there is always work, and never more than fits."""
    began = time.monotonic()
    good = 0

    async def one_after_the_other(grpc: bool) -> None:
        nonlocal good
        while time.monotonic() < began + seconds:
            work = f"sleep:{capacity.call}"
            answer = await clients.ask(service=BUSY, grpc=grpc, do_work=work)
            good += answer.good

    await asyncio.gather(*(one_after_the_other(n % 2 == 0) for n in range(2 * capacity.workers)))
    return good / (time.monotonic() - began)


async def pour(clients: Clients, capacity: Capacity, into: Overload) -> None:
    """Requests at a fixed rate, whatever becomes of those before."""
    asked: list[asyncio.Task[Answer]] = []
    under_way: set[asyncio.Task[Answer]] = set()
    work = f"sleep:{capacity.call}"
    began = time.monotonic()
    while (passed := time.monotonic() - began) < into.seconds:
        while len(asked) + into.unsent < passed * TIMES * capacity.rate:
            if len(under_way) >= AT_ONCE:
                into.unsent += 1
                continue
            grpc = len(asked) % 2 == 0
            ask = clients.ask(service=BUSY, grpc=grpc, do_work=work, limit=DEADLINE)
            task = asyncio.create_task(ask)
            asked.append(task)
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.sleep(0.005)  # the pace is what is asked for
    into.answers += await asyncio.gather(*asked)


async def ask_calmly(clients: Clients, over: asyncio.Event, *, grpc: bool) -> list[Answer]:
    """One request after the other to the graph that is not overloaded."""
    answers = []
    while not over.is_set():
        answers.append(await clients.ask(service=CALM, grpc=grpc, limit=DEADLINE))
        await asyncio.sleep(0.02)  # the pace is what is asked for
    return answers


async def overload(
    clients: Clients, capacity: Capacity, seconds: float, peak_seconds: float
) -> Overload:
    """The peak, the overload, and what is served afterwards."""
    found = Overload(seconds=seconds, peak=await keep_busy(clients, capacity, peak_seconds))
    over = asyncio.Event()
    others = [asyncio.create_task(ask_calmly(clients, over, grpc=grpc)) for grpc in (True, False)]
    await pour(clients, capacity, found)
    over.set()
    for other in others:
        found.calm += await other
    found.recovered = await keep_busy(clients, capacity, peak_seconds)
    return found


def latest(at: Site) -> float:
    """Seconds that the slowest of those admitted had to wait, by the engine's own record.

    Raises:
        AssertionError: somebody was admitted and not answered.
    """
    events = at.events()
    since = {event.data_id: event.t for event in events if isinstance(event, Admitted)}
    lives = [event.t - since[event.data_id] for event in events if isinstance(event, Replied)]
    assert len(lives) == len(since)
    return max(lives)


@dataclass(kw_only=True)
class Judged:
    """A long overload of a service of its own, and all that was missed."""

    found: Overload
    warm: int
    end: int
    slowest: float
    noise: float
    missed: list[str]

    def __str__(self) -> str:
        refusals = self.found.refusals or [0.0]
        late = sum(answer.late for answer in self.found.answers)
        calm = [answer.seconds for answer in self.found.calm]
        lines = [
            f"{len(self.found.answers)} requests in {self.found.seconds:.0f} s:"
            f" {self.found.goodput:.1f} good answers a second, at the peak {self.found.peak:.1f},"
            f" afterwards {self.found.recovered:.1f}",
            f"{len(refusals)} refusals in {1000 * percentile(refusals, 50):.1f} ms, the slowest"
            f" hundredth {1000 * percentile(refusals, 99):.1f} ms; {late} beyond their deadline;"
            f" the slowest admitted request took {self.slowest:.3f} s of {DEADLINE}",
            f"the other graph answered {len(calm)} requests, the slowest hundredth in"
            f" {1000 * percentile(calm, 99):.1f} ms",
            f"memory {self.warm >> 10} KiB after the warm-up, {self.end >> 10} KiB at the end"
            f" ({100 * (self.end / self.warm - 1):+.1f} %)",
            f"this process itself was woken up to {self.noise:.3f} s late",
            *(f"MISSED: {each}" for each in self.missed),
        ]
        return "\n".join(lines)


async def judged(folder: Path, seconds: float, capacity: Capacity, executor: str) -> Judged:
    """Overload a service of its own, and let the judge of histories read what happened."""
    async with (
        site(folder, **capacity.config(executor)) as at,
        Noise() as noise,
    ):
        await pour(at.clients, capacity, Overload(seconds=WARM_SECONDS, peak=0.0))
        warm, workers = at.server.memory(), len(at.server.descendants())
        found = await overload(at.clients, capacity, seconds, PEAK_SECONDS)
        end = at.server.memory()
        missed = found.missed()
        if len(at.server.descendants()) != workers:
            missed.append("a process has gone, or come")
        if end > GROWTH * warm:
            missed.append(f"memory grew from {warm >> 10} to {end >> 10} KiB")
        if at.server.stop() != 0:
            missed.append("the service did not end in order")
        slowest = latest(at)
        if not noise.allows(slowest, DEADLINE + LATE):
            missed.append(f"somebody who was admitted waited {slowest:.3f} s")
        if (most := at.most_at_once(f"{BUSY}/work")) > capacity.workers:
            missed.append(f"{most} calls ran at once")
        missed += at.verdict(grace=LATE + 2 * noise.worst, failures=None)
    return Judged(
        found=found, warm=warm, end=end, slowest=slowest, noise=noise.worst, missed=missed
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--executor", choices=["process", "thread"], default="process")
    parser.add_argument("--workers", type=int, default=Capacity.workers)
    parser.add_argument("--call", type=float, default=Capacity.call, help="seconds")
    options = parser.parse_args()
    capacity = Capacity(workers=options.workers, call=options.call)
    with tempfile.TemporaryDirectory(prefix="overload-") as folder:
        outcome = asyncio.run(judged(Path(folder), options.seconds, capacity, options.executor))
    print(outcome)
    return 1 if outcome.missed else 0


if __name__ == "__main__":
    sys.exit(main())
