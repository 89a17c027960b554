"""Five times the capacity, for a while: the goodput stays the same, the rest is refused at once.

There are two graphs in the service. The overloaded one has its own queue, which is full before the
engine is, so that the other one, at a low rate, answers everything.

python -m tests.faults.overload --seconds 60

The generator needs the same cores as the service, so the op waits and computes nothing: with two
workers and calls of 20 ms a hundred answers a second are all that it can give, and five times that,
four fifths of it refusals, leave most of two slow cores idle. For the peak, clients wait for each
answer. Then requests are sent at a fixed rate, independent of answers, over loopback, never more
than 1,000 at once. The exit status is 1 when a requirement was not met.
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
from tests.faults.site import Service, Site, site
from tests.kit.load import Answer, Clients, Noise, percentile

BUSY, CALM = "busy", "calm"
TURNS = ("grpc", "http")
"""The kinds of clients, in turn."""
TIMES = 5
"""Requests sent, as a multiple of the capacity."""
DEADLINE = 0.5
LATE = 0.1
"""Seconds after its deadline by which an admitted request must have an answer."""
GOODPUT = 0.9
"""Goodput required under overload and afterwards, as a fraction of the peak."""
PROMPT = 0.005
"""Limit of the median time of a refusal, in seconds."""
GROWTH = 1.05
AT_ONCE = 1000
"""Limit of requests in flight, in case the service hangs."""
WARM_SECONDS = 5.0
PEAK_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """The op's capacity: concurrent calls, and seconds of each."""

    workers: int = 2
    call: float = 0.02

    @property
    def rate(self) -> float:
        """The highest possible rate of answers per second."""
        return self.workers / self.call

    def config(self, executor: str) -> dict[str, Any]:
        """A configuration whose queue is just long enough to keep the busy op busy."""
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
    """Results of one overload; rates are good answers per second."""

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
        """Seconds of each refusal."""
        return [answer.seconds for answer in self.answers if answer.refused]

    def missed(self) -> list[str]:
        """The requirements that were not met, as sentences."""
        unexpected = Counter(
            f"{answer.err_no}: {answer.text}"
            for answer in self.answers
            if not (answer.good or answer.refused or answer.late)
        )
        failed = sum(not answer.good for answer in self.calm)
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
            f"of {len(self.calm)} requests to the other graph {failed} were not answered": (
                failed > 0 or not self.calm
            ),
            f"neither served nor refused nor too late: {dict(unexpected)}": bool(unexpected),
        }
        found = [text for text, wrong in checks.items() if wrong]
        if self.refusals and (median := percentile(self.refusals, 50)) > PROMPT:
            found.append(f"refusals took {1000 * median:.1f} ms")
        return found


async def keep_busy(clients: Clients, capacity: Capacity, seconds: float) -> float:
    """Good answers per second at full load without overload."""
    began = time.monotonic()
    good = 0

    async def sequential_requests(kind: str) -> None:
        nonlocal good
        while time.monotonic() < began + seconds:
            work = f"sleep:{capacity.call}"
            answer = await clients.send_request(service=BUSY, kind=kind, do_work=work)
            good += answer.good

    await asyncio.gather(*(sequential_requests(TURNS[n % 2]) for n in range(2 * capacity.workers)))
    return good / (time.monotonic() - began)


async def send_at_fixed_rate(clients: Clients, capacity: Capacity, into: Overload) -> None:
    """Send requests at a fixed rate, independent of answers."""
    sent: list[asyncio.Task[Answer]] = []
    in_flight: set[asyncio.Task[Answer]] = set()
    work = f"sleep:{capacity.call}"
    began = time.monotonic()
    while (passed := time.monotonic() - began) < into.seconds:
        while len(sent) + into.unsent < passed * TIMES * capacity.rate:
            if len(in_flight) >= AT_ONCE:
                into.unsent += 1
                continue
            kind = TURNS[len(sent) % 2]
            send_request = clients.send_request(
                service=BUSY, kind=kind, do_work=work, limit=DEADLINE
            )
            task = asyncio.create_task(send_request)
            sent.append(task)
            in_flight.add(task)
            task.add_done_callback(in_flight.discard)
        await asyncio.sleep(0.005)  # the rate of requests
    into.answers += await asyncio.gather(*sent)


async def send_at_low_rate(clients: Clients, over: asyncio.Event, kind: str) -> list[Answer]:
    """Send one request after the other to the graph that is not overloaded."""
    answers = []
    while not over.is_set():
        answers.append(await clients.send_request(service=CALM, kind=kind, limit=DEADLINE))
        await asyncio.sleep(0.02)  # the rate of requests
    return answers


async def overload(
    clients: Clients, capacity: Capacity, seconds: float, peak_seconds: float
) -> Overload:
    """Measure the peak, the overload, and the rate afterwards."""
    found = Overload(seconds=seconds, peak=await keep_busy(clients, capacity, peak_seconds))
    over = asyncio.Event()
    others = [asyncio.create_task(send_at_low_rate(clients, over, kind)) for kind in TURNS]
    await send_at_fixed_rate(clients, capacity, found)
    over.set()
    for other in others:
        found.calm += await other
    found.recovered = await keep_busy(clients, capacity, peak_seconds)
    return found


def latest(at: Site) -> float:
    """Seconds that the slowest admitted request took, by the engine's record.

    Raises:
        AssertionError: an admitted request was not answered.
    """
    events = at.events()
    since = {event.data_id: event.t for event in events if isinstance(event, Admitted)}
    durations = [event.t - since[event.data_id] for event in events if isinstance(event, Replied)]
    assert len(durations) == len(since)
    return max(durations)


@dataclass(kw_only=True)
class Measured:
    """Results of a long overload, and the requirements that were not met."""

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


async def measure_overload(
    folder: Path, seconds: float, capacity: Capacity, executor: str
) -> Measured:
    """Start a service, overload it, and check the history."""
    async with (
        site(folder, **capacity.config(executor)) as at,
        Noise() as noise,
    ):
        await send_at_fixed_rate(at.clients, capacity, Overload(seconds=WARM_SECONDS, peak=0.0))
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
    return Measured(
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
        outcome = asyncio.run(
            measure_overload(Path(folder), options.seconds, capacity, options.executor)
        )
    print(outcome)
    return 1 if outcome.missed else 0


if __name__ == "__main__":
    sys.exit(main())
