"""More than shared memory is allowed for: it takes the slower way, and arrives whole."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.load import Answer
from tests.faults.site import MIB, Site, memory, site

pytestmark = pytest.mark.faults

WRONG_TYPE = 7000
SLAB = 8 * MIB
PROCESSES: dict[str, Any] = {"graph": "chain", "dag": {"is_thread_op": False}}
SMALL = {"FAULTS_SLAB_BYTES": str(SLAB)}


async def carried(at: Site, mebibytes: int) -> Answer:
    """An array goes from the first op to the second, which adds its numbers."""
    return await at.clients.ask(do_first=f"make:{mebibytes}", do_second="add")


def whole(answer: Answer, mebibytes: int) -> bool:
    count = mebibytes * MIB // 8
    return answer.good and int(answer.value["sum"]) == count * (count - 1) // 2


async def test_arrays_larger_than_the_shared_memory_arrive_whole_among_others(
    tmp_path: Path,
) -> None:
    async with site(tmp_path, environment=SMALL, **PROCESSES) as at:
        sizes = [1, 3, 7, 8, 9, 20] * 4
        answers = await asyncio.gather(*(carried(at, size) for size in sizes))
        assert all(whole(*each) for each in zip(answers, sizes, strict=True))
        at.end()


@pytest.mark.parametrize(
    ("mebibytes", "environment"), [(300, {}), (100, SMALL)], ids=["shared memory", "socket"]
)
async def test_a_large_output_costs_the_engine_one_copy_of_it(
    tmp_path: Path, mebibytes: int, environment: dict[str, str]
) -> None:
    async with site(tmp_path, environment=environment, **PROCESSES) as at:
        assert whole(await carried(at, 1), 1)
        engine = psutil.Process(at.server.pid).children()[0].pid
        base = memory(engine, "VmRSS")
        Path(f"/proc/{engine}/clear_refs").write_text("5")  # forget the peak
        assert whole(await carried(at, mebibytes), mebibytes)
        grown = memory(engine, "VmHWM") - base
        assert grown < (2 * mebibytes + 32) * MIB, f"{grown // MIB} MiB"
        at.end()


async def test_an_output_that_the_engine_does_not_take_costs_its_request_and_no_worker(
    tmp_path: Path,
) -> None:
    limits = {**SMALL, "FAULTS_ANSWER_BYTES": str(32 * MIB)}
    async with site(tmp_path, environment=limits, **PROCESSES) as at:
        workers = at.server.descendants()
        assert whole(await carried(at, 24), 24)
        for do in ("make:40", "make_many:8"):  # too large by itself, and only together
            answers = await asyncio.gather(
                at.clients.ask(do_first=do, do_second="add"),
                *(carried(at, 1) for _ in range(5)),
            )
            assert answers[0].err_no == WRONG_TYPE
            assert "are more than the 33554432 allowed" in answers[0].text
            assert all(whole(answer, 1) for answer in answers[1:])
        several = await at.clients.ask(do_first="make_many:3", do_second="count")
        assert several.value["count"] == str(3 << 20)
        assert at.server.descendants() == workers
        at.end(failures=2)
