"""Requests of several priorities: who waits, who is shed, and that each ends once."""

import pytest

from penstock.batching.batcher import BatchPolicy
from penstock.engine.engine import EngineOptions
from penstock.engine.submission import Submission
from penstock.errors import ServiceBusy, Undecodable
from tests.engine.test_engine import EngineHarness, make_harness

LOW, MIDDLE, HIGH = 2, 1, 0


def harness(
    *, capacity: int | None = None, most: int = 1024, running: int | None = None
) -> EngineHarness:
    """Two ops in a row, with one worker each."""
    made = make_harness(
        {"a": ["@"], "b": ["a"]},
        policy=BatchPolicy(capacity=capacity, levels=3, ageing=1.0),
        options=EngineOptions(max_requests=most, max_running=running, levels=3, ageing=1.0),
    )
    made.engine.level_of = lambda submission: int(submission.feed["level"])
    return made


def run_all(made: EngineHarness, op: str, requests: dict[str, Submission]) -> list[str]:
    """Ends the calls of an op one after another; the names of the requests in this order."""
    names = {each.data_id: name for name, each in requests.items()}
    order = []
    while made.workers[op].running:
        ((work, _),) = made.workers[op].running
        batches = [*made.workers[op].batches(), *work.pending]
        order += [names[data_id] for batch in batches for data_id in batch.data_ids]
        made.workers[op].finish()
        made.clock.run()
    return order


def test_waiting_requests_go_by_priority_in_every_op() -> None:
    made = harness()
    levels = {"runs": LOW, "low": LOW, "middle": MIDDLE, "high": HIGH, "higher": HIGH}
    requests = {name: made.request(level=level) for name, level in levels.items()}
    expected = ["runs", "high", "higher", "middle", "low"]
    assert run_all(made, "a", requests) == expected
    assert run_all(made, "b", requests) == ["runs", "high", "higher", "middle", "low"]


def test_requests_outside_of_the_graph_go_by_priority_and_age() -> None:
    made = harness(running=1)
    requests = {"runs": made.request(level=LOW), "low": made.request(level=LOW)}
    made.clock.advance(1.9)
    requests["before"] = made.request(level=HIGH)
    made.clock.advance(0.2)
    requests["too late"] = made.request(level=HIGH)
    order = []
    for _ in requests:
        order += run_all(made, "a", requests)
        run_all(made, "b", requests)
    assert order == ["runs", "before", "low", "too late"]


@pytest.mark.parametrize("limits", [{"most": 4}, {"capacity": 3}, {"most": 4, "running": 1}])
def test_the_newest_of_the_lowest_makes_room_and_ends_once(limits: dict[str, int]) -> None:
    made = harness(**limits)  # type: ignore[arg-type]
    runs, older, newer, middle = (made.request(level=n) for n in (LOW, LOW, LOW, MIDDLE))
    high = made.request(level=HIGH)
    assert isinstance(made.answer(newer).error, ServiceBusy)
    with pytest.raises(ServiceBusy):
        made.request(level=LOW)
    made.request(level=HIGH)
    assert isinstance(made.answer(older).error, ServiceBusy)
    made.request(level=HIGH)
    assert isinstance(made.answer(middle).error, ServiceBusy)
    with pytest.raises(ServiceBusy):
        made.request(level=HIGH)
    assert not made.answers[runs.data_id], "what runs is not ended for others"
    assert not made.answers[high.data_id]
    now = made.engine.statistics()
    assert (now.admitted, now.replied, now.refused) == (7, 3, 2)


def test_a_request_that_the_end_of_the_shed_one_cancels_is_not_admitted() -> None:
    made = harness(most=2)
    made.request(level=HIGH)
    new = Submission(made.engine.graphs[0], {"level": HIGH})
    made.submit(lambda _: new.cancel(), level=LOW)
    made.engine.submit(new, lambda *_: pytest.fail("it was cancelled"))
    assert new.over
    assert made.engine.statistics().admitted == 2


def test_a_request_that_names_no_priority_it_may_have_is_refused() -> None:
    made = harness()

    def level_of(_: Submission) -> int:
        raise Undecodable("no such priority")

    made.engine.level_of = level_of
    with pytest.raises(Undecodable):
        made.request(level=HIGH)
    assert made.engine.statistics().refused == 1
