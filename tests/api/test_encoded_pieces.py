"""Large pieces are encoded in a thread, in order, within the budget of bytes in flight."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from penstock.door.exchange import WRITABLE
from penstock.errors import DeadlineExceeded, InferenceFailed, RequestError
from penstock.executors.stream import Stream
from penstock.request import Feed, Outcome
from tests.api.recorded_exchange import RecordedExchange, post
from tests.api.test_oip_stream import Site

LARGE = 40_000
"""Numbers of a piece that a thread encodes, over both protocols."""


class Caller(Site):
    """A caller of ``pieces``, and the one thread that encodes, once ``gate`` is set."""

    def __init__(self, threads: ThreadPoolExecutor, *, http: bool) -> None:
        super().__init__(threads=threads)
        self.http = http
        self.gate = threading.Event()
        self.before = threads.submit(self.gate.wait, 30)

    async def begin(self, model: str = "pieces") -> None:
        if self.http:
            head = post(f"/v2/models/{model}/generate_stream", length=8)
            self.exchange = RecordedExchange(head, self.budget, b'{"x": 1}')
            self.router.begin(self.exchange)
            await self.until(lambda: self.engine.statistics().admitted == 1)
        else:
            await self.ask(model, "a", empty_final=True)
        self.idle = self.budget.used

    def sent(self) -> list[int]:
        """The size of each piece so far; 0 for the end without an error, -1 with one."""
        found = []
        if not self.http:
            for _, values, final, error in self.shown():
                found.append(-1 if error else 0 if final and not values else len(values))
            return found
        for what, each in self.exchange.sent[self.read :]:
            if what == "send" and each:
                event = json.loads(each.removeprefix(b"data: "))
                found.append(-1 if "error" in event else np.size(event["y"]))
            elif what == "finish":
                found.append(0)
        self.read = len(self.exchange.sent)
        return found


@pytest.fixture(params=[True, False], ids=["generate_stream", "ModelStreamInfer"])
async def caller(request: pytest.FixtureRequest) -> AsyncIterator[Caller]:
    with ThreadPoolExecutor(1) as threads:
        made = Caller(threads, http=request.param)
        yield made
        made.gate.set()


def numbers(count: int) -> Feed:
    return {"y": np.ones(count, np.int64)}


def add(stream: Stream, *sizes: int) -> None:
    for each in sizes:
        stream.add(numbers(each))


async def rest(caller: Caller, *sizes: int) -> None:
    """Let the thread encode, and check what is sent then."""
    found: list[int] = []

    def all_sent() -> bool:
        found.extend(caller.sent())
        return len(found) >= len(sizes)

    caller.gate.set()
    await caller.until(all_sent)
    assert found == [*sizes]


async def test_the_loop_does_not_wait_for_large_pieces_and_their_order_is_kept(
    caller: Caller,
) -> None:
    await caller.begin()
    stream = caller.stream(0)
    add(stream, 1)
    assert caller.sent() == [1]
    add(stream, LARGE, 2, LARGE + 1, 3)
    await caller.until(lambda: True)
    assert caller.sent() == []
    assert stream.is_full
    await rest(caller, LARGE, 2, LARGE + 1, 3)
    assert not stream.is_full
    caller.end()
    assert caller.sent() == [0]


async def test_the_end_waits_for_the_pieces_before_it(caller: Caller) -> None:
    await caller.begin()
    add(caller.stream(0), LARGE, 2)
    caller.end()
    assert caller.sent() == []
    await rest(caller, LARGE, 2, 0)


async def test_the_error_of_an_op_comes_after_its_pieces(caller: Caller) -> None:
    await caller.begin()
    add(caller.stream(0), LARGE, 2)
    caller.end(0, InferenceFailed("no more"))
    await rest(caller, LARGE, 2, -1)


async def test_a_deadline_does_not_wait_for_pieces(caller: Caller) -> None:
    await caller.begin()
    add(caller.stream(0), 1, LARGE, 2)
    caller.end(0, DeadlineExceeded("late"))
    assert caller.sent() == [1, -1]
    caller.gate.set()
    await caller.until(caller.before.done)
    assert caller.sent() == []


async def test_the_text_of_a_large_piece_is_reserved_until_it_is_sent(caller: Caller) -> None:
    await caller.begin()
    stream = caller.stream(0)
    add(stream, LARGE)
    assert caller.budget.used - caller.idle > 10 * LARGE
    await rest(caller, LARGE)
    assert caller.budget.used == caller.idle
    add(stream, 1, 1 << 20)
    await rest(caller, 1, -1)


async def test_a_reader_that_reads_gets_no_further_pieces_while_some_wait(caller: Caller) -> None:
    await caller.begin()
    caller.exchange.waiting = WRITABLE + 1
    stream = caller.stream(0)
    add(stream, 1, LARGE, 2)
    caller.exchange.waiting = 0
    assert caller.exchange.on_writable is not None
    caller.exchange.on_writable()
    assert stream.credited == 0
    await rest(caller, 1, LARGE, 2)
    assert stream.credited == 3


async def test_a_caller_that_leaves_gets_no_piece_that_waits(caller: Caller) -> None:
    await caller.begin()
    add(caller.stream(0), LARGE, 2)
    assert caller.exchange.on_gone is not None
    caller.exchange.on_gone()
    await caller.until(lambda: caller.engine.statistics().inside == 0)
    caller.gate.set()
    await caller.until(caller.before.done)
    assert caller.sent() == []


@pytest.mark.parametrize("error", [None, InferenceFailed("nothing")])
async def test_an_answer_at_once_that_is_large_is_an_event(error: RequestError | None) -> None:
    with ThreadPoolExecutor(1) as threads:
        caller = Caller(threads, http=True)
        await caller.begin("whole")
        value = numbers(LARGE) if error is None else None
        caller.workers["whole"].finish(0, [Outcome(value, error)])
        if error is None:
            assert not caller.exchange.answered
            caller.exchange.waiting = WRITABLE + 1
            await rest(caller, LARGE, 0)
            assert caller.exchange.on_writable is not None
            caller.exchange.on_writable()
        else:
            assert caller.exchange.replies[0][0] == 500
        caller.gate.set()
