"""A worker's large values go to the external store and come back; faults cost only what is lost."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from penstock.batching.stack import signature
from penstock.errors import InferenceFailed, ValueLost
from penstock.executors.external_store import rules
from penstock.executors.external_store.rules import MARGIN, PAUSE
from penstock.executors.external_store.store import StoreFailed
from penstock.executors.external_store.worker import WorkerStore
from penstock.executors.transport.values import Stored
from penstock.request import Outcome, Sample
from tests.executors.external_store.fake import OPTIONS, FakeStore


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Worker:
    """A worker with a store of its own or another's."""

    def __init__(self, store: FakeStore | None = None) -> None:
        self.store = store or FakeStore()
        self.clock = Clock()
        self.side = WorkerStore(OPTIONS, "op", self.store.opened, self.clock)

    def keep(self, value: dict[str, Any], key: str | None = "k") -> dict[str, Any]:
        sample = Sample(1, {}, 110.0)
        sample.store_key = key
        (outcome,) = self.side.keep([sample], [Outcome(value)])
        assert outcome.value is not None
        return outcome.value

    def fetch(self, value: Any) -> Any:
        sample = Sample(1, {"before": {"x": value}}, 110.0)
        (why,) = self.side.fetch([sample])
        return why or sample.inputs["before"]["x"]


VALUES = [
    np.arange(1000.0),
    np.asfortranarray(np.arange(1200, dtype="<i2").reshape(2, 3, 200)),
    np.zeros((0, 5)),
    np.full(500, "ab"),
    np.arange(4000, dtype=">u2")[::2],
    np.array(7.0),
    b"x" * 1000,
    b"x" * 999,
    "x" * 5000,
    None,
    np.array(["x" * 5000], object),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}")
def test_what_comes_back_is_equal(value: Any) -> None:
    worker = Worker()
    kept = worker.keep({"x": value, "small": 1})
    found = worker.fetch(kept["x"])
    assert type(found) is type(value)
    if isinstance(value, np.ndarray):
        np.testing.assert_array_equal(found, value, strict=True)
        if value.ndim > 1:
            assert found.flags.f_contiguous == value.flags.f_contiguous
        if kept["x"] is not value:
            assert found.flags.writeable
    else:
        assert found == value
    assert kept["small"] == 1


def test_only_large_values_of_samples_with_a_key_are_stored() -> None:
    worker = Worker()
    large, small = np.zeros(125), np.zeros(124)
    kept = worker.keep({"a": [large, small], "b": {"c": large}})
    assert [type(each) for each in (*kept["a"], kept["b"]["c"])] == [Stored, np.ndarray, Stored]
    assert worker.store.seconds == {"k": 10.0 + MARGIN}
    assert len(worker.store.kept["k"]) == 2
    assert type(worker.keep({"a": large}, key=None)["a"]) is np.ndarray


def test_an_error_is_not_looked_at() -> None:
    sample = Sample(1, {}, 110.0)
    sample.store_key = "k"
    error = Outcome(None, InferenceFailed("no"))
    assert Worker().side.keep([sample], [error]) == [error]


def test_a_value_in_chunks_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "CHUNK_BYTES", 300)
    worker = Worker()
    kept = worker.keep({"x": np.arange(125.0)})
    assert sorted(worker.store.kept["k"]) == ["0.0", "0.1", "0.2", "0.3"]
    np.testing.assert_array_equal(worker.fetch(kept["x"]), np.arange(125.0))
    worker.store.kept["k"]["0.1"] = b"short"
    assert type(worker.fetch(kept["x"])) is ValueLost


def test_values_go_directly_while_the_store_fails_and_it_is_asked_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker, large = Worker(), np.zeros(1000)
    worker.store.fails = StoreFailed("cannot be reached")
    with caplog.at_level(logging.WARNING):
        assert worker.keep({"x": large})["x"] is large
        asked = len(worker.store.calls)
        assert worker.keep({"x": large})["x"] is large
        assert len(worker.store.calls) == asked, "not again within the pause"
        worker.clock.now += PAUSE
        assert worker.keep({"x": large})["x"] is large
        worker.store.fails = None
        worker.clock.now += PAUSE
        assert type(worker.keep({"x": large})["x"]) is Stored
    assert [each.getMessage() for each in caplog.records] == [
        "op op: values go through the engine: the external store redis://127.0.0.1"
        " cannot be reached",
        "op op: the external store takes values again",
    ]


def test_of_values_that_were_stored_in_part_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "CHUNK_BYTES", 500)
    worker, value = Worker(), {"a": np.zeros(125), "b": np.zeros(125)}
    failing = worker.store

    def put(key: str, field: str, octets: memoryview, seconds: float) -> None:
        if field == "1.1":
            raise StoreFailed("is full")
        FakeStore.put(failing, key, field, octets, seconds)

    monkeypatch.setattr(failing, "put", put)
    assert worker.keep(value) is value
    assert failing.kept == {}


@pytest.mark.parametrize("error", [StoreFailed("did not answer within 5 s"), None])
def test_a_value_that_cannot_be_had_fails_its_own_request(error: StoreFailed | None) -> None:
    worker = Worker()
    kept = worker.keep({"x": np.zeros(1000)})
    samples = [Sample(1, {"a": {"x": kept["x"]}}, 110.0), Sample(2, {"a": {"x": 3}}, 110.0)]
    worker.store.fails = error
    if error is None:
        worker.store.kept.clear()
    lost, fine = worker.side.fetch(samples)
    assert type(lost) is ValueLost
    assert "an input cannot be had from the external store, which d" in str(lost)
    assert fine is None
    assert samples[1].inputs == {"a": {"x": 3}}


def test_requests_with_stored_values_of_equal_shapes_share_a_batch() -> None:
    worker = Worker()
    one, other, wide = (
        worker.keep({"x": each}, key=str(n))
        for n, each in enumerate((np.ones((2, 500)), np.zeros((2, 500)), np.ones((2, 600))))
    )
    assert type(one["x"]) is Stored
    assert signature(one) == signature(other)
    assert signature(one) != signature(wide)


def test_a_machine_without_the_package_of_the_store_sends_values_directly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stored = Worker().keep({"x": np.ones(1000)})["x"]
    monkeypatch.setattr("penstock.executors.external_store.kinds.find_spec", lambda name: None)
    worker = Worker()
    worker.side = WorkerStore(OPTIONS, "op")
    value = {"x": np.ones(1000)}
    assert worker.keep(value) is value
    assert "pip install 'penstock-serving[redis]'" in caplog.text
    assert type(worker.fetch(stored)) is ValueLost
