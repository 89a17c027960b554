"""The engine gives out keys that cannot be guessed, and deletes them when requests end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from penstock.errors import ValueLost
from penstock.executors.external_store.counts import StoreCounts, report_of
from penstock.executors.external_store.engine import EngineStore
from penstock.executors.external_store.store import StoreFailed, StoreRefuses
from penstock.executors.transport.values import Stored
from penstock.request import Outcome, Sample
from tests.executors.external_store.fake import OPTIONS, FakeStore


class Request:
    """What a sample's submission does for the store."""

    def __init__(self, *kept_away: int, sizing: object = None) -> None:
        stages = [SimpleNamespace(sizing=each) for each in (None, sizing)]
        self.graph = SimpleNamespace(kept_away=frozenset(kept_away), stages=stages)
        self.plan = SimpleNamespace(consumers=((1,), ()))
        self.attempt = 1
        self.endings: list[Callable[[], object]] = []

    def at_end(self, call: Callable[[], object]) -> None:
        self.endings.append(call)


def sample_of(request: Request, op: int = 0) -> Sample:
    return Sample(7, {}, 100.0, op=op, flight=request)


async def test_a_key_is_deleted_at_the_end_of_its_request() -> None:
    store = FakeStore()
    side = EngineStore(OPTIONS, "a:b", store.opened)
    side.start()
    request = Request(0)
    sample = sample_of(request)
    key, other = side.key_for(sample), side.key_for(sample)
    assert key is not None
    assert other is not None
    head, _, nonce = key.rpartition(":")
    assert head == "penstock:svc:7:a%3Ab"
    assert len(nonce) == 32
    assert key != other
    store.kept = {key: {}, other: {}}
    side.delete_at_end(sample, key)
    assert "delete" not in store.calls
    for each in request.endings:
        each()
    await side.close()
    assert [*store.kept] == [other]
    assert store.closed


async def test_an_op_whose_output_is_needed_here_gets_no_key() -> None:
    side = EngineStore(OPTIONS, "op", FakeStore().opened)
    assert side.key_for(sample_of(Request(1), op=0)) is None
    assert side.key_for(sample_of(Request(0, sizing="by rows"), op=0)) is None


async def test_a_request_that_runs_again_does_without_the_store() -> None:
    side = EngineStore(OPTIONS, "op", FakeStore().opened)
    request = Request(0)
    request.attempt = 2
    assert side.key_for(sample_of(request)) is None


@pytest.mark.parametrize(
    ("error", "level"),
    [(StoreFailed("is full"), "WARNING"), (StoreRefuses("does not accept it"), "ERROR")],
)
async def test_what_is_wrong_is_logged_once(
    error: StoreFailed, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = FakeStore()
    store.fails = error
    side = EngineStore(OPTIONS, "op", store.opened)
    request = Request(0)
    with caplog.at_level(logging.WARNING):
        side.start()
        for _ in range(3):
            side.delete_at_end(sample_of(request), "key")
            request.endings[-1]()
        await side.close()
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        (level, f"op op: the external store redis://127.0.0.1 {error}")
    ]


async def test_wrong_settings_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = FakeStore()
    store.wrong = ["drops keys", "is small"]
    side = EngineStore(OPTIONS, "op", store.opened)
    with caplog.at_level(logging.WARNING):
        side.start()
        await side.close()
    assert "redis://127.0.0.1 drops keys; it is small" in caplog.text


async def test_a_store_that_hangs_does_not_hold_up_the_end() -> None:
    store, gate = FakeStore(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def look() -> list[str]:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(30.0)
        return []

    store.look = look  # type: ignore[method-assign]
    side = EngineStore(OPTIONS, "op", store.opened)
    side.start()
    async with asyncio.timeout(20.0):
        await side.close()
    gate.set()


async def test_what_workers_do_is_counted() -> None:
    side = EngineStore(OPTIONS, "op", FakeStore().opened)
    stored = Stored("key", 0, b"", 5000)
    side.count_inputs([Sample(7, {"a": {"x": [stored, 1]}}, 100.0)])
    large, small = {"x": [bytes(1000)]}, {"x": bytes(999)}
    outcomes = [
        Outcome(large),
        Outcome(large),
        Outcome({"x": stored}),
        Outcome(small),
        Outcome(None, ValueLost("gone")),
    ]
    side.count(outcomes, [False, True, True, False, True])
    assert (side.counts.fetched_bytes, side.counts.inline, side.counts.lost) == (5000, 1, 1)


async def test_a_store_that_works_again_is_looked_at_also_under_load() -> None:
    store = FakeStore()
    store.fails = StoreFailed("is full")
    side = EngineStore(OPTIONS, "op", store.opened)
    side._attempt(())
    assert side.counts.wrong == "is full"
    side._attempt(["key"])
    assert side.counts.wrong == "is full"
    store.fails = None
    side._attempt(["key"])
    assert side.counts.wrong == ""
    store.calls.clear()
    side._attempt(["key"])
    assert store.calls == ["delete"]


def test_the_counts_of_all_parts_are_one_report() -> None:
    one, other = StoreCounts(), StoreCounts()
    one.wrong = ""
    one.add(in_use=2, put=10, inline=1)
    other.add(put=5, fetched=3, lost=1)
    report = report_of([one, other])
    assert (report["users"], report["available"], report["why"]) == (2, 1, None)
    other.wrong = "is full"
    report = report_of([one, other])
    assert report == {
        "users": 2,
        "available": 1,
        "why": "is full",
        "in_use": 2,
        "put_bytes": 15,
        "fetched_bytes": 3,
        "inline": 1,
        "lost": 1,
    }
