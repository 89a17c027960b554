"""Worker processes that die, hang, grow and lie: one request each at most, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.testing import history
from tests.faults.load import TIMED_OUT
from tests.faults.site import SCRIPT, Service, Site, site, until, variables
from tests.services.process import running

pytestmark = pytest.mark.faults

LOST = 9000
WORKERS = 2


@asynccontextmanager
async def supervised(folder: Path, op: dict[str, Any] | None = None, **config: Any) -> Any:
    """A site whose op has processes; afterwards everything is as it was when it had served."""
    ops = {"work": {"concurrency": WORKERS, **(op or {})}}
    async with site(folder, ops=ops, dag={"is_thread_op": False}, **config) as at:
        # As many at once as there will be, so that no connection is new later.
        answers = await asyncio.gather(*(at.clients.ask() for _ in range(20)))
        assert all(each.good for each in answers)
        before = held(at)
        yield at
        await until(at.server.is_ready, 30.0)
        assert (await at.clients.ask()).good
        await until(lambda: nothing_more(held(at), before), 30.0)
        whole_family = at.server.descendants()
        assert at.server.stop() == 0
        assert not any(each.is_running() for each in whole_family)
        assert history.check(at.clients.history.events) == []


def engine(at: Site) -> psutil.Process:
    return family(at)[0]


def workers(at: Site) -> list[psutil.Process]:
    return family(at)[1:]


def family(at: Site) -> list[psutil.Process]:
    """By age: the engine is there before any worker, though its number may be higher."""
    return sorted(psutil.Process(at.server.pid).children(), key=psutil.Process.create_time)


def held(at: Site) -> dict[str, int]:
    """Processes, and the descriptors of those that stay; memory without a name is among these."""
    return {
        "processes": len(at.server.descendants()),
        "engine": engine(at).num_fds(),
        "supervisor": psutil.Process(at.server.pid).num_fds(),
    }


def nothing_more(now: dict[str, int], before: dict[str, int]) -> bool:
    """Connections that were idle may have been closed meanwhile."""
    return now["processes"] == before["processes"] and all(
        count <= before[what] for what, count in now.items()
    )


DEATHS: list[dict[str, str]] = [
    {"do_work": "kill"},
    {"do_work": "exit"},
    {"do_work": "segfault"},
    {"do_work": "garbage"},
    {"exit_before": "yes"},
    {"exit_after": "yes"},
]


async def test_each_way_of_dying_costs_one_request_and_leaves_nothing(tmp_path: Path) -> None:
    async with supervised(tmp_path) as at:
        for pairs in DEATHS:
            asked = [at.clients.ask(**pairs), *(at.clients.ask() for _ in range(10))]
            fatal, *others = await asyncio.gather(*asked)
            assert fatal.err_no == LOST, pairs
            assert all(each.good for each in others), pairs
        await until(lambda: at.server.log().count(" died: ") == len(DEATHS))
        assert "Segmentation fault" in at.server.log()


@pytest.mark.long
async def test_a_hundred_deaths_leave_no_descriptor_memory_thread_or_zombie(
    tmp_path: Path,
) -> None:
    deaths = 100
    async with site(tmp_path, graph="chain", dag={"is_thread_op": False}) as at:
        # Large arrays on the way to those who die, so that shared memory dies with them.
        kill = {"do_first": "make:1", "do_second": "kill"}
        assert (await at.clients.ask(do_first="make:1", do_second="add")).good
        assert (await at.clients.ask(**kill)).err_no == LOST
        assert (await at.clients.ask(do_first="make:1", do_second="add")).good
        staying = at.server.pid, engine(at).pid
        before = [belongings(pid) for pid in staying]
        seen = set()
        for _ in range(deaths):
            assert (await at.clients.ask(**kill)).err_no == LOST
            assert (await at.clients.ask(do_first="make:1", do_second="add")).good
            seen |= {each.pid for each in workers(at)}
        assert len(seen) > deaths
        await until(lambda: not any(map(grown, before, [belongings(pid) for pid in staying])))
        at.end(failures=deaths + 1)


def grown(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """What is more; a slab or two may wait to be used again, in one moment or the other."""
    # Each is a mapping, which has a descriptor, and another by which it can be lent.
    spare = {"slabs": 2, "/memfd:penstock-slab (deleted)": 4}
    more = {kind: count - before.get(kind, 0) for kind, count in now.items()}
    return {kind: count for kind, count in more.items() if count > spare.get(kind, 0)}


def belongings(pid: int) -> dict[str, int]:
    """Descriptors by kind, threads, mappings of shared memory, living and dead children."""
    process, found = Path(f"/proc/{pid}"), Counter[str]()
    for each in os.listdir(process / "fd"):
        target = os.readlink(process / "fd" / each)
        found[target.partition(":")[0] if not target.startswith("/") else target] += 1
    found["threads"] = len(os.listdir(process / "task"))
    found["slabs"] = (process / "maps").read_text().count("memfd:")
    for child in psutil.Process(pid).children():
        found[child.status() if child.status() == psutil.STATUS_ZOMBIE else "children"] += 1
    return dict(found)


@pytest.mark.long
async def test_a_worker_that_hangs_is_ended_while_its_caller_has_long_been_answered(
    tmp_path: Path,
) -> None:
    async with supervised(tmp_path, hang_limit=1) as at:
        for do in ("stop", "spin", "native"):
            before = {each.pid for each in workers(at)}
            answers = await asyncio.gather(
                at.clients.ask(limit=0.5, do_work=do), *(at.clients.ask() for _ in range(10))
            )
            assert not answers[0].good
            assert answers[0].seconds < 2.0
            assert all(each.good for each in answers[1:])
            await until(lambda was=before: len({w.pid for w in workers(at)} - was) == 1)
        log = at.server.log()
        assert log.count("hangs and is ended") == 3
        assert "in do_spin" in log
        assert "in do_native" in log


async def test_an_idle_worker_that_is_stopped_costs_nobody_his_answer(tmp_path: Path) -> None:
    async with supervised(tmp_path) as at:
        before = {each.pid for each in workers(at)}
        os.kill(workers(at)[0].pid, signal.SIGSTOP)
        answers = await asyncio.gather(*(at.clients.ask() for _ in range(20)))
        assert all(each.good for each in answers)
        await until(lambda: len({each.pid for each in workers(at)} - before) == 1)


async def test_a_call_beyond_its_time_out_ends_with_its_worker_where_that_is_wanted(
    tmp_path: Path,
) -> None:
    async with supervised(tmp_path, {"timeout": 200, "on_timeout": "kill"}) as at:
        for _ in range(6):  # more than would give the op up, were they its own deaths
            assert (await at.clients.ask(do_work="spin")).err_no == TIMED_OUT
        await until(lambda: at.server.log().count(" died: SIGABRT at its time-out") == 6)
        assert at.server.log().count(" died: ") == 6
        assert "in do_spin" in at.server.log()


async def test_a_call_that_fills_the_memory_is_ended_at_its_limit(tmp_path: Path) -> None:
    async with supervised(tmp_path, {"memory_limit_mib": 400}) as at:
        assert (await at.clients.ask(do_work="balloon")).err_no == LOST
        assert "far over its 400" in at.server.log()


async def test_workers_that_are_replaced_all_the_time_cost_no_request(tmp_path: Path) -> None:
    async with supervised(tmp_path, {"max_batches": 20}) as at:
        answers = [await at.clients.ask() for _ in range(300)]
        assert all(each.good for each in answers)
        assert at.server.log().count("is replaced: it has run") >= 5


async def test_clients_that_leave_in_the_middle_cost_no_worker(tmp_path: Path) -> None:
    async with supervised(tmp_path, {"timeout": 10_000, "on_timeout": "kill"}) as at:
        before = {each.pid for each in workers(at)}
        for _ in range(10):
            connection = await at.clients.connect()
            number, data = at.clients.begin({"do_work": "sleep:0.05"})
            connection.writer.write(data)
            await until(lambda asked=number: any(c.nonce == str(asked) for c in at.calls()))
            connection.reset()
            at.clients.left(number)
        assert (await at.clients.ask()).good
        assert {each.pid for each in workers(at)} == before


async def test_without_a_descriptor_for_a_new_worker_the_engine_tries_again(
    tmp_path: Path,
) -> None:
    async with supervised(tmp_path) as at:
        running_engine = engine(at)
        limits = running_engine.rlimit(resource.RLIMIT_NOFILE)
        running_engine.rlimit(resource.RLIMIT_NOFILE, (8, limits[1]))  # what it has, it keeps
        for each in workers(at):
            each.kill()
        await until(lambda: "is tried again" in at.server.log())
        running_engine.rlimit(resource.RLIMIT_NOFILE, limits)
        await until(lambda: len(workers(at)) == WORKERS, 30.0)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("raise", "the disk is gone"),
        ("import", "No module named 'no_such_module'"),
        ("exit", "exit status 7"),
    ],
)
def test_a_fault_in_init_op_ends_the_start_and_is_what_is_read_last(
    tmp_path: Path, fault: str, text: str
) -> None:
    services = {"faults": Service("one", dag={"is_thread_op": False})}
    environment = variables(tmp_path, services) | {"FAULTS_INIT": fault}
    with running(SCRIPT, environment=environment, ready=False) as server:
        family = server.descendants()
        assert server.wait_exit() == 1
        last = server.log().strip().splitlines()[-1]
        assert "work" in last
        assert text in last
        assert not any(each.is_running() for each in family)
