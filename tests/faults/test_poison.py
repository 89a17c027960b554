"""Requests that kill the worker that runs them: their neighbours and the service live on."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.load import Answer
from tests.faults.site import Site, site, until

pytestmark = pytest.mark.faults

DIED = 9000
REFUSED = "two workers have died of this request"


async def asked(at: Site, nonces: range, poison: set[int], at_once: int) -> dict[int, Answer]:
    """The answers to requests of these nonces, so many of them at any moment."""
    todo = iter(nonces)
    answers: dict[int, Answer] = {}

    async def client() -> None:
        for nonce in todo:
            do = {"do_work": "segfault"} if nonce in poison else {}
            answers[nonce] = await at.clients.ask(n=str(nonce), **do)

    await asyncio.gather(*(client() for _ in range(at_once)))
    return answers


def runs(at: Site) -> Counter[int]:
    """How often each nonce was in a ``process`` call."""
    return Counter(int(call.nonce) for call in at.calls())


@pytest.mark.parametrize("share", [pytest.param(100, marks=pytest.mark.long), 12])
async def test_poison_costs_two_workers_at_most_and_its_neighbours_nothing(
    tmp_path: Path, share: int
) -> None:
    ops = {
        "work": {"concurrency": 2, "batch_size": 16, "executor": "process", "retry_on_crash": True}
    }
    nonces = range(1, 1501 if share == 100 else 301)
    poison = set(nonces[share // 2 :: share])
    async with site(tmp_path, graph="poison", ops=ops) as at:
        answers = await asked(at, nonces, poison, at_once=64)
        bad = {nonce for nonce, answer in answers.items() if not answer.good}
        assert bad == poison
        assert {answers[nonce].err_no for nonce in poison} == {DIED}
        assert all(REFUSED in answers[nonce].text for nonce in poison)
        times = runs(at)
        assert {times[nonce] for nonce in poison} == {2}
        # Company that died is run once more: each request is in two calls at the most.
        assert max(times.values()) == 2

        again = await asked(at, nonces, poison, at_once=64)
        assert {nonce for nonce, answer in again.items() if not answer.good} == poison
        assert {runs(at)[nonce] for nonce in poison} == {2}, "whoever has killed twice is not run"
        await until(at.server.is_ready)
        assert at.server.log().count("died: SIGSEGV") <= 2 * len(poison)
        assert "is disabled" not in at.server.log()
        at.end(attempts=2, failures=2 * len(poison))


async def test_without_a_retry_only_the_batch_that_died_fails_and_a_suspect_runs_alone(
    tmp_path: Path,
) -> None:
    ops = {"work": {"concurrency": 2, "batch_size": 16, "executor": "process"}}
    poison = {40, 140, 240}
    async with site(tmp_path, graph="poison", ops=ops) as at:
        first = await asked(at, range(1, 301), poison, at_once=64)
        failed = {nonce for nonce, answer in first.items() if not answer.good}
        assert poison <= failed
        assert len(failed) <= 16 * len(poison)
        assert all(first[nonce].err_no == DIED for nonce in failed)
        assert max(runs(at).values()) == 1

        second = await asked(at, range(1, 301), poison, at_once=64)
        assert {nonce for nonce, answer in second.items() if not answer.good} == poison
        assert all(REFUSED in second[nonce].text for nonce in poison)
        third = await asked(at, range(1, 301), poison, at_once=64)
        assert {nonce for nonce, answer in third.items() if not answer.good} == poison
        assert {runs(at)[nonce] for nonce in poison} == {2}
        assert at.server.log().count("died: SIGSEGV") == 2 * len(poison)
        await until(at.server.is_ready)
        at.end(failures=len(failed) + 2 * len(poison))
