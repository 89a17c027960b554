"""A change of version over several engines: all make it, or none."""

from __future__ import annotations

from random import Random
from typing import Any

from penstock.supervisor.messages import Abort, Changed, Commit, Prepare, Retire
from penstock.supervisor.version_table import Sends, VersionTable

TWO = {"name": "a", "version": "2"}


def told(sends: Sends) -> set[tuple[Any, str]]:
    """The engines, and the names of the messages to them."""
    return {(engine, type(message).__name__) for engine, message in sends}


def begun(*engines: str) -> VersionTable:
    """A table whose first engine has requested version 2."""
    table = VersionTable()
    sends = table.want(engines[0], 7, TWO, engines)
    assert {engine for engine, _ in sends} == {*engines}
    assert all(message == Prepare(1, TWO) for _, message in sends)
    return table


def test_engines_commit_when_all_are_ready_and_retire_the_old_when_all_have_committed() -> None:
    table = begun("x", "y")
    assert table.prepared("x", 1, None) == []
    assert table.descriptions == []
    assert sorted(table.prepared("y", 1, None)) == [("x", Commit(1)), ("y", Commit(1))]
    assert table.descriptions == [TWO]
    assert table.committed("y", 1) == []
    assert told(table.committed("x", 1)) == {("x", "Retire"), ("y", "Retire"), ("x", "Changed")}


def test_no_engine_commits_if_one_cannot_make_the_version_ready() -> None:
    table = begun("x", "y", "z")
    table.prepared("y", 1, None)
    sends = table.prepared("z", 1, "no such file")
    assert told(sends) == {("x", "Abort"), ("y", "Abort"), ("x", "Changed")}
    assert ("x", Changed(7, "no such file")) in sends
    assert (table.descriptions, table.epoch) == ([], 0)
    assert table.want("y", 8, TWO, ["y"]) == [("y", Prepare(2, TWO))]
    assert table.prepared("y", 1, None) == []  # late, of the first change


def test_an_engine_that_ends_is_left_out_before_and_after_the_decision() -> None:
    table = begun("x", "y", "z")
    table.prepared("x", 1, None)
    table.prepared("y", 1, None)
    assert told(table.forget("z")) == {("x", "Commit"), ("y", "Commit")}
    table.committed("x", 1)
    assert told(table.forget("y")) == {("x", "Retire"), ("x", "Changed")}
    assert table.forget("x") == []


def test_an_engine_that_becomes_ready_takes_part_until_the_decision() -> None:
    table = begun("x")
    assert table.join("y") == [("y", Prepare(1, TWO))]
    assert table.prepared("x", 1, None) == []
    assert told(table.prepared("y", 1, None)) == {("x", "Commit"), ("y", "Commit")}
    before = table.epoch
    assert table.join("z") == []
    assert before != 0  # by which the supervisor knows that z does not have the version


def test_a_second_change_waits_for_its_caller_and_none_begins_before_an_engine_serves() -> None:
    table = begun("x", "y")
    why = "another version is being made ready: try again later"
    assert table.want("y", 1, TWO, ["x", "y"]) == [("y", Changed(1, why))]
    assert told(VersionTable().want("y", 1, TWO, [])) == {("y", "Changed")}


def test_a_change_whose_engines_all_end_is_over() -> None:
    table = begun("x")
    assert told(table.forget("x")) == {("x", "Changed")}
    assert table.want("y", 1, TWO, ["y"]) == [("y", Prepare(2, TWO))]


def test_whatever_happens_no_engine_serves_a_version_that_another_one_was_told_to_remove() -> None:
    for seed in range(500):
        random = Random(seed)
        engines = list("vwxyz"[: random.randint(1, 5)])
        table = VersionTable()
        heard: dict[str, list[Any]] = {each: [] for each in "vwxyz"}

        def deliver(sends: Sends, heard: dict[str, list[Any]] = heard) -> None:
            for engine, message in sends:
                heard[engine].append(message)

        deliver(table.want(engines[0], 1, TWO, engines))
        for _ in range(30):
            engine = random.choice("vwxyz")
            match random.randrange(12):
                case 0:
                    deliver(table.forget(engine))
                    heard[engine].clear()
                case 1 if engine not in engines:
                    deliver(table.join(engine))
                case 2 if Prepare(1, TWO) in heard[engine]:
                    deliver(table.prepared(engine, 1, "broken"))
                case 3 | 4 | 5 | 6 if Prepare(1, TWO) in heard[engine]:
                    deliver(table.prepared(engine, 1, None))
                case _ if Commit(1) in heard[engine]:
                    deliver(table.committed(engine, 1))
        messages = [each for some in heard.values() for each in some]
        assert not (Commit(1) in messages and Abort(1) in messages)
        assert Retire(1) not in messages or Abort(1) not in messages
        assert messages.count(Changed(1, None)) <= 1
        assert (table.descriptions == [TWO]) == (table.epoch == 1)
