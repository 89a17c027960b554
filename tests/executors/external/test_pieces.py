"""Answers in pieces of external workers, from the service's side: the test is the worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.engine.submission import Submission
from penstock.errors import HookFailed, InvalidInput, OpTimeout, WorkerBrokeProtocol, WrongType
from penstock.executors.stream import MOST_BYTES, MOST_PIECES
from penstock.request import Feed, Outcome
from tests.executors.external.test_executor import Site, site
from tests.executors.external.workers import FakeWorker


class Reader(Submission):
    """A caller; ``reads`` is whether it takes further pieces."""

    __slots__ = ("end", "got", "reads")

    got: list[Feed]
    end: asyncio.Future[Outcome]
    reads: bool

    def piece(self, piece: Feed) -> bool:
        self.got.append(piece)
        return self.reads

    def whole(self, outcome: Outcome) -> Outcome:
        return outcome


@asynccontextmanager
async def streaming(folder: Path, **options: Any) -> AsyncIterator[tuple[Site, FakeWorker]]:
    async with site(folder, streams=True, **options) as at:
        at.harness.graph.streams = at.harness.stage.streams = True
        yield at, await at.worker()


def ask(at: Site, *, reads: bool = True) -> Reader:
    one = Reader(at.harness.graph, {"n": 1}, 30.0)
    one.got, one.reads = [], reads
    one.end = asyncio.get_running_loop().create_future()
    one.start(lambda each, outcome: each.end.set_result(outcome))
    return one


async def job(worker: FakeWorker) -> str:
    """The id of the next request."""
    (key,) = await worker.batch()
    return key


async def piece(worker: FakeWorker, key: str, number: int, size: int = 1) -> None:
    """Send a piece of at least so many bytes."""
    body = json.dumps({"n": number}).encode().ljust(size)
    await worker.answer({key: body, "more_ids": key})


async def ended(one: Reader) -> Outcome:
    return await asyncio.wait_for(one.end, 30)


async def test_pieces_are_passed_on_when_they_arrive_and_then_the_end(tmp_path: Path) -> None:
    async with streaming(tmp_path) as (at, worker):
        one = ask(at)
        key = await job(worker)
        await piece(worker, key, 0)
        await at.until(lambda: one.got == [{"n": 0}])
        await piece(worker, key, 1)
        await worker.answer({"end_ids": key})
        assert (await ended(one)).error is None
        assert one.got == [{"n": 0}, {"n": 1}]
        second = ask(at)  # the worker is idle again
        await worker.answer({"end_ids": await job(worker)})
        assert (await ended(second)).error is None
        assert second.got == []


async def test_a_whole_answer_of_a_worker_that_knows_no_pieces_is_the_only_piece(
    tmp_path: Path,
) -> None:
    async with streaming(tmp_path) as (at, worker):
        one = ask(at)
        await worker.answer({await job(worker): b'{"n": 7}'})
        assert (await ended(one)).error is None
        assert one.got == [{"n": 7}]


async def test_the_last_piece_may_come_with_the_end(tmp_path: Path) -> None:
    async with streaming(tmp_path) as (at, worker):
        one = ask(at)
        key = await job(worker)
        await piece(worker, key, 0)
        await worker.answer({key: b'{"n": 1}', "leaving": b""})
        assert (await ended(one)).error is None
        assert one.got == [{"n": 0}, {"n": 1}]
        await worker.until_disconnected()


async def test_a_worker_that_leaves_with_the_end_of_its_answer_has_answered(tmp_path: Path) -> None:
    async with streaming(tmp_path) as (at, worker):
        one = ask(at)
        await worker.answer({"end_ids": await job(worker), "leaving": b""})
        assert (await ended(one)).error is None
        await worker.until_disconnected()


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("failed", [True, False])
async def test_an_error_ends_the_answer(tmp_path: Path, before: int, failed: bool) -> None:
    async with streaming(tmp_path) as (at, worker):
        one = ask(at)
        key = await job(worker)
        for n in range(before):
            await piece(worker, key, n)
        await worker.answer(
            {key: b"no", "error_ids": key, **({"failed_ids": key} if failed else {})}
        )
        assert isinstance((await ended(one)).error, HookFailed if failed else InvalidInput)
        assert len(one.got) == before


async def test_a_worker_gets_credit_for_what_the_caller_has_got(tmp_path: Path) -> None:
    async with streaming(tmp_path) as (at, worker):
        one = ask(at, reads=False)
        key = await job(worker)
        for n in range(MOST_PIECES):
            await piece(worker, key, n)
        await at.until(lambda: len(one.got) == MOST_PIECES)
        one.resume()
        assert await worker.batch() == {key: b"%d" % MOST_PIECES, "credit_ids": key}
        await piece(worker, key, MOST_PIECES)
        await worker.answer({"end_ids": key})
        await ended(one)
        assert [each["n"] for each in one.got] == [*range(MOST_PIECES + 1)]


async def test_a_worker_gets_credit_for_large_pieces_sooner(tmp_path: Path) -> None:
    async with streaming(tmp_path) as (at, worker):
        one = ask(at)
        key = await job(worker)
        await worker.answer({key: json.dumps({"x": "y" * 70_000}).encode(), "more_ids": key})
        assert await worker.batch() == {key: b"1", "credit_ids": key}
        await worker.answer({"end_ids": key})
        await ended(one)


async def test_a_worker_that_ignores_credit_is_disconnected(tmp_path: Path) -> None:
    async with streaming(tmp_path) as (at, worker):
        one = ask(at, reads=False)
        key = await job(worker)
        for n in range(MOST_PIECES + 1):
            await piece(worker, key, n)
        assert isinstance((await ended(one)).error, WorkerBrokeProtocol)
        await worker.until_disconnected()


@pytest.mark.parametrize("before", [0, 1])
async def test_a_worker_whose_request_is_cancelled_is_told_after_its_first_piece(
    tmp_path: Path, before: int
) -> None:
    async with streaming(tmp_path) as (at, worker):
        one = ask(at)
        key = await job(worker)
        for n in range(before):
            await piece(worker, key, n)
            await at.until(lambda: len(one.got) == 1)
        one.cancel()
        if not before:
            await piece(worker, key, 0)  # only now it is known to know pieces
        assert await worker.batch() == {"cancel_ids": key}
        await piece(worker, key, 1)  # this one was on its way
        await worker.answer({"end_ids": key})
        assert len(one.got) == before
        second = ask(at)
        await worker.answer({"end_ids": await job(worker)})
        await ended(second)


async def test_the_time_limit_is_that_of_a_piece(tmp_path: Path) -> None:
    async with streaming(tmp_path, timeout=0.1) as (at, worker):
        one = ask(at)
        key = await job(worker)
        await piece(worker, key, 0)
        assert isinstance((await ended(one)).error, OpTimeout)
        assert await worker.batch() == {"cancel_ids": key}
        await worker.answer({"end_ids": key})


@pytest.mark.parametrize(
    ("count", "size"),
    [(MOST_PIECES, 1), (2, MOST_BYTES // 2), (1, MOST_BYTES)],
)
async def test_a_worker_that_waits_for_credit_is_not_late(
    tmp_path: Path, count: int, size: int
) -> None:
    async with streaming(tmp_path, timeout=5.0) as (at, worker):
        one = ask(at, reads=False)
        key = await job(worker)
        for n in range(count):
            work = next(iter(at.harness.stage._out))
            assert work.current is not None
            assert work.current.started is not None
            await piece(worker, key, n, size)
            await at.until(lambda n=n: len(one.got) == n + 1)
        assert work.current is not None
        assert work.current.started is None
        one.resume()
        await worker.batch()  # credit
        assert work.current.started is not None
        one.cancel()
        assert await worker.batch() == {"cancel_ids": key}
        await worker.answer({"end_ids": key})


async def test_a_piece_that_cannot_be_read_ends_the_answer(tmp_path: Path) -> None:
    async with streaming(tmp_path) as (at, worker):
        one = ask(at)
        key = await job(worker)
        await worker.answer({key: b"{", "more_ids": key})
        assert await worker.batch() == {"cancel_ids": key}
        await worker.answer({"end_ids": key})
        assert isinstance((await ended(one)).error, WrongType)


async def test_pieces_of_an_answer_that_is_whole_break_the_protocol(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        (call,) = at.start(at.request())
        worker = await at.worker()
        await piece(worker, await job(worker), 0)
        assert isinstance((await call).error, WorkerBrokeProtocol)
        await worker.until_disconnected()


async def test_a_worker_that_dies_between_pieces_ends_the_answer(tmp_path: Path) -> None:
    async with streaming(tmp_path, retry_on_crash=True) as (at, worker):
        one = ask(at)
        await piece(worker, await job(worker), 0)
        await at.until(lambda: len(one.got) == 1)
        worker.disconnect()
        outcome = await ended(one)
        assert outcome.error is not None
        assert outcome.error.code == "worker_died"
        assert one.got == [{"n": 0}], "nothing runs again"
