"""Queries to all engines: when they are complete, and their answers."""

from __future__ import annotations

import json
from typing import Any

from penstock.observe.history import MOST_BYTES, POINTS
from penstock.observe.reports import total
from penstock.supervisor.messages import Answer, Answers, Ask
from penstock.supervisor.queries import LATE, AllEngines, Queries
from tests.observe.test_reports import report_of_one_engine


def test_a_query_is_complete_with_all_answers_or_ended_engines_or_at_its_deadline() -> None:
    queries = Queries()
    number = queries.ask("a", Ask(7, "", 3.0, False), ["b", "c", "d"], 10.0)
    assert queries.ready(10.5) == []
    queries.take("b", Answer(number, False, b"1"))
    queries.take("b", Answer(number, False, b"2"))  # a second answer is ignored
    queries.forget("c")
    assert queries.ready(10.5) == []
    assert queries.due == 13.0 + LATE
    assert queries.ready(13.0 + LATE) == [("a", Answers(7, b"[1]"))]
    queries.take("d", Answer(number, False, b"3"))  # too late
    number = queries.ask("a", Ask(8, "", 0.0, False), ["b", "d"], 20.0)
    queries.take("d", Answer(number, False, b"4"))
    queries.take("b", Answer(number, False, b"5"))
    assert queries.ready(20.0) == [("a", Answers(8, b"[4,5]"))]
    assert queries.due is None


def test_a_query_of_an_engine_that_has_ended_is_forgotten() -> None:
    queries = Queries()
    number = queries.ask("a", Ask(8, "", 0.0, False), ["b", "c"], 20.0)
    queries.take("b", Answer(number, False, b"1"))
    queries.forget("a")
    assert queries.ready(30.0) == []


REPORT = json.dumps(report_of_one_engine()).encode()


def sum_of(queries: Queries, asker: str, others: list[str]) -> Any:
    """The sum of reports that the asker gets, if none of the others answers."""
    queries.take(asker, Answer(0, True, REPORT))
    queries.ask(asker, Ask(1, "", 0.0, True), others, 0.0)
    ((to, answers),) = queries.ready(LATE)
    assert (to, answers.number) == (asker, 1)
    return total(json.loads(answers.answers))


def test_counts_of_silent_and_ended_engines_stay_in_the_sum() -> None:
    queries = Queries()
    queries.take("a", Answer(0, True, REPORT))
    queries.take("b", Answer(queries.ask("a", Ask(1, "", 0.0, True), ["b"], 0.0), True, REPORT))
    assert len(queries.ready(0.0)) == 1
    summed = sum_of(queries, "a", ["b"])  # b does not report
    assert (summed["requests"]["admitted"], summed["graphs"][0]["inside"]) == (10, 2)
    queries.take("b", Answer(0, True, REPORT))  # its final report
    queries.forget("b")
    summed = sum_of(queries, "a", ["c"])
    assert (summed["engines"], summed["engines_ended"]) == (1, 1)
    assert summed["requests"]["admitted"] == 10
    (graph,) = summed["graphs"]
    assert (graph["inside"], graph["ops"][0]["workers"], graph["ops"][0]["batches"]) == (1, 2, 6)
    queries.forget("c")  # it has never reported
    queries.forget("a")
    summed = sum_of(queries, "d", [])
    assert (summed["requests"]["admitted"], summed["engines_ended"]) == (15, 3)


def test_a_late_report_is_kept_for_the_next_sum() -> None:
    queries = Queries()
    number = queries.ask("a", Ask(1, "", 0.0, True), ["b"], 0.0)
    assert len(queries.ready(LATE)) == 1
    queries.take("b", Answer(number, True, REPORT))
    assert sum_of(queries, "a", ["b"])["engines"] == 2


def test_no_point_is_encoded_without_a_supervisor() -> None:
    AllEngines({}).keep(1, {"graphs": object()})


def test_the_history_of_ended_engines_is_kept_in_bounded_memory() -> None:
    queries = Queries()
    queries.keep("a", 1, b"[1,{}]")
    queries.keep("b", 1, b"[1,{}]")
    assert json.loads(queries.past(-1)) == []
    queries.forget("a")
    queries.forget("a")
    assert json.loads(queries.past(-1)) == [[1, {}]]
    for number in range(2 * POINTS):
        queries.keep("b", number, b"[%d,{}]" % number)
    queries.forget("b")
    numbers = [number for number, _ in json.loads(queries.past(-1))]
    assert numbers == [*range(POINTS, 2 * POINTS)]
    queries.keep("c", 3 * POINTS - 3, b"[%d,{}]" % (3 * POINTS - 3))
    assert json.loads(queries.past(2 * POINTS - 2)) == [[2 * POINTS - 1, {}]]
    assert json.loads(queries.past(-1)) == [[2 * POINTS - 2, {}], [2 * POINTS - 1, {}]]
    for engine in ("c", "d"):
        for number in range(10):
            queries.keep(engine, number, b'[%d,"%s"]' % (number, b"x" * (MOST_BYTES // 4)))
    queries.forget("c")
    queries.forget("d")
    assert len(queries.past(-1)) < MOST_BYTES
    assert [number for number, _ in json.loads(queries.past(-1))] == [7, 8, 9]
