"""Arrays above the limit of shared memory are sent through the socket, unchanged."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.site import MIB, Site, site
from tests.kit.load import Answer
from tests.kit.usage import memory, peak_memory, reset_peak_memory

pytestmark = pytest.mark.faults

WRONG_TYPE = 7000
SLAB = 8 * MIB
PROCESSES: dict[str, Any] = {"graph": "chain", "dag": {"is_thread_op": False}}
SMALL = {"FAULTS_SLAB_BYTES": str(SLAB)}


async def pass_array(at: Site, mebibytes: int) -> Answer:
    """Pass an array from the first op to the second, which returns its sum."""
    return await at.clients.send_request(do_first=f"make:{mebibytes}", do_second="add")


def is_complete(answer: Answer, mebibytes: int) -> bool:
    count = mebibytes * MIB // 8
    return answer.good and int(answer.value["sum"]) == count * (count - 1) // 2


async def test_arrays_above_the_shared_memory_limit_are_passed_unchanged(
    tmp_path: Path,
) -> None:
    async with site(tmp_path, environment=SMALL, **PROCESSES) as at:
        sizes = [1, 3, 7, 8, 9, 20] * 4
        answers = await asyncio.gather(*(pass_array(at, size) for size in sizes))
        assert all(is_complete(*each) for each in zip(answers, sizes, strict=True))
        at.end()


@pytest.mark.parametrize(
    ("mebibytes", "environment"), [(300, {}), (100, SMALL)], ids=["shared memory", "socket"]
)
async def test_the_engine_makes_one_copy_of_a_large_output(
    tmp_path: Path, mebibytes: int, environment: dict[str, str]
) -> None:
    async with site(tmp_path, environment=environment, **PROCESSES) as at:
        assert is_complete(await pass_array(at, 1), 1)
        engine = psutil.Process(at.server.pid).children()[0].pid
        base = memory(engine)
        reset_peak_memory(engine)
        assert is_complete(await pass_array(at, mebibytes), mebibytes)
        grown = peak_memory(engine) - base
        assert grown < (2 * mebibytes + 32) * MIB, f"{grown // MIB} MiB"
        at.end()


async def test_an_output_above_the_limit_fails_its_request_but_not_the_worker(
    tmp_path: Path,
) -> None:
    limits = {**SMALL, "FAULTS_ANSWER_BYTES": str(32 * MIB)}
    async with site(tmp_path, environment=limits, **PROCESSES) as at:
        workers = at.server.descendants()
        assert is_complete(await pass_array(at, 24), 24)
        for do in ("make:40", "make_many:8"):  # one array too large, and several too large together
            answers = await asyncio.gather(
                at.clients.send_request(do_first=do, do_second="add"),
                *(pass_array(at, 1) for _ in range(5)),
            )
            assert answers[0].err_no == WRONG_TYPE
            assert "are more than the 33554432 allowed" in answers[0].text
            assert all(is_complete(answer, 1) for answer in answers[1:])
        several = await at.clients.send_request(do_first="make_many:3", do_second="count")
        assert several.value["count"] == str(3 << 20)
        assert at.server.descendants() == workers
        at.end(failures=2)
