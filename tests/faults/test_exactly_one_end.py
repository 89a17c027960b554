"""Every request ends once, with its own answer: under load, with faults.

Workers are killed; clients are good, bad and disconnecting; engines are restarted and killed. The
clients' record and the engines' are compared by ``penstock.testing.history``, whose rules
``tests/simulation`` proves. Tests of one fault call the same checker.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

import pytest

from penstock.testing.history import check
from tests.faults.storm import RECOVERY, storm
from tests.hostile.run import hostile_run
from tests.kit.load import KINDS, Clients
from tests.service.scripts import ECHO, NAME, script, until
from tests.service.test_run_engines import ENGINES, HOOKS, TWO, engines_of
from tests.services.process import ServiceProcess, running

OTHER = """
from penstock import run

class Other(WebService):
    def get_pipeline_response(self, read_op):
        return WorkOp("other", input_ops=[WorkOp("before", input_ops=[read_op])])

other = Other("other")
config = {{"http_port": 0, "rpc_port": 0, {config}}} | {{"op": {{"before": {{"concurrency": 3}}}}}}
other.prepare_pipeline_config(yml_dict=config)
run(service, other)
"""
SERVICES = (NAME, "other")


def two_services(folder: Path, config: str) -> Path:
    """A script of two services, whose last ops have their services' names."""
    text = ECHO.replace("service.run_service()\n", OTHER)
    return script(folder, HOOKS, config, text=text)


@pytest.mark.faults
@pytest.mark.alone
async def test_a_killed_worker_fails_at_most_its_batch_and_the_rate_recovers_in_a_second(
    tmp_path: Path,
) -> None:
    done = await storm(tmp_path, seconds=7.5)
    assert len(done.kills) == 3
    assert max(done.replaced) <= RECOVERY
    assert median(done.recoveries()) <= RECOVERY, "others on this machine may spoil one of them"


@pytest.mark.real
def test_concurrent_good_and_bad_requests_get_their_answers() -> None:
    report = hostile_run(3000)
    assert report.faults == []
    assert " 0 cancelled" not in report.totals
    assert set(report.kinds) == {"good", "leaver", "op error", "bad value", "bad transport"}


@pytest.mark.real
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(TWO, id="threads", marks=pytest.mark.long),
        pytest.param(f'{ENGINES} 2, "dag": {{"is_thread_op": False}}', id="processes"),
        pytest.param('"dag": {"is_thread_op": False}', id="one engine", marks=pytest.mark.long),
    ],
)
async def test_a_rolling_restart_under_load_loses_no_request(tmp_path: Path, config: str) -> None:
    with running(two_services(tmp_path, config)) as server:
        async with loading(server) as clients:
            await wait_until(lambda: clients.sent > 40)
            for round in (1, 2):
                await asyncio.to_thread(server.send_signal, signal.SIGHUP)
                await wait_for_ended_engines(server, round * (2 if "worker_num" in config else 1))
            await more_requests(clients)
        assert [each for each in clients.answers if not each.good] == []
        assert await asyncio.to_thread(server.stop) == 0


@pytest.mark.real
async def test_killing_an_engine_under_load_breaks_only_its_own_connections(
    tmp_path: Path,
) -> None:
    kills = 4
    with running(two_services(tmp_path, TWO)) as server:
        async with loading(server) as clients:
            for _ in range(kills):
                await more_requests(clients)
                os.kill(engines_of(server)[0].pid, signal.SIGKILL)  # the oldest
            await more_requests(clients)
        assert len({each.value["pid"] for each in clients.answers if each.good}) == 2 + kills
        # Calls accepted by the killed process: at this rate, those of some milliseconds.
        broken = [each.text.lower() for each in clients.answers if not each.good]
        assert len(broken) <= 2 * len(KINDS) * kills, broken
        # The kernel resets connections with unread bytes; but no connection is refused, since the
        # listening socket outlives the engine.
        refused = ("connection refused", "failed to connect", "connecterror", "refusederror")
        assert not [each for each in broken if any(text in each for text in refused)]
        assert server.log().count("killed by SIGKILL") == kills
        assert await asyncio.to_thread(server.stop) == 0


@asynccontextmanager
async def loading(server: ServiceProcess) -> AsyncIterator[Clients]:
    """Clients that send to both services until the block ends; then each request has ended once,
    and each answer was its own.
    """
    clients, enough = Clients(server), asyncio.Event()
    sending = asyncio.create_task(clients.offer(SERVICES, 25.0, enough))
    try:
        yield clients
    finally:
        enough.set()
        await sending
        await clients.close()
    assert check(clients.history.events) == []
    ids = [each.value["id"] for each in clients.answers if each.good]
    assert len(set(ids)) == len(ids), "a data id was given twice"


async def wait_until(true: Callable[[], object]) -> None:
    await asyncio.to_thread(until, true, "what is waited for", 60)


async def wait_for_ended_engines(server: ServiceProcess, count: int) -> None:
    await wait_until(lambda: server.log().count("has ended: exit status 0") == count)


async def more_requests(clients: Clients) -> None:
    already = clients.sent
    await wait_until(lambda: clients.sent > already + 60)
