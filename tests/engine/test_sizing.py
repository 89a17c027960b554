"""Samples measured in rows: batches filled by rows, large samples split into pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.batching.batcher import Batcher, BatchPolicy
from penstock.batching.joining import Joining
from penstock.batching.padding import Padding
from penstock.engine.sizing import MOST_PIECES, Sizing
from penstock.errors import InferenceFailed, OpTimeout, ServiceBusy
from penstock.executors.work import WorkOptions
from penstock.request import Feed, Outcome, Sample
from tests.engine.test_engine import EngineHarness, make_harness


def with_sizing(
    joining: Joining | None = None,
    *,
    splits: bool = True,
    capacity: int | None = None,
    workers: int = 1,
    **work: Any,
) -> EngineHarness:
    """An engine with an op of at most 4 rows per batch."""
    h = make_harness(workers=workers, work=WorkOptions(**work))
    (stage,) = h.engine.stages
    sizing = Sizing(joining=joining or Joining(True), most=4, splits=splits)
    stage.sizing = sizing
    stage.batcher = Batcher(BatchPolicy(max_rows=4, capacity=capacity, join=sizing.joins))
    return h


def rows(count: int, first: int = 0) -> Feed:
    return {"x": np.arange(first, first + count, dtype="f4").reshape(count, 1)}


def sizes(h: EngineHarness) -> list[list[int]]:
    """The rows of the samples of each running batch."""
    return [[sample.rows for sample in batch.samples] for batch in h.workers["op"].batches()]


def finish(h: EngineHarness, index: int = 0, outcomes: list[Outcome] | None = None) -> None:
    h.workers["op"].finish(index, outcomes)
    h.clock.run()


def test_a_batch_is_full_by_its_number_of_rows() -> None:
    h = with_sizing()
    h.request(**rows(1))
    for count in (2, 1, 1, 3):
        h.request(**rows(count))
    finish(h)
    assert h.recorded.lines[1:] == ["op [1, 2, 3] full", "op [4] idle slot"]


def test_a_large_request_runs_in_pieces_and_is_answered_once_in_order() -> None:
    h = with_sizing(workers=3)
    submission = h.request(**rows(10))
    assert sizes(h) == [[4], [4], [2]]
    finish(h, 2)
    finish(h, 1)
    assert h.answers[submission.data_id] == []
    finish(h)
    value = h.answer(submission).value
    assert value is not None
    np.testing.assert_array_equal(value["x"], rows(10)["x"])
    assert h.engine.statistics().replied == 1


def test_the_last_piece_may_share_its_batch() -> None:
    h = with_sizing()
    submission, other = h.request(**rows(5)), h.request(**rows(2, first=50))
    finish(h)
    assert sizes(h) == [[1, 2]]
    finish(h)
    assert [len((h.answer(each).value or {})["x"]) for each in (submission, other)] == [5, 2]


def test_the_error_of_a_piece_ends_the_request_and_drops_its_other_pieces() -> None:
    h = with_sizing(workers=2)
    submission = h.request(**rows(16))
    finish(h, 1, [Outcome(None, InferenceFailed("no"))])
    assert str(h.answer(submission).error) == "no"
    assert len(h.engine.stages[0].batcher) == 0
    finish(h)
    assert h.engine.statistics().inside == 0


def test_a_piece_with_a_wrong_number_of_rows_fails_the_request() -> None:
    h = with_sizing(workers=2)
    submission = h.request(**rows(8))
    finish(h)
    finish(h, 0, [Outcome({"x": np.ones((3, 1))})])
    assert isinstance(h.answer(submission).error, InferenceFailed)


def test_cancelling_a_request_removes_all_its_pieces() -> None:
    h = with_sizing()
    submission = h.request(**rows(12))
    submission.cancel()
    assert len(h.engine.stages[0].batcher) == 0
    finish(h)
    assert h.answers[submission.data_id] == []


def test_a_request_with_more_pieces_than_the_queue_holds_is_refused() -> None:
    h = with_sizing(capacity=2)
    submission = h.request(**rows(16))
    assert isinstance(h.answer(submission).error, ServiceBusy)
    assert h.workers["op"].batches() == []
    assert len(h.engine.stages[0].batcher) == 0


def test_a_piece_that_times_out_is_retried_alone() -> None:
    h = with_sizing(workers=2, timeout=1.0, retry=2)
    submission = h.request(**rows(8))
    (first, second) = h.workers["op"].batches()
    first.started = h.clock.now()
    finish(h, 1)
    h.clock.advance(1.5)
    assert second.settled
    assert [len(b.samples) for b in h.workers["op"].batches() if not b.settled] == [1]
    finish(h, 1)
    value = h.answer(submission).value
    assert value is not None
    np.testing.assert_array_equal(value["x"], rows(8)["x"])


def test_a_piece_that_times_out_in_its_last_attempt_ends_the_request() -> None:
    h = with_sizing(timeout=1.0)
    submission = h.request(**rows(8))
    h.workers["op"].batches()[0].started = h.clock.now()
    h.clock.advance(1.5)
    assert isinstance(h.answer(submission).error, OpTimeout)


def test_without_splitting_a_large_request_runs_whole_and_alone() -> None:
    h = with_sizing(splits=False)
    h.request(**rows(9))
    assert sizes(h) == [[9]]


def test_the_number_of_a_request_s_pieces_is_bounded() -> None:
    pieces = Sizing(joining=Joining(True), most=1).split({"@": rows(3000)})
    assert pieces is not None
    assert len(pieces.inputs) <= MOST_PIECES


def test_filled_in_elements_are_counted() -> None:
    h = with_sizing(Joining(True, Padding()))
    h.request(x=np.ones((1, 1)))
    h.request(x=np.ones((1, 10)))
    h.request(x=np.ones((2, 8)))
    finish(h)
    assert sizes(h) == [[1, 2]]
    statistics = h.engine.stages[0].statistics()
    assert (statistics.elements, statistics.filled_in) == (31, 4)
    (batch,) = [each for each in h.workers["op"].batches() if len(each.samples) == 2]
    assert (batch.elements, batch.filled_in) == (30, 4)


@pytest.mark.parametrize("value", [[1, 2], "text", np.array(3), np.ones(0)])
def test_every_input_has_a_size(value: Any) -> None:
    for reads in (False, True):
        one = Sample(1, {"@": {"x": value}}, 9.0)
        Sizing(joining=Joining(True, Padding()), most=4, reads=reads).measure(one)
        assert one.rows >= 1
        assert one.shapes == ()


@pytest.mark.parametrize(
    ("value", "elements"),
    [
        ([[1] * 100], 100),
        ([[[1, 2], [3, 4]], [[5, 6]]], 8),  # as if all were as long as the first
        (np.ones((1, 100)), 100),
        ("[[1, 2]]", 0),
        ([["a", "b"]], 0),
        ([[]], 0),
        ([1, 2], 0),
    ],
)
def test_the_sizes_of_lists_are_known_where_requests_are_padded(value: Any, elements: int) -> None:
    one = Sample(1, {"@": {"x": value}}, 9.0)
    Sizing(joining=Joining(True, Padding()), most=4, reads=True).measure(one)
    assert one.elements == elements


def test_lists_are_padded_with_lists_of_like_sizes() -> None:
    joining = Joining(True, Padding(max_elements=4))
    h = with_sizing(joining)
    (stage,) = h.engine.stages
    stage.sizing = Sizing(joining=joining, most=4, reads=True)
    for length in (1, 1, 100, 2):
        h.request(x=[[1] * length])
    finish(h)
    assert [
        [sample.data_id for sample in batch.samples] for batch in h.workers["op"].batches()
    ] == [[1, 3]]
