"""SIGTERM under load: admitted requests are answered, later ones refused, and the exit is clean."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.faults.site import site, until
from tests.kit.load import Answer

pytestmark = pytest.mark.faults


async def test_all_admitted_requests_are_answered_during_a_drain(
    tmp_path: Path,
) -> None:
    async with site(tmp_path, ops={"work": {"concurrency": 4}}) as at:
        clients = at.clients
        answers: list[Answer] = []
        stopped = asyncio.Event()

        async def one_after_the_other() -> None:
            while not stopped.is_set():
                answers.append(await clients.send_request(do_work="sleep:0.02"))

        tasks = [asyncio.create_task(one_after_the_other()) for _ in range(16)]
        await until(lambda: len(answers) > 100)
        assert all(answer.good for answer in answers)
        at.server.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(at.server.wait_exit) == 0
        stopped.set()
        await asyncio.gather(*tasks)
        good = {answer.value["n"] for answer in answers if answer.good}
        ran = {call.nonce for call in at.calls()}
        assert ran == good, "what was run was answered, and nothing else was"
        assert all(answer.good or answer.status in (0, 503) for answer in answers)
        assert at.verdict() == []
