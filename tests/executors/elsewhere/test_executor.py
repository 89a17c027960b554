"""Workers that an executor's own code starts: answers, deaths, restarts, limits, bad input."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock.admin.status import Reporter
from penstock.api.health import Health
from penstock.errors import HookFailed, OpTimeout, StartupError, WorkerDied, WrongType
from penstock.executors.elsewhere.executor import ElsewhereExecutor
from penstock.executors.elsewhere.opening import Opening
from penstock.executors.kinds import ExecutorSpec
from penstock.executors.transport.frames import Kind, header
from penstock.executors.transport.values import encode
from penstock.executors.work import BoundOp, WorkOptions
from penstock.executors.workers.child import Child
from penstock.executors.workers.pool import NoWorkerError
from penstock.instrument import Instrument, Instruments
from penstock.observe.counters import Counters
from penstock.request import Outcome
from tests.executors.elsewhere.workers import OPENING, Hosts, Odd, serve
from tests.executors.harness import EngineHarness, ExecutorHarness, batch_of, executor_of

pytestmark = pytest.mark.real


async def one(harness: ExecutorHarness, number: int = 1, **feed: Any) -> Outcome:
    ((_, (outcome,)),) = await harness.run(batch_of(number, **feed))
    return outcome


async def until(true: Callable[[], bool]) -> None:
    """Waits for another thread or the loop."""
    async with asyncio.timeout(60.0):
        while not true():
            await asyncio.sleep(0.005)


async def started(hosts: Hosts, **more: Any) -> ExecutorHarness:
    harness = ExecutorHarness(hosts.executor(**more))
    await harness.executor.start()
    return harness


@pytest.mark.parametrize("x", [np.arange(6.0).reshape(2, 3).T, np.ones(1 << 18), [1, 2]])
async def test_its_answers_are_those_of_a_thread(x: Any) -> None:
    hosts = Hosts()
    harness = await started(hosts)
    ((batch, (far,)),) = await harness.run(batch_of(7, x=x))
    near_harness = ExecutorHarness(executor_of("thread", hosts._op))
    near = await one(near_harness, 7, x=x)
    assert far.value is not None
    assert near.value is not None
    assert far.value["n"] == near.value["n"] == 7
    np.testing.assert_array_equal(far.value["x"], near.value["x"], strict=True)
    assert far.value["x"].flags.c_contiguous == near.value["x"].flags.c_contiguous
    assert batch.ran > 0.0
    assert batch.worker == 0
    assert type((await one(harness, do="raise")).error) is HookFailed
    assert await harness.executor.close(5.0)
    assert await near_harness.executor.close(5.0)
    assert not hosts.started[0].was_killed


async def test_a_lost_connection_costs_the_running_batch_and_the_worker_is_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events: list[str] = []

    class Listener(Instrument):
        def worker_started(self, op: str, index: int, now: float) -> None:
            events.append("started")

        def worker_died(self, op: str, index: int, why: str, now: float) -> None:
            events.append(why)

    hosts = Hosts()
    harness = ExecutorHarness(hosts.executor(workers=2))
    harness.executor.instruments = Instruments([Listener()])
    await harness.executor.start()
    assert type((await one(harness, 5, do="die")).error) is WorkerDied
    assert (await one(harness)).error is None
    await until(lambda: len(events) == 4)
    assert events == ["started", "started", "as told", "started"]
    assert "died: as told, with data_ids=[5], after 0 batches" in caplog.text
    assert await harness.executor.close(5.0)


async def test_the_status_has_where_its_workers_are_and_which_were_lost() -> None:
    hosts = Hosts()
    harness = EngineHarness("elsewhere", None, executor=hosts.executor(workers=2))
    reporter = Reporter(harness.engine, Health(), Counters(), {}, 3)
    report: dict[str, Any] = {}

    def workers(key: str, *wanted: str) -> list[list[Any]]:
        ((op,),) = [each["ops"] for each in reporter()["graphs"]]
        report.update(op)
        return [[each[name] for name in wanted] for each in op[key]]

    await harness.graph.start()
    running = [[3, 0, "running", "thread 0", hosts.nodes[0]], [3, 1, "running", "thread 1", None]]
    wanted = ("engine", "worker", "state", "where", "node")
    assert sorted(workers("places", *wanted)) == running
    assert workers("lost") == []
    assert report["ready"] == 2
    hosts.refuse = NoWorkerError("no room here")
    assert type((await harness.request(do="die")).error) is WorkerDied
    await until(lambda: ["waiting"] in workers("places", "state"))
    (missing,) = [each for each in report["places"] if each["state"] == "waiting"]
    assert missing["why"] == "no room here"
    assert (report["workers"], report["idle"], report["ready"]) == (2, 2, 1)
    ((engine, worker, where, how, back),) = workers(
        "lost", "engine", "worker", "where", "how", "back"
    )
    assert (engine, worker, how, back) == (3, missing["worker"], "as told", None)
    assert where == f"thread {worker}"
    hosts.refuse = None
    await until(lambda: workers("places", "state") == [["running"]] * 2)
    ((back,),) = workers("lost", "back")
    assert back > 0.0
    await harness.close()


async def test_the_batch_of_a_lost_connection_does_not_wait_for_the_end_of_its_worker() -> None:
    hosts = Hosts()
    harness = await started(hosts)
    assert type((await one(harness, do="die slowly")).error) is WorkerDied
    await until(lambda: hosts.started[0].was_killed)
    assert len(hosts.started) == 1, "none is started before the other one has ended"
    hosts.gate.set()
    assert (await one(harness)).error is None
    assert len(hosts.started) == 2
    assert await harness.executor.close(5.0)


async def test_an_engine_loses_no_request_when_workers_are_lost() -> None:
    hosts = Hosts(options=WorkOptions(retry_on_crash=True))
    harness = EngineHarness(
        "elsewhere", None, executor=hosts.executor(workers=2), options=WorkOptions()
    )
    await harness.graph.start()
    outcomes = await asyncio.gather(
        *(harness.request(do="die" if n == 7 else "answer") for n in range(20))
    )
    assert [type(each.error) for each in outcomes if each.error] == [WorkerDied]
    assert harness.stage.statistics().deaths == 1
    await harness.at_rest()
    assert harness.verdict() == []
    await harness.close()


async def test_requests_that_kill_workers_are_refused() -> None:
    hosts = Hosts()
    harness = EngineHarness("elsewhere", None, executor=hosts.executor())
    await harness.graph.start()
    texts = [str((await harness.request(do="die", n=1)).error) for _ in range(3)]
    assert texts[0] != texts[1] == texts[2]
    assert len(hosts.started) <= 3, "the third request did not run"
    await harness.close()


async def test_a_worker_has_one_batch_at_a_time_and_others_wait() -> None:
    hosts = Hosts()
    harness = await started(hosts)
    assert not harness.executor.takes_several
    work = harness.submit([batch_of(1, do="wait")])
    await asyncio.to_thread(hosts.entered.wait, 30.0)
    other = harness.submit([batch_of(2)])
    assert other.current is None
    hosts.gate.set()
    for each in (work, other):
        ((_, (outcome,)),) = await harness.results(each)
        assert outcome.error is None
    assert await harness.executor.close(5.0)


@pytest.mark.parametrize("kill", [True, False])
async def test_a_call_over_its_timeout_is_answered_and_ended_if_configured(kill: bool) -> None:
    options = WorkOptions(timeout=0.1)
    hosts = Hosts(options=options)
    executor = hosts.executor(kill_late=kill)
    harness = EngineHarness("elsewhere", None, executor=executor, options=options)
    await harness.graph.start()
    assert type((await harness.request(do="wait")).error) is OpTimeout
    assert hosts.entered.is_set()
    await until(lambda: hosts.started[0].was_killed == kill)
    hosts.gate.set()
    assert (await harness.request()).error is None
    await harness.at_rest()
    assert len(hosts.started) == 1 + kill
    assert harness.verdict() == []
    await harness.close()


async def test_a_call_without_waiting_requests_is_ended_after_hang_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hosts = Hosts()
    harness = EngineHarness("elsewhere", None, executor=hosts.executor(hang_limit=0.1))
    await harness.graph.start()
    await harness.request(0.2, do="wait")
    await until(lambda: hosts.started[0].was_killed)
    assert "worker 0 (thread 0) hangs and is ended" in caplog.text
    hosts.gate.set()
    await until(lambda: len(hosts.started) == 2)
    assert (await harness.request()).error is None
    await harness.close()


async def test_values_that_need_a_pickle_are_refused_in_both_directions() -> None:
    harness = await started(Hosts())
    for outcome in (await one(harness, do="odd"), await one(harness, x=Odd())):
        assert type(outcome.error) is WrongType
        assert "Odd" in str(outcome.error)
    assert (await one(harness)).error is None
    assert await harness.executor.close(5.0)


async def test_the_first_worker_decides_about_batches_and_the_others_are_told() -> None:
    told = Hosts(serve)
    harness = await started(told, workers=2)
    assert [each and each.get("batching") for each in harness.executor.loaded].count(
        {"decided by": 0}
    ) >= 1
    assert await harness.executor.close(5.0)


async def test_a_worker_that_cannot_start_says_why() -> None:
    def fail(child: Child, bound: BoundOp, opening: Opening) -> None:
        child.failed("the model is not there")

    hosts = Hosts(fail)
    with pytest.raises(StartupError, match="the model is not there"):
        await started(hosts)


async def test_a_worker_that_ends_before_it_is_ready_is_an_error() -> None:
    hosts = Hosts(lambda child, bound, opening: None)
    with pytest.raises(StartupError, match=r"worker 0 ended before it was ready \(as told\)"):
        await started(hosts)


async def test_a_start_that_raises_is_an_error_first_and_repeated_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hosts = Hosts()
    hosts.refuse = OSError("no machine is free")
    with pytest.raises(StartupError, match="op 'op': worker 0 cannot be started: OSError: no mach"):
        await started(hosts)
    hosts.refuse = None
    harness = await started(hosts)
    hosts.refuse = OSError("no machine is free")
    assert type((await one(harness, do="die")).error) is WorkerDied
    await until(lambda: "is tried again in" in caplog.text)
    assert not harness.executor.alive
    work = harness.submit([batch_of(1)])
    hosts.refuse = None
    ((_, (outcome,)),) = await harness.results(work)
    assert outcome.error is None
    assert await harness.executor.close(5.0)


async def test_a_worker_that_never_connects_is_ended_after_start_timeout() -> None:
    class Silent:
        where = "nowhere"

        def __init__(self, opening: Opening) -> None:
            self._end = asyncio.Event()

        async def ended(self) -> str:
            await self._end.wait()
            return "it was killed"

        def kill(self) -> None:
            self._end.set()

    async def start(opening: Opening) -> Silent:
        return Silent(opening)

    loop = asyncio.get_running_loop()
    supervision = Hosts().executor(start_timeout=0.1)._supervision
    spec = ExecutorSpec(
        op="op", workers=1, loop=loop, ops=(), opening=OPENING, supervision=supervision
    )
    with pytest.raises(StartupError, match=r"was not ready within 0\.1 s"):
        await ElsewhereExecutor(spec, start).start()


def test_an_executor_without_an_opening_is_refused() -> None:
    loop = asyncio.new_event_loop()
    with pytest.raises(StartupError, match="cannot be told how to open it"):
        ElsewhereExecutor(ExecutorSpec(op="op", workers=1, loop=loop, ops=()), Hosts().start)
    loop.close()


@pytest.mark.parametrize("token", [b"", b"x" * 64, b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_connection_without_the_token_is_closed(token: bytes) -> None:
    hosts = Hosts()
    harness = await started(hosts)
    opening = hosts.started[0].opening
    _, writer = reader, writer = await asyncio.open_connection(opening.host, opening.port)
    writer.write(token or opening.token.encode())  # the right one is valid once
    if len(token) in (0, 64):
        assert await reader.read() == b""
    writer.close()
    assert (await one(harness)).error is None
    assert await harness.executor.close(5.0)


DONE = [1e9, 0.25, 0.1, 0.1, {"n": 1}, None, False]


def answering(*values: Any) -> Callable[[Child, BoundOp, Opening], None]:
    """A worker that answers the first batch with these numbers and values, and then waits."""

    def body(child: Child, bound: BoundOp, opening: Opening) -> None:
        child.ready({"model": None})
        link: socket.socket = child._link
        if not link.recv(1 << 16):
            return
        pieces = encode([*values, *DONE[len(values) :]])
        link.sendall(b"".join([header(Kind.DONE, 1, sum(map(len, pieces))), *pieces]))
        link.recv(1 << 16)

    return body


async def test_the_begin_of_a_batch_is_by_the_engines_clock() -> None:
    harness = await started(Hosts(answering()))
    before = time.monotonic() - 0.25
    ((batch, (outcome,)),) = await harness.run(batch_of(1))
    assert outcome.value == {"n": 1}
    assert batch.began is not None
    assert before <= batch.began <= time.monotonic() - 0.25
    assert await harness.executor.close(5.0)


@pytest.mark.parametrize(
    "times", [(0.0, "1"), (0.0, math.nan), (0.0, -1.0), (0.0, 1.0, None), (0.0, 1.0, 0.0, math.inf)]
)
async def test_a_worker_that_breaks_the_protocol_is_ended(
    times: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    hosts = Hosts(answering(*times))
    harness = await started(hosts)
    assert (await one(harness)).error is not None
    assert "the worker's times are none" in caplog.text
    assert hosts.started[0].was_killed
    assert await harness.executor.close(5.0)
