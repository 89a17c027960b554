"""Requests to all engines: when they are complete, and their replies."""

from __future__ import annotations

import os
import tempfile

from penstock.supervisor.queries import LATE, Queries


def file() -> int:
    with tempfile.TemporaryFile() as made:
        return os.dup(made.fileno())


def closed(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return True
    return False


def test_a_request_is_complete_with_all_replies_or_ended_engines_or_at_its_deadline() -> None:
    questions = Queries()
    number = questions.ask("a", 7, 3.0, ["b", "c", "d"], 10.0)
    assert questions.ready(10.5) == []
    first, again = file(), file()
    questions.take("b", number, first)
    questions.take("b", number, again)  # a second reply is ignored
    assert closed(again)
    questions.forget("c")
    assert questions.ready(10.5) == []
    assert questions.due == 13.0 + LATE
    (answered,) = questions.ready(13.0 + LATE)
    assert (answered.asker, answered.number, answered.answers) == ("a", 7, [first])
    assert not closed(first)
    answered.close()
    assert closed(first)
    late = file()
    questions.take("d", number, late)
    assert closed(late)


def test_replies_to_an_engine_that_has_ended_are_closed() -> None:
    questions = Queries()
    number = questions.ask("a", 8, 0.0, ["b", "c"], 20.0)
    answer = file()
    questions.take("b", number, answer)
    questions.forget("a")
    assert closed(answer)
    assert questions.ready(30.0) == []
