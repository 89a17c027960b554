"""The service's side of external workers, on a real loop, with workers that tests play."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from struct import pack
from typing import Any

import ormsgpack
import pytest

from penstock.batching.batcher import BatchPolicy
from penstock.door.listeners import bind_unix
from penstock.errors import (
    DeadlineExceeded,
    HookFailed,
    InferenceFailed,
    InvalidInput,
    NoWorker,
    OpTimeout,
    ProductError,
    Undecodable,
    WorkerDied,
)
from penstock.executors.external import connection
from penstock.executors.external.executor import ExternalExecutor
from penstock.executors.work import WorkOptions
from penstock.protocols import media
from penstock.request import Outcome
from tests.executors.external.workers import FakeWorker, numbers
from tests.executors.house import House


class Site:
    """A one-op engine with a socket for workers."""

    def __init__(self, house: House, path: Path) -> None:
        self.house = house
        self.ask = house.ask
        self.path = path
        self.workers: list[FakeWorker] = []

    async def worker(self, *, ready: bool = True) -> FakeWorker:
        """One more, which the engine knows when this returns, if it is ready."""
        executor = self.house.executor
        before = executor.workers if executor.alive else 0
        made = await FakeWorker.connected(self.path, ready=ready)
        self.workers.append(made)
        if ready:
            await self.until(lambda: executor.alive and executor.workers > before)
        return made

    def start(self, *asked: Awaitable[Outcome]) -> list[asyncio.Future[Outcome]]:
        return [asyncio.ensure_future(each) for each in asked]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10.0):
            while not condition():
                await asyncio.sleep(0)


@asynccontextmanager
async def site(
    folder: Path,
    *,
    batch: int = 1,
    kind: str = media.JSON,
    connect_timeout: float = 30.0,
    **options: Any,
) -> AsyncIterator[Site]:
    path = folder / "workers.sock"
    listener = bind_unix(path, "test")
    executor = ExternalExecutor(
        "op", listener, kind, asyncio.get_running_loop(), connect_timeout=connect_timeout
    )
    house = House(
        "external",
        None,
        executor=executor,
        policy=BatchPolicy(max_rows=batch),
        options=WorkOptions(**options),
    )
    await executor.start()
    at = Site(house, path)
    try:
        yield at
        assert house.verdict() == []
    finally:
        for worker in at.workers:
            with suppress(OSError):
                await worker.close()
        await house.close()
        listener.close()


async def test_a_batch_is_one_frame_and_each_request_gets_its_own_answer(tmp_path: Path) -> None:
    async with site(tmp_path, batch=8) as at:
        asked = at.start(*(at.ask() for _ in range(8)))
        worker = (await at.worker()).echo()
        assert [(await each).value for each in asked] == [{"n": n} for n in range(8)]
        assert list(map(numbers, worker.batches)) == [list(range(8))]
        assert all(len(key) == 36 for key in worker.batches[0])


async def test_the_next_batch_goes_to_whoever_is_idle(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        slow, quick = await at.worker(), await at.worker()
        held = at.start(at.ask())
        batch = await slow.batch()
        quick.echo()
        for n in range(1, 6):
            assert (await at.ask()).value == {"n": n}
        assert len(quick.batches) == 5
        await slow.answer(batch)
        assert (await held[0]).value == {"n": 0}


async def test_bodies_are_msgpack_where_the_op_says_so(tmp_path: Path) -> None:
    async with site(tmp_path, kind=media.MSGPACK) as at:
        worker = await at.worker()
        asked = at.start(at.ask(x=[1.5]))
        ((key, body),) = (await worker.batch()).items()
        assert ormsgpack.unpackb(body) == {"n": 0, "x": [1.5]}
        await worker.answer({key: ormsgpack.packb({"n": 0})})
        assert (await asked[0]).value == {"n": 0}


async def test_requests_wait_for_a_worker_within_their_deadlines(tmp_path: Path) -> None:
    async with site(tmp_path, batch=4) as at:
        assert not at.house.executor.alive
        assert at.house.stage.lost
        late, *waiting = at.start(at.ask(life=0.02), at.ask(), at.ask())
        assert isinstance((await late).error, DeadlineExceeded)
        worker = (await at.worker()).echo()
        assert not at.house.stage.lost
        assert [(await each).value for each in waiting] == [{"n": 1}, {"n": 2}]
        assert list(map(numbers, worker.batches)) == [[1, 2]]


async def test_where_no_worker_has_been_for_long_requests_are_refused_until_one_comes(
    tmp_path: Path,
) -> None:
    async with site(tmp_path, connect_timeout=0.05) as at:
        assert isinstance((await at.ask()).error, NoWorker)  # it waited so long
        assert isinstance((await at.ask()).error, NoWorker)
        worker = (await at.worker()).echo()
        assert (await at.ask()).value == {"n": 2}
        await worker.close()
        await at.until(lambda: not at.house.executor.alive)
        waiting = at.start(at.ask())
        await asyncio.sleep(0)
        assert not waiting[0].done()
        assert isinstance((await waiting[0]).error, NoWorker)


async def test_a_worker_that_dies_takes_its_batch_and_nothing_else(tmp_path: Path) -> None:
    async with site(tmp_path, batch=2) as at:
        doomed, other = await at.worker(), await at.worker()
        lost = at.start(at.ask(), at.ask())
        await doomed.batch()
        other.echo()
        await doomed.close()
        assert [type((await each).error) for each in lost] == [WorkerDied, WorkerDied]
        assert (await at.ask()).value == {"n": 2}
        assert at.house.executor.workers == 1


async def test_a_batch_that_a_worker_was_not_sent_goes_to_another(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        gone, other = await at.worker(), await at.worker()
        gone.hang_up()
        other.echo()
        assert (await at.ask()).value == {"n": 0}  # the engine had not seen it go
        at.house.recorder.events.clear()  # the judge knows of one dispatch for each
        at.house.history.events.clear()


async def test_its_requests_are_run_again_once_where_the_op_says_so(tmp_path: Path) -> None:
    async with site(tmp_path, batch=2, retry_on_crash=True) as at:
        doomed = await at.worker()
        asked = at.start(at.ask(), at.ask())
        await doomed.batch()
        await doomed.close()
        await at.until(lambda: not at.house.executor.alive)
        other = (await at.worker()).echo()
        assert [(await each).value for each in asked] == [{"n": 0}, {"n": 1}]
        assert list(map(numbers, other.batches)) == [[0], [1]]
        at.house.recorder.events.clear()  # the judge knows of one dispatch for each
        at.house.history.events.clear()


Answers = Callable[[list[str]], Any]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (lambda ids: b"\0\0\0\0", "ready while it has a batch"),
        (lambda ids: b"\xff\xff\xff\xff", "over the"),
        (lambda ids: b"\0\0\0\1\xc1", "no msgpack"),
        (lambda ids: {"f" * 36: b""}, "was not sent"),
        (lambda ids: {ids[0]: b"", "error_ids": "f" * 36}, "was not sent"),
        (lambda ids: {ids[0]: 5}, "no bytes"),
        (lambda ids: {ids[0]: b"", "more": b""}, "was not sent"),
    ],
)
async def test_who_breaks_the_protocol_is_cut_off_and_nobody_else_is_disturbed(
    tmp_path: Path, said: Answers, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(tmp_path) as at:
        liar, other = await at.worker(), await at.worker()
        asked = at.start(at.ask(), at.ask())
        other.echo()
        answer = said(list(await liar.batch()))
        if isinstance(answer, bytes):
            await liar.send(answer)
        else:
            await liar.answer(answer)
        await liar.cut_off()
        assert isinstance((await asked[0]).error, WorkerDied)
        assert (await asked[1]).value == {"n": 1}
        assert (await at.ask()).value == {"n": 2}
        (told,) = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
        assert why in told
        assert "data_ids=[0]" in told


@pytest.mark.parametrize(
    ("ready", "said"),
    [
        (False, b"GET / HTTP/1.1\r\n\r\n"),
        (False, b"\0\0\0\1\x80"),
        (True, b"\0\0\0\1\x80"),
        (True, pack(">I", 1 << 20)),
    ],
)
async def test_who_speaks_unasked_is_cut_off(tmp_path: Path, ready: bool, said: bytes) -> None:
    async with site(tmp_path) as at:
        liar = await at.worker(ready=ready)
        if ready:  # what it may say while it has a batch does not count afterwards
            asked = at.start(at.ask())
            await liar.answer(await liar.batch())
            assert (await asked[0]).error is None
        await liar.send(said)
        await liar.cut_off()
        (await at.worker()).echo()
        assert (await at.ask()).error is None


async def test_a_result_after_the_time_out_is_dropped_and_the_worker_goes_on(
    tmp_path: Path,
) -> None:
    async with site(tmp_path, timeout=0.02) as at:
        worker = await at.worker()
        late = at.start(at.ask())
        batch = await worker.batch()
        assert isinstance((await late[0]).error, OpTimeout)
        assert at.house.stage.lost
        await worker.answer(batch)
        worker.echo()
        assert (await at.ask()).value == {"n": 1}


async def test_a_worker_that_leaves_answers_what_it_has_and_gets_nothing_more(
    tmp_path: Path,
) -> None:
    async with site(tmp_path) as at:
        idle, busy, stays = await at.worker(), await at.worker(), await at.worker()
        await idle.answer({"leaving": b""})
        await idle.cut_off()
        asked = at.start(at.ask())
        batch = await busy.batch()
        await busy.answer({"leaving": b""})  # it crossed the batch
        stays.echo()
        assert (await at.ask()).value == {"n": 1}
        await busy.answer(batch)
        assert (await asked[0]).value == {"n": 0}
        await busy.cut_off()
        last = await at.worker()
        await stays.close()
        asked = at.start(at.ask())
        await last.answer({**await last.batch(), "leaving": b""})
        assert (await asked[0]).value == {"n": 2}
        await last.cut_off()


OURS = {"error": "invalid_input", "details": [{"loc": ["body", "x"], "msg": "no", "type": "t"}]}
PYDANTICS = [{"loc": ["x"], "msg": "no", "type": "t", "input": 5, "url": "elsewhere"}]


@pytest.mark.parametrize(
    ("said", "failed", "error", "details"),
    [
        (json.dumps(OURS).encode(), False, InvalidInput, OURS["details"]),
        (json.dumps(PYDANTICS).encode(), False, InvalidInput, OURS["details"]),
        (b"too long", False, InvalidInput, "too long"),
        (b'{"error": "undecodable", "message": "m"}', False, Undecodable, None),
        (b'{"error": "product", "message": "m", "number": 51}', False, ProductError, None),
        (b'{"error": "x", "details": [1]}', False, InvalidInput, '{"error": "x"'),
        (b"\xff", False, InvalidInput, "�"),
        (b"it broke", True, HookFailed, None),
        (None, False, InferenceFailed, None),
    ],
)
async def test_a_refusal_fails_one_request_with_what_the_worker_says(
    tmp_path: Path, said: bytes | None, failed: bool, error: type[Exception], details: Any
) -> None:
    async with site(tmp_path, batch=2) as at:
        worker = await at.worker()
        asked = at.start(at.ask(), at.ask())
        bad, good = batch = await worker.batch()
        answer: dict[str, Any] = {good: batch[good]}
        if said is not None:
            answer |= {bad: said, "error_ids": bad, **({"failed_ids": bad} if failed else {})}
        await worker.answer(answer)
        told = (await asked[0]).error
        assert type(told) is error
        if isinstance(details, list):
            assert isinstance(told, InvalidInput)
            assert told.details == details
        elif details is not None:
            assert details in str(told)
        assert (await asked[1]).value == {"n": 1}


async def test_an_answer_that_cannot_be_read_fails_alone(tmp_path: Path) -> None:
    async with site(tmp_path, batch=2) as at:
        worker = await at.worker()
        asked = at.start(at.ask(), at.ask())
        bad, good = batch = await worker.batch()
        await worker.answer({bad: b"{", good: batch[good]})
        assert "cannot be read" in str((await asked[0]).error)
        assert (await asked[1]).value == {"n": 1}


async def test_a_batch_too_large_for_a_frame_is_sent_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BATCH_BYTES", 250)
    async with site(tmp_path, batch=8) as at:
        asked = at.start(*(at.ask(text="x" * 100) for _ in range(5)))
        worker = (await at.worker()).echo()
        assert [(await each).value["n"] for each in asked] == [0, 1, 2, 3, 4]  # type: ignore[index]
        assert list(map(numbers, worker.batches)) == [[0, 1], [2, 3], [4]]


async def test_large_bodies_go_both_ways_while_others_are_served(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        slow, quick = await at.worker(), await at.worker()
        text = "x" * (2 << 20)
        large = at.start(at.ask(text=text))
        await asyncio.sleep(0)
        quick.echo()
        assert (await at.ask()).value == {"n": 1}  # the slow one has not read
        slow.echo()
        value = (await large[0]).value
        assert value is not None
        assert value["text"] == text
