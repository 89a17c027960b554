"""Five times more than fits: what is served stays the same, the rest is told at once."""

import asyncio
from pathlib import Path

import pytest

from tests.faults.load import BUSY, TIMED_OUT, Answer, Clients, Noise, percentile
from tests.faults.overload import DEADLINE, LATE, Capacity, Overload, keep_busy, latest, overload
from tests.faults.site import site

pytestmark = pytest.mark.faults

CAPACITY = Capacity(workers=4, call=0.04)


def answers(count: int, err_no: int | None, seconds: float = 0.001) -> list[Answer]:
    return [Answer(200, err_no, "", {}, seconds)] * count


def kept(
    *more: Answer, good: int = 90, unsent: int = 0, recovered: float = 90.0, seconds: float = 0.004
) -> Overload:
    """A second of load with a peak of a hundred in which every promise is just kept."""
    found = [*answers(good, 0), *answers(400, BUSY, seconds), *more]
    return Overload(seconds=1.0, peak=100.0, answers=found, unsent=unsent, recovered=recovered)


def test_every_promise_of_an_overload_can_be_missed() -> None:
    assert kept(*answers(10, TIMED_OUT)).missed() == []
    missed = [
        *kept(good=89).missed(),
        *kept(recovered=89.0).missed(),
        *kept(seconds=0.006).missed(),
        *kept(unsent=1).missed(),
        *kept(*answers(1, None)).missed(),
        *kept(good=401).missed(),
    ]
    assert missed == [
        "goodput fell from 100.0 to 89.0 a second",
        "afterwards 89.0 a second instead of 100.0",
        "refusals took 6.0 ms",
        "1 requests were not sent, 1000 were under way",
        "neither served nor refused nor too late: {'None: ': 1}",
        "of 801 requests 400 were refused",
    ]


async def complaints(clients: Clients) -> list[str]:
    """What is wrong with one round of peak, overload and recovery."""
    found = await overload(clients, CAPACITY, seconds=2.0, peak_seconds=1.0)
    assert all(answer.good or answer.refused for answer in found.answers)
    slow = percentile(found.refusals, 99)
    return found.missed() + [f"the slowest refusals took {slow:.3f} s"] * (slow > 0.05)


@pytest.mark.parametrize("executor", [pytest.param("thread", marks=pytest.mark.long), "process"])
async def test_at_five_times_the_capacity_as_much_is_served_as_at_its_peak(
    tmp_path: Path, executor: str
) -> None:
    async with site(tmp_path, **CAPACITY.config(executor)) as at, Noise() as noise:
        await keep_busy(at.clients, CAPACITY, 0.5)  # warm
        found: list[list[str]] = []
        # Neighbours on the machine can only make it worse, so that one good round is enough.
        while not found or (found[-1] and len(found) < 4):
            found.append(await complaints(at.clients))
        assert found[-1] == [], found
        assert at.server.stop() == 0
        assert at.most_at_once("work") <= CAPACITY.workers
        assert noise.allows(latest(at), DEADLINE + LATE)
        assert at.verdict() == []


async def test_what_waits_past_its_deadline_is_answered_then_and_never_run(
    tmp_path: Path,
) -> None:
    async with site(tmp_path) as at, Noise() as noise:
        clients = at.clients
        limits = [0.05, 0.1, 0.2, 0.4] * 25
        holder = asyncio.create_task(clients.ask(do_work="hold"))
        async with at.held():
            answers = await asyncio.gather(*(clients.ask(limit=limit) for limit in limits))
        assert (await holder).good
        assert {answer.status for answer in answers} == {504}
        over = [a.seconds - limit for a, limit in zip(answers, limits, strict=True)]
        assert min(over) > -0.02, "on the server the time begins a little later"
        assert noise.allows(max(over), 0.1)
        assert at.server.stop() == 0
        assert len(at.calls()) == 1
        assert at.verdict(grace=0.1 + 2 * noise.worst, failures=100) == []
