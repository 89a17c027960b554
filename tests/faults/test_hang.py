"""Calls that hang or take too long affect no other requests and leak no resources."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.faults.site import Site, site, until
from tests.kit.load import TIMED_OUT, Clients, Noise, percentile

pytestmark = pytest.mark.faults


async def test_a_hanging_call_blocks_only_its_own_worker(tmp_path: Path) -> None:
    async with site(tmp_path, ops={"work": {"concurrency": 2}}) as at:
        clients = at.clients
        hanging = asyncio.create_task(clients.send_request(do_work="hold"))
        async with at.held():
            began = time.monotonic()
            answers = await asyncio.gather(*(clients.send_request() for _ in range(300)))
            assert time.monotonic() - began < 5.0
            assert all(answer.good for answer in answers)
            assert not hanging.done()
        assert (await hanging).good
        assert at.server.stop() == 0
        assert at.most_at_once("work") == 2
        assert at.verdict() == []


async def branch_delays(at: Site, clients: Clients, count: int) -> tuple[list[float], list[float]]:
    """Of requests one by one: seconds until the fast branch began, and until the answer."""
    before = len(at.calls(op="fast"))
    begun: list[float] = []
    answered: list[float] = []
    for _ in range(count):
        begun.append(time.monotonic())
        answer = await clients.send_request()
        assert answer.good
        answered.append(answer.seconds)
    fast = [call.t for call in at.calls(op="fast")[before:]]
    return [t - since for t, since in zip(fast, begun, strict=True)], answered


@pytest.mark.alone
async def test_a_hanging_branch_does_not_delay_the_other_branch(tmp_path: Path) -> None:
    ops = {"slow": {"concurrency": 4}}
    async with site(tmp_path, graph="branches", ops=ops) as at, Noise() as noise:
        clients = at.clients
        await branch_delays(at, clients, 50)  # warm
        idle, idle_answers = await branch_delays(at, clients, 150)
        since = time.monotonic()
        hanging = [asyncio.create_task(clients.send_request(do_slow="hold")) for _ in range(3)]
        async with at.held(calls=3):
            await until(lambda: len(at.calls(op="fast")) == 203)
            their_own = [call.t - since for call in at.calls(op="fast")[-3:]]
            busy, busy_answers = await branch_delays(at, clients, 150)
            assert not any(task.done() for task in hanging)
        assert [(await task).good for task in hanging] == [True] * 3
        assert at.server.stop() == 0
        assert noise.allows(max(their_own), 0.1)
        assert noise.allows(percentile(busy, 95), 2 * percentile(idle, 95) + 0.005)
        assert noise.allows(percentile(busy_answers, 95), 2 * percentile(idle_answers, 95) + 0.005)
        assert at.verdict() == []


async def test_calls_that_time_out_are_retried_while_others_are_answered(
    tmp_path: Path,
) -> None:
    ops = {"work": {"concurrency": 4, "timeout": 150, "retry": 3}}
    async with site(tmp_path, ops=ops) as at:
        clients = at.clients
        kinds = ["echo"] * 8 + ["sleep_at_first:0.4"] + ["echo"] * 8 + ["sleep:0.4"]
        answers = await asyncio.gather(*(clients.send_request(do_work=kind) for kind in kinds * 2))
        for number, (kind, answer) in enumerate(zip(kinds * 2, answers, strict=True), start=1):
            attempts = sum(call.nonce == str(number) for call in at.calls())
            if kind.startswith("sleep:"):
                assert answer.err_no == TIMED_OUT
                assert "exceeded retry count" in answer.text
                assert attempts == 3
            else:
                assert answer.good
                assert attempts >= (2 if kind.startswith("sleep") else 1)
        assert at.server.stop() == 0
        assert at.most_at_once("work") <= 4
        assert at.verdict(attempts=3, failures=4) == []


@pytest.mark.long
async def test_a_thousand_timeouts_leak_no_threads_or_descriptors(tmp_path: Path) -> None:
    ops = {"work": {"concurrency": 32, "timeout": 30}}
    async with site(tmp_path, ops=ops, max_requests=2000) as at:
        clients = at.clients
        # The most concurrent requests, so that no connection is opened later.
        answers = await asyncio.gather(*(clients.send_request() for _ in range(100)))
        assert all(answer.good for answer in answers)
        before = at.resources()
        timed_out = 0
        while timed_out < 1000:
            slow = [clients.send_request(do_work="sleep:0.08") for _ in range(100)]
            answers = await asyncio.gather(*slow)
            over = [answer.err_no == TIMED_OUT for answer in answers]
            assert sum(over) > 50, "the others' time-outs were noticed too late, if at all"
            timed_out += sum(over)
        await until(lambda: len(at.calls("end")) == len(at.calls("begin")))
        assert at.resources() == before
        answers = await asyncio.gather(*(clients.send_request() for _ in range(300)))
        assert all(answer.good for answer in answers)
        assert at.server.stop() == 0
        assert at.most_at_once("work") == 32, "every worker is in use, and never one more"
        assert at.verdict(failures=timed_out) == []
