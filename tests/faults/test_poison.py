"""Requests that kill their worker: other requests of the batch are answered, the service serves."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.site import Site, site, until
from tests.kit.load import Answer

pytestmark = pytest.mark.faults

DIED = 9000
REFUSED = "two workers have died of this request"


async def answers_to(at: Site, nonces: range, poison: set[int], at_once: int) -> dict[int, Answer]:
    """The answers to requests with these nonces, with ``at_once`` in flight."""
    todo = iter(nonces)
    answers: dict[int, Answer] = {}

    async def client() -> None:
        for nonce in todo:
            do = {"do_work": "segfault"} if nonce in poison else {}
            answers[nonce] = await at.clients.send_request(n=str(nonce), **do)

    await asyncio.gather(*(client() for _ in range(at_once)))
    return answers


def runs(at: Site) -> Counter[int]:
    """How often each nonce was in a ``process`` call."""
    return Counter(int(call.nonce) for call in at.calls())


@pytest.mark.parametrize("share", [pytest.param(100, marks=pytest.mark.long), 12])
async def test_a_poison_request_kills_at_most_two_workers_and_fails_alone(
    tmp_path: Path, share: int
) -> None:
    ops = {
        "work": {"concurrency": 2, "batch_size": 16, "executor": "process", "retry_on_crash": True}
    }
    nonces = range(1, 1501 if share == 100 else 301)
    poison = set(nonces[share // 2 :: share])
    async with site(tmp_path, graph="poison", ops=ops) as at:
        answers = await answers_to(at, nonces, poison, at_once=64)
        bad = {nonce for nonce, answer in answers.items() if not answer.good}
        assert bad == poison
        assert {answers[nonce].err_no for nonce in poison} == {DIED}
        assert all(REFUSED in answers[nonce].text for nonce in poison)
        times = runs(at)
        assert {times[nonce] for nonce in poison} == {2}
        # The other requests of a killed batch are run once more: at most two calls for each.
        assert max(times.values()) == 2

        again = await answers_to(at, nonces, poison, at_once=64)
        assert {nonce for nonce, answer in again.items() if not answer.good} == poison
        assert {runs(at)[nonce] for nonce in poison} == {2}, "whoever has killed twice is not run"
        await until(at.server.is_ready)
        assert at.server.log().count("died: SIGSEGV") <= 2 * len(poison)
        assert "is disabled" not in at.server.log()
        at.end(attempts=2, failures=2 * len(poison))


async def test_without_retries_only_the_killed_batch_fails_and_its_requests_then_run_alone(
    tmp_path: Path,
) -> None:
    ops = {"work": {"concurrency": 2, "batch_size": 16, "executor": "process"}}
    poison = {40, 140, 240}
    async with site(tmp_path, graph="poison", ops=ops) as at:
        first = await answers_to(at, range(1, 301), poison, at_once=64)
        failed = {nonce for nonce, answer in first.items() if not answer.good}
        assert poison <= failed
        assert len(failed) <= 16 * len(poison)
        assert all(first[nonce].err_no == DIED for nonce in failed)
        assert max(runs(at).values()) == 1

        second = await answers_to(at, range(1, 301), poison, at_once=64)
        assert {nonce for nonce, answer in second.items() if not answer.good} == poison
        assert all(REFUSED in second[nonce].text for nonce in poison)
        third = await answers_to(at, range(1, 301), poison, at_once=64)
        assert {nonce for nonce, answer in third.items() if not answer.good} == poison
        assert {runs(at)[nonce] for nonce in poison} == {2}
        assert at.server.log().count("died: SIGSEGV") == 2 * len(poison)
        await until(at.server.is_ready)
        at.end(failures=len(failed) + 2 * len(poison))
