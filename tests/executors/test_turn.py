"""One turn of a worker: the batches that it runs, and those that it leaves for the next turn."""

from typing import Any

from penstock.executors.executor import Work
from penstock.executors.local import take_turn
from penstock.executors.work import BoundOp, WorkOptions
from tests.executors.harness import BodyOp, batch_of


def echo(feed: dict[str, Any]) -> dict[str, Any]:
    return feed


def bound(body: Any = echo, hand_over: float = 60.0) -> BoundOp:
    return BoundOp(BodyOp(body), None, WorkOptions(hand_over=hand_over))


def test_all_batches_run_in_order() -> None:
    batches = [batch_of(1, 2), batch_of(3)]
    work = Work(batches)
    take_turn(bound(), work)
    assert [batch for batch, _ in work.take_results()] == batches
    assert (list(work.pending), work.current) == ([], None)


def test_no_further_batch_begins_once_the_turn_is_over() -> None:
    first, second = batch_of(1), batch_of(2)
    work = Work([first, second])
    take_turn(bound(hand_over=1e-9), work)
    assert [batch for batch, _ in work.take_results()] == [first]
    assert (list(work.pending), work.current) == ([second], None)


def test_results_can_be_taken_while_the_next_batch_runs() -> None:
    first, second = batch_of(1), batch_of(2)
    work = Work([first, second])
    taken: list[Any] = []
    running: list[Any] = []

    def take(feed: dict[str, Any]) -> dict[str, Any]:
        running.append(work.current)
        taken.extend(batch for batch, _ in work.take_results())
        return feed

    take_turn(bound(take), work)
    assert running == [first, second]
    assert taken == [first]
    assert [batch for batch, _ in work.take_results()] == [second]


def test_batches_taken_back_while_another_runs_do_not_begin() -> None:
    first, second = batch_of(1), batch_of(2)
    work = Work([first, second])
    back: list[Any] = []

    def take_back(feed: dict[str, Any]) -> dict[str, Any]:
        back.extend(work.take_back())
        return feed

    take_turn(bound(take_back), work)
    assert [batch for batch, _ in work.take_results()] == [first]
    assert back == [second]
