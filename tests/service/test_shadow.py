"""Copies of requests: they run after the answer, in a budget of their own, and give way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.engine.graph import ServedGraph
from penstock.engine.submission import Submission
from penstock.errors import InferenceFailed
from penstock.observe.counters import Counters
from penstock.observe.recorder import Recorder
from penstock.repository.rollout import Shadow as Options
from penstock.request import Feed, Outcome
from penstock.service.daemon_pool import DaemonPool
from penstock.service.shadow import EXAMPLES, Comparisons, Shadow
from tests.engine.test_graph import EngineOfGraphs


class Harness(EngineOfGraphs):
    """Version 1 of a graph, whose requests version 2 runs as well."""

    def __init__(self, share: int = 100, most: int = 8, **options: Any) -> None:
        super().__init__(**options)
        self.old, self.new = self.add("a", "1"), self.add("a", "2")
        self.counters = Counters()
        self.recorder = Recorder(0, self.counters)
        for each in (self.counters, self.recorder):
            self.engine.instruments.install(each)
        self.comparisons = Comparisons()
        self.shadow = Shadow(
            self.engine,
            self.old,
            self.new,
            Options(share=share, most=most),
            self.comparisons,
            DaemonPool(1, "shadow"),
        )

    def ask(self, feed: Feed, graph: ServedGraph | None = None, asked: str | None = None) -> None:
        submission = Submission(graph or self.old, feed, log_id=7)
        submission.asked = asked
        submission.start(lambda _, outcome: self.outcomes.append(outcome))
        self.clock.run()

    def answer(self, graph: ServedGraph, value: Any) -> None:
        outcome = value if isinstance(value, Outcome) else Outcome({"y": value})
        self.workers[graph].finish(outcomes=[outcome])
        self.clock.run()

    @property
    def counts(self) -> tuple[int, int, int]:
        found = self.comparisons
        return found.compared, found.differed, found.dropped


def test_a_copy_runs_after_the_answer_and_is_compared() -> None:
    harness = Harness()
    harness.ask({"x": 1})
    assert harness.new.inside == 0
    harness.answer(harness.old, 2.0)
    assert [each.value for each in harness.outcomes] == [{"y": 2.0}]
    assert harness.new.inside == 1
    harness.answer(harness.new, 2.0)
    assert harness.counts == (1, 0, 0)
    assert len(harness.outcomes) == 1


def test_differences_are_kept_with_both_answers_the_latest_of_many() -> None:
    harness = Harness()
    for number in range(EXAMPLES + 5):
        harness.ask({"x": number})
        harness.answer(harness.old, float(number))
        harness.answer(harness.new, -1.0)
    assert harness.counts == (EXAMPLES + 5, EXAMPLES + 5, 0)
    assert len(harness.comparisons.examples) == EXAMPLES
    assert harness.comparisons.examples[-1] == {
        "log_id": 7,
        "difference": f"y: -1.0 instead of {EXAMPLES + 4}.0",
        "answer": f"y={EXAMPLES + 4}.0",
        "other": "y=-1.0",
    }


def test_a_copy_has_inputs_of_its_own() -> None:
    harness = Harness()
    array, texts = np.zeros(3), ["a"]
    harness.ask({"x": array, "texts": texts})
    array += 1.0
    texts.append("b")
    harness.answer(harness.old, 0)
    (batch,) = harness.workers[harness.new].batches()
    (feed,) = batch.samples[0].inputs.values()
    assert feed["x"].tolist() == [0.0, 0.0, 0.0]
    assert feed["texts"] == ["a"]


def test_copies_are_counted_apart_from_callers_requests() -> None:
    harness = Harness()
    for error in (None, InferenceFailed("no memory")):
        harness.ask({"x": 1})
        harness.answer(harness.old, 2.0)
        harness.answer(harness.new, 2.0 if error is None else Outcome(None, error))
    assert harness.counters.of_requests()["answers"] == {"ok": 2}
    assert ("a", "2") not in harness.counters.requests
    assert harness.counters.copies["a", "2"].plain()["answers"] == {"ok": 1, "inference": 1}
    assert [each.graph for each in harness.recorder.latest()] == ["a", "a"]
    assert harness.counts == (1, 0, 0)  # what failed has no answer to compare


@pytest.mark.parametrize("outcome", [Outcome(None, InferenceFailed("no")), None])
def test_requests_without_an_answer_are_not_copied(outcome: Outcome | None) -> None:
    harness = Harness()
    harness.ask({"x": 1})
    if outcome is None:
        harness.engine.close()
    else:
        harness.answer(harness.old, outcome)
    assert harness.new.inside == 0
    assert harness.engine.capacity == harness.engine.options.max_requests


def test_named_versions_and_unknown_inputs_are_not_copied() -> None:
    harness = Harness()
    harness.ask({"x": 1}, asked="1")
    harness.answer(harness.old, 2.0)
    assert harness.counts == (0, 0, 0)
    harness.ask({"x": object()})
    harness.answer(harness.old, 2.0)
    assert harness.new.inside == 0
    assert harness.counts == (0, 0, 1)


def test_copies_take_no_place_of_callers_and_have_a_budget() -> None:
    harness = Harness(most=1, max_requests=2)
    harness.ask({"x": 1})
    harness.answer(harness.old, 2.0)
    assert harness.new.inside == 1
    for _ in range(2):  # both places are still there
        harness.ask({"x": 2}, asked="1")
    assert harness.old.inside == 2
    harness.answer(harness.old, 2.0)
    harness.ask({"x": 3})
    assert harness.counts == (0, 0, 1)


def test_a_copy_that_waits_leaves_when_a_caller_comes() -> None:
    harness = Harness()
    for number in range(3):
        harness.ask({"x": number})
        harness.answer(harness.old, 2.0)
    assert harness.new.inside == 2  # one runs, one waits, and the third was dropped
    harness.ask({"x": 9}, graph=harness.new, asked="2")
    assert harness.new.inside == 2
    assert harness.counts == (0, 0, 2)
    harness.answer(harness.new, 2.0)
    harness.answer(harness.new, 2.0)
    assert len(harness.outcomes) == 4
    assert harness.counts == (1, 0, 2)


def test_a_share_of_the_requests_is_copied() -> None:
    harness = Harness(share=0)
    for _ in range(20):
        harness.ask({"x": 1})
        harness.answer(harness.old, 2.0)
    assert harness.counts == (0, 0, 0)
    assert harness.new.inside == 0


def test_the_end_of_the_copies_cancels_those_that_run() -> None:
    harness = Harness()
    harness.ask({"x": 1})
    harness.answer(harness.old, 2.0)
    harness.ask({"x": 2})
    harness.shadow.close()
    assert harness.new.inside == 0
    harness.answer(harness.old, 2.0)
    harness.ask({"x": 3})
    harness.answer(harness.old, 2.0)
    assert harness.new.inside == 0
    assert not harness.old.guarded
    assert len(harness.outcomes) == 3
