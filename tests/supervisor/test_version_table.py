"""A change of versions over several engines: all make it, or none."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.repository.served import Served, at_start
from penstock.supervisor.messages import (
    Abort,
    Change,
    Changed,
    Commit,
    Hold,
    Message,
    Prepare,
    Restore,
    Retire,
    Stale,
)
from penstock.supervisor.version_table import Sends, VersionTable


def about(version: str, name: str = "a") -> dict[str, Any]:
    return {"name": name, "version": version}


ONE = Served(name="a").with_version(at_start("a", "1"))
TWO = ONE.only(about("2"))
THREE = ONE.with_version(about("3"))
OTHER = Served(name="b").with_version(about("1", "b"))


def told(sends: Sends) -> set[tuple[Any, str]]:
    """The engines, and the names of the messages to them."""
    return {(engine, type(message).__name__) for engine, message in sends}


def begun(*engines: str, ended: bool = False) -> VersionTable:
    """A table whose first engine has requested version 2."""
    table = VersionTable({"a": ONE})
    sends = table.want(engines[0], Change(7, 0, TWO.plain(), ended), engines)
    assert {engine for engine, _ in sends} == {*engines}
    assert all(message == Prepare(1, TWO.plain()) for _, message in sends)
    return table


def test_engines_commit_when_all_are_ready_and_retire_the_old_when_all_have_committed() -> None:
    table = begun("x", "y")
    assert table.prepared("x", 1, None) == []
    assert table.changed == []
    assert sorted(table.prepared("y", 1, None)) == [("x", Commit(1)), ("y", Commit(1))]
    assert table.changed == [TWO]
    assert table.committed("y", 1) == []
    assert told(table.committed("x", 1)) == {("x", "Retire"), ("y", "Retire"), ("x", "Changed")}


def test_who_waits_for_the_end_of_the_old_is_answered_when_all_have_ended_them() -> None:
    table = begun("x", "y", ended=True)
    for each in "xy":
        table.prepared(each, 1, None)
    table.committed("x", 1)
    assert told(table.committed("y", 1)) == {("x", "Retire"), ("y", "Retire")}
    wanted = Change(8, 1, TWO.with_version(about("3")).plain())
    assert told(table.want("y", wanted, ["x", "y"])) == {("x", "Prepare"), ("y", "Prepare")}
    assert table.retired("y", 1) == []
    assert table.retired("x", 1) == [("x", Changed(7, None))]


def test_other_code_may_serve_while_requests_of_removed_versions_still_run() -> None:
    table = begun("x", ended=True)
    table.prepared("x", 1, None)
    assert table.is_changing
    assert told(table.committed("x", 1)) == {("x", "Retire")}
    assert not table.is_changing
    table.start_again([ONE])
    assert table.forget("x") == [("x", Changed(7, None))]
    assert (table.changed, table.retired("x", 1)) == ([TWO], [])


def test_no_engine_commits_if_one_cannot_make_the_version_ready() -> None:
    table = begun("x", "y", "z")
    table.prepared("y", 1, None)
    sends = table.prepared("z", 1, "no such file")
    assert told(sends) == {("x", "Abort"), ("y", "Abort"), ("x", "Changed")}
    assert ("x", Changed(7, "no such file")) in sends
    assert (table.changed, table.epoch) == ([], 0)
    again = Change(8, 0, TWO.plain())
    assert table.want("y", again, ["y"]) == [("y", Prepare(2, TWO.plain()))]
    assert table.prepared("y", 1, None) == []  # late, of the first change


def test_an_engine_that_ends_is_left_out_before_and_after_the_decision() -> None:
    table = begun("x", "y", "z")
    table.prepared("x", 1, None)
    table.prepared("y", 1, None)
    assert told(table.forget("z")) == {("x", "Commit"), ("y", "Commit")}
    table.committed("x", 1)
    assert told(table.forget("y")) == {("x", "Retire"), ("x", "Changed")}
    assert table.forget("x") == []


def test_an_engine_that_becomes_ready_before_the_decision_takes_part() -> None:
    table = begun("x")
    assert table.join("y", 0) == [("y", Prepare(1, TWO.plain()))]
    assert table.is_current("y")
    assert table.prepared("x", 1, None) == []
    assert told(table.prepared("y", 1, None)) == {("x", "Commit"), ("y", "Commit")}


def test_an_engine_that_becomes_ready_after_a_decision_has_it_before_it_serves() -> None:
    table = begun("x")
    table.prepared("x", 1, None)
    assert table.join("y", 0) == [("y", Prepare(2, TWO.plain()))]
    assert not table.is_current("y")
    table.committed("x", 1)
    table.want("x", Change(8, 1, TWO.with_version(about("3")).plain()), ["x"])  # the next one
    assert table.prepared("y", 2, None) == [("y", Commit(2))]
    assert told(table.committed("y", 2)) == {("y", "Retire"), ("y", "Prepare")}
    assert table.is_current("y")
    assert table.join("z", 1) == [("z", Prepare(3, TWO.with_version(about("3")).plain()))]


def test_an_engine_that_cannot_make_ready_what_the_others_serve_is_unfit() -> None:
    table = begun("x")
    table.prepared("x", 1, None)
    table.join("y", 0)
    assert table.prepared("y", 2, "no memory") == []
    assert table.unfit == {"y": "no memory"}
    assert not table.is_current("y")
    assert table.forget("y") == []
    assert table.unfit == {}


def test_a_change_of_another_name_runs_beside_it() -> None:
    table = begun("x")
    assert table.want("x", Change(8, 0, OTHER.plain()), ["x"]) == [("x", Prepare(2, OTHER.plain()))]
    assert table.prepared("x", 2, None) == [("x", Commit(2))]
    assert told(table.committed("x", 2)) == {("x", "Retire"), ("x", "Changed")}
    assert table.changed == [OTHER]
    assert table.prepared("x", 1, None) == [("x", Commit(1))]


def test_a_change_that_was_computed_from_an_older_state_is_to_be_computed_again() -> None:
    table = begun("x", "y")
    assert table.want("y", Change(1, 0, THREE.plain()), ["x", "y"]) == []  # it waits
    for each in "xy":
        table.prepared(each, 1, None)
    table.committed("x", 1)
    assert ("y", Stale(1, 1, TWO.plain())) in table.committed("y", 1)
    assert table.want("y", Change(2, 0, THREE.plain()), "xy") == [("y", Stale(2, 1, TWO.plain()))]
    both = TWO.with_version(about("3"))
    assert told(table.want("y", Change(3, 1, both.plain()), "xy")) == {
        ("x", "Prepare"),
        ("y", "Prepare"),
    }


def test_what_is_served_already_needs_no_change() -> None:
    table = VersionTable({"a": ONE})
    assert table.want("x", Change(7, 0, ONE.plain()), ["x"]) == [("x", Changed(7, None))]


def test_none_begins_before_an_engine_serves() -> None:
    assert told(VersionTable().want("y", Change(1, 0, TWO.plain()), [])) == {("y", "Changed")}


def test_a_change_whose_engines_all_end_is_over() -> None:
    table = begun("x")
    assert told(table.forget("x")) == {("x", "Changed")}
    again = Change(1, 0, TWO.plain())
    assert table.want("y", again, ["y"]) == [("y", Prepare(2, TWO.plain()))]


def held(*engines: str) -> VersionTable:
    """A table whose first engine has requested version 2, for which version 1 has ended."""
    table = VersionTable({"a": ONE})
    sends = table.want(engines[0], Change(7, 0, TWO.plain(), False, ["1"]), engines)
    assert {(engine, str(message)) for engine, message in sends} == {
        (each, str(Hold(1, "a", ["1"]))) for each in engines
    }
    sends = [each for engine in engines for each in table.held(engine, 1)]
    assert told(sends) == {(each, "Prepare") for each in engines}
    return table


def test_the_old_versions_end_in_all_engines_before_the_new_ones_are_made_ready() -> None:
    table = VersionTable({"a": ONE})
    table.want("x", Change(7, 0, TWO.plain(), False, ["1"]), "xy")
    assert table.held("x", 1) == []
    assert told(table.held("y", 1)) == {("x", "Prepare"), ("y", "Prepare")}
    assert table.prepared("x", 1, None) == []
    assert told(table.prepared("y", 1, None)) == {("x", "Commit"), ("y", "Commit")}
    table.committed("x", 1)
    assert told(table.committed("y", 1)) == {("x", "Retire"), ("y", "Retire"), ("x", "Changed")}
    assert table.changed == [TWO]


def test_the_old_versions_are_opened_again_in_all_engines_if_a_new_one_cannot_be() -> None:
    table = held("x", "y")
    assert told(table.prepared("x", 1, "no memory")) == {("x", "Restore"), ("y", "Restore")}
    assert table.prepared("y", 1, None) == []  # it has crossed the order
    assert table.restored("x", 1, None) == []
    why = "no memory; the version before serves again"
    assert table.restored("y", 1, None) == [("x", Changed(7, why))]
    assert (table.changed, table.is_changing) == ([], False)


def test_it_is_told_if_the_old_versions_cannot_be_opened_again() -> None:
    table = held("x")
    table.prepared("x", 1, "no memory")
    why = "no memory; the version before cannot be served any more, either: no file"
    assert table.restored("x", 1, "no file") == [("x", Changed(7, why))]


def test_an_engine_that_starts_while_versions_are_held_opens_none_of_them() -> None:
    table = held("x")
    assert table.changed == [Served(name="a")]
    assert table.join("y", table.epoch) == []
    assert not table.is_current("y")  # it waits for the end
    assert told(table.prepared("x", 1, "no memory")) == {("x", "Restore")}
    sends = table.restored("x", 1, None)
    assert told(sends) == {("x", "Changed"), ("y", "Prepare")}
    assert ("y", Prepare(2, ONE.plain())) in sends


def test_if_all_engines_end_their_successors_open_the_old_versions() -> None:
    table = held("x")
    epoch = table.epoch
    assert told(table.forget("x")) == {("x", "Changed")}
    assert table.join("y", epoch) == [("y", Prepare(2, ONE.plain()))]


def test_an_engine_has_what_was_decided_after_a_change_that_began_later() -> None:
    table = begun("x")
    table.want("x", Change(8, 0, OTHER.plain()), ["x"])
    table.prepared("x", 2, None)
    epoch = table.epoch  # of an engine that starts now
    table.prepared("x", 1, None)
    assert table.join("y", epoch) == [("y", Prepare(3, TWO.plain()))]


class Engine:
    """An engine of the model: what it serves, and the messages on their way to and from it."""

    def __init__(self, number: int, table: VersionTable) -> None:
        self.number = number
        self.epoch = table.epoch
        self.serves = False
        self.is_ready = False
        self.states = {each.name: each for each in table.changed}
        self.steps: dict[int, Served] = {}
        self.open: set[tuple[str | None, str]] = {
            (each.name, version) for each in table.changed for version in each.versions
        }
        self.ended: dict[int, tuple[str | None, list[str]]] = {}  # held versions, by change
        self.unfinished: deque[int] = deque()  # changes whose versions it makes ready
        self.inbox: deque[Message] = deque()
        self.outbox: deque[tuple[str, Any]] = deque()
        self.asked: dict[int, tuple[str, str, int, Served | None]] = {}
        self.known: dict[str | None, int] = {}

    def __repr__(self) -> str:
        return f"engine {self.number}"


class Service(RuleBasedStateMachine):
    """Engines that start, die and answer in any order, and operators at each of them, whose changes
    each add one version."""

    def __init__(self) -> None:
        super().__init__()
        self.table = VersionTable()
        self.engines: list[Engine] = []
        self.count = 0
        self.aborted: set[int] = set()
        self.committed: set[int] = set()
        self.acknowledged: set[tuple[str, str]] = set()  # names and versions
        self.replaced: set[tuple[str, str]] = set()
        for _ in range(2):
            self.start()
            self.become_ready(self.engines[-1])

    def tell(self, sends: Iterable[tuple[Engine, Message]]) -> None:
        for engine, message in sends:
            match message:
                case Commit(change):
                    self.committed.add(change)
                case Abort(change):
                    self.aborted.add(change)
                case Changed(number, None) if engine in self.engines:
                    name, version, _, _ = engine.asked[number]
                    self.acknowledged.add((name, version))
                    for each in self.engines:  # those that serve have it from now on
                        assert not each.serves or version in each.states[name].versions
            if engine in self.engines:
                engine.inbox.append(message)

    def become_ready(self, engine: Engine) -> None:
        engine.is_ready = True
        self.tell(self.table.join(engine, engine.epoch))
        self.let_serve(engine)

    def let_serve(self, engine: Engine) -> None:
        if engine.is_ready and not engine.serves and self.table.is_current(engine):
            engine.serves = True
            assert [*engine.states.values()] or not self.table.changed
            assert {**engine.states} == {each.name: each for each in self.table.changed}
            self.has_open_what_it_serves(engine)

    @staticmethod
    def has_open_what_it_serves(engine: Engine) -> None:
        for state in engine.states.values():
            assert {(state.name, version) for version in state.versions} <= engine.open

    def ask(self, engine: Engine, name: str, version: str, base: int, state: Any) -> None:
        now = state or Served(name=name)
        held: list[str] = []
        if version.startswith("r"):  # the default one ends before
            wanted = now.with_version(about(version, name), default=True)
            held = [] if now.default is None else [now.default]
            wanted = wanted if now.default is None else wanted.without_version(now.default)
            self.replaced |= {(name, each) for each in held}
        else:
            wanted = now.with_version(about(version, name))
        self.count += 1
        engine.asked[self.count] = name, version, base, state
        engine.outbox.append(("want", Change(self.count, base, wanted.plain(), False, held)))

    @rule()
    def start(self) -> None:
        if len(self.engines) < 4:
            self.count += 1
            self.engines.append(Engine(self.count, self.table))

    def some(self, data: st.DataObject, *conditions: str) -> Engine | None:
        found = [x for x in self.engines if all(getattr(x, each) for each in conditions)]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(data=st.data())
    def an_engine_becomes_ready(self, data: st.DataObject) -> None:
        found = [each for each in self.engines if not each.is_ready]
        if found:
            self.become_ready(data.draw(st.sampled_from(found)))

    @rule(data=st.data(), name=st.sampled_from("ab"), kind=st.sampled_from("vvr"))
    def an_operator_asks(self, data: st.DataObject, name: str, kind: str) -> None:
        engine = self.some(data, "serves")
        if engine is not None and len(engine.asked) < 5:
            base = engine.known.get(name, 0)
            self.ask(engine, name, f"{kind}{self.count}", base, engine.states.get(name))

    @rule(data=st.data())
    def an_engine_hears(self, data: st.DataObject) -> None:
        engine = self.some(data, "inbox")
        if engine is not None:
            self.hear(engine)

    def hear(self, engine: Engine) -> None:
        message = engine.inbox.popleft()
        match message:
            case Hold(change, of, versions):
                engine.ended[change] = of, [*versions]
                engine.open -= {(of, version) for version in versions}
                engine.outbox.append(("held", change))
            case Restore(change):
                engine.steps.pop(change, None)
                engine.unfinished = deque(each for each in engine.unfinished if each != change)
                of, versions = engine.ended.pop(change)
                engine.open |= {(of, version) for version in versions}
                engine.outbox.append(("restored", (change, None)))
            case Prepare(change, plain):
                engine.steps[change] = Served.of_plain(plain)
                engine.unfinished.append(change)
                of, versions = engine.ended.get(change, (None, []))
                for each in self.engines:  # they have ended in all of them
                    assert not each.serves or each.open.isdisjoint((of, x) for x in versions)
            case Commit(change):
                state = engine.steps[change]
                engine.ended.pop(change, None)
                engine.open = {each for each in engine.open if each[0] != state.name}
                engine.open |= {(state.name, version) for version in state.versions}
                engine.states[state.name] = state
                engine.known[state.name] = change
                engine.outbox.append(("committed", change))
            case Abort(change):
                engine.steps.pop(change, None)  # it may have reported a problem itself
                engine.unfinished = deque(each for each in engine.unfinished if each != change)
            case Retire(change):
                del engine.steps[change]
                engine.outbox.append(("retired", change))
            case Changed(number):
                del engine.asked[number]
            case Stale(number, base, plain):
                name, version, _, _ = engine.asked.pop(number)
                self.ask(engine, name, version, base, plain and Served.of_plain(plain))

    @rule(data=st.data(), problem=st.sampled_from((None, None, "broken")))
    def an_engine_has_prepared(self, data: st.DataObject, problem: str | None) -> None:
        engine = self.some(data, "unfinished")
        if engine is not None:
            self.finish(engine, problem)

    def finish(self, engine: Engine, problem: str | None) -> None:
        change = engine.unfinished.popleft()
        if problem is not None and change not in engine.ended:
            del engine.steps[change]
        engine.outbox.append(("prepared", (change, problem)))

    @rule(data=st.data())
    def the_supervisor_hears(self, data: st.DataObject) -> None:
        engine = self.some(data, "outbox")
        if engine is not None:
            self.handle(engine)

    def handle(self, engine: Engine) -> None:
        kind, content = engine.outbox.popleft()
        match kind:
            case "want":
                serving = [each for each in self.engines if each.serves]
                self.tell(self.table.want(engine, content, serving))
            case "held":
                self.tell(self.table.held(engine, content))
            case "restored":
                self.tell(self.table.restored(engine, *content))
            case "prepared":
                self.tell(self.table.prepared(engine, *content))
                if engine in self.table.unfit:
                    self.kill(engine)
            case "committed":
                self.tell(self.table.committed(engine, content))
                self.let_serve(engine)
            case "retired":
                self.tell(self.table.retired(engine, content))

    @rule(data=st.data())
    def an_engine_dies(self, data: st.DataObject) -> None:
        engine = self.some(data)
        if engine is not None:
            self.kill(engine)

    def kill(self, engine: Engine) -> None:
        self.engines.remove(engine)
        self.tell(self.table.forget(engine))

    @invariant()
    def no_change_is_made_by_one_engine_and_left_by_another(self) -> None:
        assert not self.committed & self.aborted

    @invariant()
    def nothing_that_was_acknowledged_is_lost(self) -> None:
        changed = {each.name: each for each in self.table.changed}
        for name, version in self.acknowledged - self.replaced:
            state = changed[name]
            assert version in state.versions or self.table.is_changing  # maybe all are held

    @precondition(lambda self: self.count % 5 == 0)
    @rule()
    def everything_comes_to_rest(self) -> None:
        """With nothing but good news every operator gets an answer, and all engines agree."""
        for _ in range(400):
            for engine in [*self.engines]:
                if not engine.is_ready:
                    self.become_ready(engine)
                while engine.inbox:
                    self.hear(engine)
                while engine.unfinished:
                    self.finish(engine, None)
                while engine.outbox and engine in self.engines:
                    self.handle(engine)
        changed = {each.name: each for each in self.table.changed}
        for engine in self.engines:
            assert engine.serves
            assert (engine.asked, engine.steps, engine.ended) == ({}, {}, {})
            assert engine.states == changed
            self.has_open_what_it_serves(engine)

    def teardown(self) -> None:
        self.everything_comes_to_rest()


TestService = Service.TestCase
TestService.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
