"""An op without workers: its requests fail in time, other ops run, and probes report it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.faults.site import Site, site, until
from tests.kit.load import TIMED_OUT, Answer

pytestmark = pytest.mark.faults

LOST = 9000
ENDED = 17
"""The error number of a request that ends in the middle of the graph."""
DEADLINE = 1.0
PROCESSES: dict[str, Any] = {"dag": {"is_thread_op": False}}


async def ready(at: Site) -> bool:
    return await asyncio.to_thread(at.server.is_ready)


async def ten_answers(at: Site) -> list[Answer]:
    return list(await asyncio.gather(*(at.clients.send_request() for _ in range(10))))


async def test_while_a_worker_starts_only_its_op_waits_and_probes_are_not_ready(
    tmp_path: Path,
) -> None:
    async with site(tmp_path, graph="branches", deadline=DEADLINE, **PROCESSES) as at:
        os.mkfifo(at.obstacle("slow"))
        assert (await at.clients.send_request(do_slow="kill")).err_no == LOST
        async with at.start_held("slow"):
            assert not await ready(at)
            before = len(at.calls(op="fast"))
            answers = await ten_answers(at)
            assert {each.err_no for each in answers} == {TIMED_OUT}
            assert max(each.seconds for each in answers) < DEADLINE + 2.0
            assert len(at.calls(op="fast")) == before + 10
            assert not await ready(at)
        await until(at.server.is_ready)
        assert all(each.good for each in await ten_answers(at))
        at.end(failures=11)


async def test_a_service_stops_while_a_worker_is_still_starting(tmp_path: Path) -> None:
    async with site(tmp_path, graph="branches", **PROCESSES) as at:
        os.mkfifo(at.obstacle("slow"))
        assert (await at.clients.send_request(do_slow="kill")).err_no == LOST
        async with at.start_held("slow"):
            assert await asyncio.to_thread(at.server.stop, timeout=10.0) == 0
            assert at.server.leftovers(1.0) == []


async def test_a_disabled_op_fails_requests_at_once_and_other_ops_still_run(
    tmp_path: Path,
) -> None:
    async with site(tmp_path, graph="chain", **PROCESSES) as at:
        at.obstacle("second").write_text("the disk is gone")
        assert (await at.clients.send_request(do_second="kill")).err_no == LOST
        await until(lambda: "it is disabled" in at.server.log())
        before = len(at.calls(op="first"))
        lost = await ten_answers(at)
        assert {each.err_no for each in lost} == {LOST}
        assert all("'second' has no worker" in each.text for each in lost)
        assert max(each.seconds for each in lost) < 2.0
        assert (await at.clients.send_request(end="first")).err_no == ENDED
        assert len(at.calls(op="first")) == before + 11
        assert not await ready(at)
        at.end(failures=12)
