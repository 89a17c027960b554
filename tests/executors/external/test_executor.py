"""The service's side of external workers, on a real loop, with workers controlled by the test."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
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
    HttpError,
    InferenceFailed,
    InvalidInput,
    NoWorker,
    OpTimeout,
    ProductError,
    Undecodable,
    WorkerBrokeProtocol,
    WorkerDied,
)
from penstock.executors.external import connection
from penstock.executors.external.executor import ExternalExecutor
from penstock.executors.work import WorkOptions
from penstock.protocols import media
from penstock.request import Outcome
from tests.executors.external.workers import FakeWorker, numbers
from tests.executors.harness import EngineHarness


class Site:
    """A one-op engine with a socket for workers."""

    def __init__(self, harness: EngineHarness, path: Path) -> None:
        self.harness = harness
        self.request = harness.request
        self.path = path
        self.workers: list[FakeWorker] = []

    async def worker(self, *, ready: bool = True) -> FakeWorker:
        """Connects a worker; a ready one is known to the engine when this returns."""
        executor = self.harness.executor
        before = executor.workers if executor.alive else 0
        made = await FakeWorker.connected(self.path, ready=ready)
        self.workers.append(made)
        if ready:
            await self.until(lambda: executor.alive and executor.workers > before)
        return made

    def start(self, *calls: Awaitable[Outcome]) -> list[asyncio.Future[Outcome]]:
        return [asyncio.ensure_future(each) for each in calls]

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
    streams: bool = False,
    **options: Any,
) -> AsyncIterator[Site]:
    path = folder / "workers.sock"
    listener = bind_unix(path, "test")
    executor = ExternalExecutor(
        "op",
        listener,
        kind,
        asyncio.get_running_loop(),
        connect_timeout=connect_timeout,
        streams=streams,
    )
    harness = EngineHarness(
        "external",
        None,
        executor=executor,
        policy=BatchPolicy(max_rows=batch),
        options=WorkOptions(**options),
    )
    await executor.start()
    at = Site(harness, path)
    try:
        yield at
        assert harness.verdict() == []
    finally:
        for worker in at.workers:
            with suppress(OSError):
                await worker.close()
        await harness.close()
        listener.close()


async def test_a_batch_is_one_frame_and_each_request_gets_its_own_reply(tmp_path: Path) -> None:
    async with site(tmp_path, batch=8) as at:
        calls = at.start(*(at.request() for _ in range(8)))
        worker = (await at.worker()).echo()
        assert [(await each).value for each in calls] == [{"n": n} for n in range(8)]
        assert list(map(numbers, worker.batches)) == [list(range(8))]
        assert all(len(key) == 36 for key in worker.batches[0])


async def test_the_next_batch_goes_to_an_idle_worker(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        slow, quick = await at.worker(), await at.worker()
        held = at.start(at.request())
        batch = await slow.batch()
        quick.echo()
        for n in range(1, 6):
            assert (await at.request()).value == {"n": n}
        assert len(quick.batches) == 5
        await slow.answer(batch)
        assert (await held[0]).value == {"n": 0}


async def test_bodies_are_msgpack_if_configured(tmp_path: Path) -> None:
    async with site(tmp_path, kind=media.MSGPACK) as at:
        worker = await at.worker()
        calls = at.start(at.request(x=[1.5]))
        ((key, body),) = (await worker.batch()).items()
        assert ormsgpack.unpackb(body) == {"n": 0, "x": [1.5]}
        await worker.answer({key: ormsgpack.packb({"n": 0})})
        assert (await calls[0]).value == {"n": 0}


async def test_requests_wait_for_a_worker_until_their_deadlines(tmp_path: Path) -> None:
    async with site(tmp_path, batch=4) as at:
        assert not at.harness.executor.alive
        assert at.harness.stage.lost
        late, *waiting = at.start(at.request(life=0.02), at.request(), at.request())
        assert isinstance((await late).error, DeadlineExceeded)
        worker = (await at.worker()).echo()
        assert not at.harness.stage.lost
        assert [(await each).value for each in waiting] == [{"n": 1}, {"n": 2}]
        assert list(map(numbers, worker.batches)) == [[1, 2]]


async def test_after_connect_timeout_without_a_worker_requests_are_refused(
    tmp_path: Path,
) -> None:
    async with site(tmp_path, connect_timeout=0.05) as at:
        assert isinstance((await at.request()).error, NoWorker)  # after the timeout
        assert isinstance((await at.request()).error, NoWorker)
        worker = (await at.worker()).echo()
        assert (await at.request()).value == {"n": 2}
        await worker.close()
        await at.until(lambda: not at.harness.executor.alive)
        waiting = at.start(at.request())
        await asyncio.sleep(0)
        assert not waiting[0].done()
        assert isinstance((await waiting[0]).error, NoWorker)


async def test_a_worker_s_death_only_loses_its_own_batch(tmp_path: Path) -> None:
    async with site(tmp_path, batch=2) as at:
        doomed, other = await at.worker(), await at.worker()
        lost = at.start(at.request(), at.request())
        await doomed.batch()
        other.echo()
        await doomed.close()
        assert [type((await each).error) for each in lost] == [WorkerDied, WorkerDied]
        assert (await at.request()).value == {"n": 2}
        assert at.harness.executor.workers == 1


async def test_a_batch_that_could_not_be_sent_goes_to_another_worker(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        disconnected, other = await at.worker(), await at.worker()
        disconnected.disconnect()
        other.echo()
        assert (await at.request()).value == {"n": 0}  # the engine had not noticed the disconnect
        at.harness.recorder.events.clear()  # the history checker expects one dispatch per request
        at.harness.history.events.clear()


async def test_with_retry_on_crash_a_lost_batch_s_requests_run_once_more(tmp_path: Path) -> None:
    async with site(tmp_path, batch=2, retry_on_crash=True) as at:
        doomed = await at.worker()
        calls = at.start(at.request(), at.request())
        await doomed.batch()
        await doomed.close()
        await at.until(lambda: not at.harness.executor.alive)
        other = (await at.worker()).echo()
        assert [(await each).value for each in calls] == [{"n": 0}, {"n": 1}]
        assert list(map(numbers, other.batches)) == [[0], [1]]
        at.harness.recorder.events.clear()  # the history checker expects one dispatch per request
        at.harness.history.events.clear()


Answers = Callable[[list[str]], Any]


@pytest.mark.parametrize(
    ("make_reply", "why"),
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
async def test_a_worker_that_violates_the_protocol_is_disconnected_without_effect_on_others(
    tmp_path: Path, make_reply: Answers, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(tmp_path) as at:
        invalid, other = await at.worker(), await at.worker()
        calls = at.start(at.request(), at.request())
        other.echo()
        reply = make_reply(list(await invalid.batch()))
        if isinstance(reply, bytes):
            await invalid.send(reply)
        else:
            await invalid.answer(reply)
        await invalid.until_disconnected()
        assert isinstance((await calls[0]).error, WorkerBrokeProtocol)
        assert (await calls[1]).value == {"n": 1}
        assert (await at.request()).value == {"n": 2}
        assert at.harness.stage.quarantine.suspects == 0
        (message,) = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
        assert why in message
        assert "data_ids=[0]" in message


@pytest.mark.parametrize(
    ("ready", "data"),
    [
        (False, b"GET / HTTP/1.1\r\n\r\n"),
        (False, b"\0\0\0\1\x80"),
        (True, b"\0\0\0\1\x80"),
        (True, pack(">I", 1 << 20)),
    ],
)
async def test_a_worker_that_sends_unexpectedly_is_disconnected(
    tmp_path: Path, ready: bool, data: bytes
) -> None:
    async with site(tmp_path) as at:
        invalid = await at.worker(ready=ready)
        if ready:  # what it may send while it has a batch is not allowed afterwards
            calls = at.start(at.request())
            await invalid.answer(await invalid.batch())
            assert (await calls[0]).error is None
        await invalid.send(data)
        await invalid.until_disconnected()
        (await at.worker()).echo()
        assert (await at.request()).error is None


async def test_a_result_after_the_timeout_is_dropped_and_the_worker_stays_connected(
    tmp_path: Path,
) -> None:
    async with site(tmp_path, timeout=0.02) as at:
        worker = await at.worker()
        late = at.start(at.request())
        batch = await worker.batch()
        assert isinstance((await late[0]).error, OpTimeout)
        assert at.harness.stage.lost
        await worker.answer(batch)
        worker.echo()
        assert (await at.request()).value == {"n": 1}


async def test_a_leaving_worker_answers_its_batch_and_gets_no_more(
    tmp_path: Path,
) -> None:
    async with site(tmp_path) as at:
        idle, busy, other = await at.worker(), await at.worker(), await at.worker()
        await idle.answer({"leaving": b""})
        await idle.until_disconnected()
        calls = at.start(at.request())
        batch = await busy.batch()
        await busy.answer({"leaving": b""})  # sent before it received the batch
        other.echo()
        assert (await at.request()).value == {"n": 1}
        await busy.answer(batch)
        assert (await calls[0]).value == {"n": 0}
        await busy.until_disconnected()
        last = await at.worker()
        await other.close()
        calls = at.start(at.request())
        await last.answer({**await last.batch(), "leaving": b""})
        assert (await calls[0]).value == {"n": 2}
        await last.until_disconnected()


OURS = {"error": "invalid_input", "details": [{"loc": ["body", "x"], "msg": "no", "type": "t"}]}
PYDANTICS = [{"loc": ["x"], "msg": "no", "type": "t", "input": 5, "url": "elsewhere"}]


@pytest.mark.parametrize(
    ("message", "failed", "error", "details"),
    [
        (json.dumps(OURS).encode(), False, InvalidInput, OURS["details"]),
        (json.dumps(PYDANTICS).encode(), False, InvalidInput, OURS["details"]),
        (b"too long", False, InvalidInput, "too long"),
        (b'{"error": "undecodable", "message": "m"}', False, Undecodable, None),
        (b'{"error": "product", "message": "m", "number": 51}', False, ProductError, None),
        (b'{"error": "taken", "message": "m", "status": 409}', False, HttpError, "m"),
        (b'{"error": "taken", "message": "m", "status": 200}', False, InvalidInput, "m"),
        (b'{"error": "x", "details": [1]}', False, InvalidInput, '{"error": "x"'),
        (b"\xff", False, InvalidInput, "�"),
        (b"it broke", True, HookFailed, None),
        (None, False, InferenceFailed, None),
    ],
)
async def test_a_refusal_fails_one_request_with_the_worker_s_error(
    tmp_path: Path, message: bytes | None, failed: bool, error: type[Exception], details: Any
) -> None:
    async with site(tmp_path, batch=2) as at:
        worker = await at.worker()
        calls = at.start(at.request(), at.request())
        bad, good = batch = await worker.batch()
        answer: dict[str, Any] = {good: batch[good]}
        if message is not None:
            answer |= {bad: message, "error_ids": bad, **({"failed_ids": bad} if failed else {})}
        await worker.answer(answer)
        failure = (await calls[0]).error
        assert type(failure) is error
        if isinstance(details, list):
            assert isinstance(failure, InvalidInput)
            assert failure.details == details
        elif details is not None:
            assert details in str(failure)
        assert (await calls[1]).value == {"n": 1}


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ({"bad": b'"it broke"', "error_ids": "bad", "failed_ids": "bad"}, " failed: it broke"),
        ({}, " omitted the request from its answer"),
        ({"bad": b"{"}, "'s answer cannot be read: "),
    ],
)
async def test_a_worker_s_failure_is_one_line_that_says_each_fact_once(
    tmp_path: Path, answer: dict[str, Any], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(tmp_path) as at:
        worker = await at.worker()
        calls = at.start(at.request())
        (key,) = await worker.batch()
        named = {"bad": key}
        await worker.answer({named.get(k, k): named.get(v, v) for k, v in answer.items()})
        assert (await calls[0]).error is not None
    (text,) = [each for each in caplog.messages if "data_ids" in each]
    assert text.startswith(f"op op: an external worker{line}")
    assert text.count("worker") == text.count("op ") == 1


async def test_a_reply_that_cannot_be_decoded_only_fails_its_own_request(tmp_path: Path) -> None:
    async with site(tmp_path, batch=2) as at:
        worker = await at.worker()
        calls = at.start(at.request(), at.request())
        bad, good = batch = await worker.batch()
        await worker.answer({bad: b"{", good: batch[good]})
        assert "cannot be read" in str((await calls[0]).error)
        assert (await calls[1]).value == {"n": 1}


async def test_a_batch_too_large_for_a_frame_is_sent_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BATCH_BYTES", 250)
    async with site(tmp_path, batch=8) as at:
        calls = at.start(*(at.request(text="x" * 100) for _ in range(5)))
        worker = (await at.worker()).echo()
        assert [(await each).value["n"] for each in calls] == [0, 1, 2, 3, 4]  # type: ignore[index]
        assert list(map(numbers, worker.batches)) == [[0, 1], [2, 3], [4]]


async def test_large_bodies_are_exchanged_while_others_are_served(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        slow, quick = await at.worker(), await at.worker()
        text = "x" * (2 << 20)
        large = at.start(at.request(text=text))
        await asyncio.sleep(0)
        quick.echo()
        assert (await at.request()).value == {"n": 1}  # the slow worker has not read
        slow.echo()
        value = (await large[0]).value
        assert value is not None
        assert value["text"] == text


async def test_a_large_answer_is_decoded_in_a_thread_and_counts_though_its_worker_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding, go_on = asyncio.Event(), threading.Event()
    loop, decode = asyncio.get_running_loop(), connection.outcome_of

    def held(*args: Any) -> Outcome:
        if threading.current_thread() is not threading.main_thread():
            loop.call_soon_threadsafe(decoding.set)
            assert go_on.wait(10.0)
        return decode(*args)

    monkeypatch.setattr(connection, "outcome_of", held)
    async with site(tmp_path) as at:
        worker = await at.worker()
        large = at.start(at.request(text="x" * (1 << 20)))
        await worker.answer(await worker.batch())
        worker.disconnect()
        await decoding.wait()
        other = (await at.worker()).echo()  # the loop is free meanwhile
        assert (await at.request()).value == {"n": 1}
        go_on.set()
        value = (await large[0]).value
        assert value is not None
        assert len(value["text"]) == 1 << 20
        await worker.until_disconnected()
        assert len(other.batches) == 1, "the request of the worker that left was not run again"
