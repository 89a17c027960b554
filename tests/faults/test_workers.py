"""Worker processes that crash, hang, grow or send garbage fail one request each, and no leaks."""

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
from tests.faults.site import SCRIPT, Service, Site, site, until, variables
from tests.kit.load import TIMED_OUT
from tests.services.process import running

pytestmark = pytest.mark.faults

LOST = 9000
WORKERS = 2


@asynccontextmanager
async def site_with_processes(folder: Path, op: dict[str, Any] | None = None, **config: Any) -> Any:
    """A site whose op runs in processes; checks afterwards that no resources leaked."""
    ops = {"work": {"concurrency": WORKERS, **(op or {})}}
    async with site(folder, ops=ops, dag={"is_thread_op": False}, **config) as at:
        # The most concurrent requests, so that no connection is opened later.
        answers = await asyncio.gather(*(at.clients.send_request() for _ in range(20)))
        assert all(each.good for each in answers)
        before = resources_of(at)
        yield at
        await until(at.server.is_ready, 30.0)
        assert (await at.clients.send_request()).good
        await until(lambda: nothing_added(resources_of(at), before), 30.0)
        all_processes = at.server.descendants()
        assert at.server.stop() == 0
        assert not any(each.is_running() for each in all_processes)
        assert history.check(at.clients.history.events) == []


def engine(at: Site) -> psutil.Process:
    return processes(at)[0]


def workers(at: Site) -> list[psutil.Process]:
    return processes(at)[1:]


def processes(at: Site) -> list[psutil.Process]:
    """By age: the engine starts before any worker, though its pid may be higher."""
    return sorted(psutil.Process(at.server.pid).children(), key=psutil.Process.create_time)


def resources_of(at: Site) -> dict[str, int]:
    """Processes, and descriptors of the permanent ones, anonymous memory included."""
    return {
        "processes": len(at.server.descendants()),
        "engine": engine(at).num_fds(),
        "supervisor": psutil.Process(at.server.pid).num_fds(),
    }


def nothing_added(now: dict[str, int], before: dict[str, int]) -> bool:
    """Whether no resources were added; idle connections may have been closed meanwhile."""
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


async def test_each_kind_of_crash_fails_one_request_and_leaks_nothing(tmp_path: Path) -> None:
    async with site_with_processes(tmp_path) as at:
        for pairs in DEATHS:
            requests = [
                at.clients.send_request(**pairs),
                *(at.clients.send_request() for _ in range(10)),
            ]
            fatal, *others = await asyncio.gather(*requests)
            assert fatal.err_no == LOST, pairs
            assert all(each.good for each in others), pairs
        await until(lambda: at.server.log().count(" died: ") == len(DEATHS))
        assert "Segmentation fault" in at.server.log()


@pytest.mark.long
async def test_a_hundred_crashes_leak_no_descriptor_memory_thread_or_zombie(
    tmp_path: Path,
) -> None:
    deaths = 100
    async with site(tmp_path, graph="chain", dag={"is_thread_op": False}) as at:
        # Large arrays on the way to killed workers, so that shared memory is lost with them.
        kill = {"do_first": "make:1", "do_second": "kill"}
        assert (await at.clients.send_request(do_first="make:1", do_second="add")).good
        assert (await at.clients.send_request(**kill)).err_no == LOST
        assert (await at.clients.send_request(do_first="make:1", do_second="add")).good
        permanent = at.server.pid, engine(at).pid
        before = [resources_by_kind(pid) for pid in permanent]
        seen = set()
        for _ in range(deaths):
            assert (await at.clients.send_request(**kill)).err_no == LOST
            assert (await at.clients.send_request(do_first="make:1", do_second="add")).good
            seen |= {each.pid for each in workers(at)}
        assert len(seen) > deaths
        await until(
            lambda: not any(map(added, before, [resources_by_kind(pid) for pid in permanent]))
        )
        at.end(failures=deaths + 1)


def added(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """Resources that were added; one or two slabs may be kept for reuse at any time."""
    # Each has a mapping with a descriptor, and another descriptor for sharing it.
    spare = {"slabs": 2, "/memfd:penstock-slab (deleted)": 4}
    more = {kind: count - before.get(kind, 0) for kind, count in now.items()}
    return {kind: count for kind, count in more.items() if count > spare.get(kind, 0)}


def resources_by_kind(pid: int) -> dict[str, int]:
    """Descriptors by kind, threads, mappings of shared memory, children and zombies."""
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
async def test_a_hanging_worker_is_killed_after_its_request_was_answered(
    tmp_path: Path,
) -> None:
    async with site_with_processes(tmp_path, hang_limit=1) as at:
        for do in ("stop", "spin", "native"):
            before = {each.pid for each in workers(at)}
            answers = await asyncio.gather(
                at.clients.send_request(limit=0.5, do_work=do),
                *(at.clients.send_request() for _ in range(10)),
            )
            assert not answers[0].good
            assert answers[0].seconds < 2.0
            assert all(each.good for each in answers[1:])
            await until(lambda earlier=before: len({w.pid for w in workers(at)} - earlier) == 1)
        log = at.server.log()
        assert log.count("hangs and is ended") == 3
        assert "in do_spin" in log
        assert "in do_native" in log


async def test_a_stopped_idle_worker_is_replaced_and_no_request_fails(tmp_path: Path) -> None:
    async with site_with_processes(tmp_path) as at:
        before = {each.pid for each in workers(at)}
        os.kill(workers(at)[0].pid, signal.SIGSTOP)
        answers = await asyncio.gather(*(at.clients.send_request() for _ in range(20)))
        assert all(each.good for each in answers)
        await until(lambda: len({each.pid for each in workers(at)} - before) == 1)


async def test_a_call_that_times_out_is_killed_with_its_worker_with_on_timeout_kill(
    tmp_path: Path,
) -> None:
    async with site_with_processes(tmp_path, {"timeout": 200, "on_timeout": "kill"}) as at:
        for _ in range(6):  # more than the crashes after which the op would be disabled
            assert (await at.clients.send_request(do_work="spin")).err_no == TIMED_OUT
        await until(lambda: at.server.log().count(" died: SIGABRT at its time-out") == 6)
        assert at.server.log().count(" died: ") == 6
        assert "in do_spin" in at.server.log()


async def test_a_worker_above_its_memory_limit_is_killed(tmp_path: Path) -> None:
    async with site_with_processes(tmp_path, {"memory_limit_mib": 400}) as at:
        assert (await at.clients.send_request(do_work="balloon")).err_no == LOST
        await until(lambda: "far over its memory_limit_mib of 400" in at.server.log())


async def test_no_request_fails_while_workers_are_replaced_after_max_batches(
    tmp_path: Path,
) -> None:
    async with site_with_processes(tmp_path, {"max_batches": 20}) as at:
        answers = [await at.clients.send_request() for _ in range(300)]
        assert all(each.good for each in answers)
        assert at.server.log().count("is replaced: it has run") >= 5


async def test_disconnecting_clients_do_not_cause_workers_to_be_killed(tmp_path: Path) -> None:
    async with site_with_processes(tmp_path, {"timeout": 10_000, "on_timeout": "kill"}) as at:
        before = {each.pid for each in workers(at)}
        for _ in range(10):
            connection = await at.clients.connect()
            number, data = at.clients.begin({"do_work": "sleep:0.05"})
            connection.writer.write(data)
            await until(lambda requests=number: any(c.nonce == str(requests) for c in at.calls()))
            connection.reset()
            at.clients.disconnected(number)
        assert (await at.clients.send_request()).good
        assert {each.pid for each in workers(at)} == before


async def test_the_engine_retries_to_start_a_worker_when_out_of_descriptors(
    tmp_path: Path,
) -> None:
    async with site_with_processes(tmp_path) as at:
        running_engine = engine(at)
        limits = running_engine.rlimit(resource.RLIMIT_NOFILE)
        running_engine.rlimit(resource.RLIMIT_NOFILE, (8, limits[1]))  # open descriptors stay open
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
def test_an_error_in_init_op_ends_the_start_and_is_the_last_log_line(
    tmp_path: Path, fault: str, text: str
) -> None:
    services = {"faults": Service("one", dag={"is_thread_op": False})}
    environment = variables(tmp_path, services) | {"FAULTS_INIT": fault}
    with running(SCRIPT, environment=environment, ready=False) as server:
        processes = server.descendants()
        assert server.wait_exit() == 1
        last = server.log().strip().splitlines()[-1]
        assert "work" in last
        assert text in last
        assert not any(each.is_running() for each in processes)
