"""The timeline of swaps: one engine's records, and those of several engines as one."""

from __future__ import annotations

from itertools import count

from penstock.observe.reports import total, with_ended
from penstock.observe.swaps import MOST, OTHERS, Swaps, merged, unresolved


def swaps() -> Swaps:
    """Swaps whose clock goes on by a second at each look."""
    seconds = count(100)
    return Swaps(lambda: float(next(seconds)))


def test_a_swap_that_was_begun_goes_on_when_the_engines_prepare_it() -> None:
    found = swaps()
    begun = found.begin("m", "2")
    begun.passed("fetched")
    assert found.prepare(7, "m", ["2"]) is begun
    assert found.prepare(8, "n", ["2"]) is not begun
    begun.passed("swapped")
    begun.done()
    first, second = found.report()["swaps"]
    assert first == {
        "model": "m", "versions": ["2"], "ends": [], "change": 7, "began": 100.0,
        "steps": {"fetched": 101.0, "swapped": 103.0}, "state": "done", "why": "", "serves": "",
        "tries": 1,
    }  # fmt: skip
    assert (second["model"], second["state"]) == ("n", "running")
    assert found.prepare(9, "m", ["2"]) is not begun


def test_the_latest_swaps_are_remembered_and_those_that_run() -> None:
    found = swaps()
    slow = found.begin("slow", "1")
    for number in range(200):
        found.prepare(number + 1, "m", [str(number)]).done()
    kept = found.report()["swaps"]
    assert len(kept) == MOST
    assert kept[0] == slow.plain()
    assert kept[-1]["versions"] == ["199"]


def test_a_failure_that_comes_again_is_one_entry() -> None:
    found = swaps()
    for why in ("no answer", "no answer", "no room", "no answer"):
        found.fail(found.begin("m", "2"), why)
    found.fail(found.begin("m", "3"), "no answer")
    shown = [(x["versions"], x["why"], x["tries"]) for x in found.report()["swaps"]]
    assert shown == [(["2"], "no room", 1), (["2"], "no answer", 3), (["3"], "no answer", 1)]


def test_the_end_of_a_swap_stays() -> None:
    found = swaps()
    swap = found.begin("m", "2")
    swap.done()
    found.fail(swap, "too late")
    assert (swap.state, swap.why) == ("done", "")


def test_loads_are_counted_by_outcome_in_bounded_memory() -> None:
    found = swaps()
    for number in range(1100):
        found.count(f"m{number}", "served")
    found.count("m0", "start")
    found.count(None, "served")
    loads = {each["name"]: each["outcomes"] for each in found.report()["loads"]}
    assert len(loads) == 1001
    assert loads["m0"] == {"served": 1, "start": 1}
    assert loads[OTHERS] == {"served": 101}


def test_the_steps_of_a_swap_are_over_when_the_last_engine_has_done_them() -> None:
    loader, other = swaps(), swaps()
    begun = loader.begin("m", "2")
    begun.passed("fetched")
    loader.prepare(3, "m", ["2"]).passed("opened")
    late = other.prepare(3, "m", ["2"])
    for _ in range(5):
        late.passed("opened")
    late.ends, late.serves = ["1"], "version 2"
    begun.done()
    (one,) = merged([*other.report()["swaps"], *loader.report()["swaps"]])
    assert one["steps"] == {"fetched": 101.0, "opened": 105.0}
    assert (one["state"], one["ends"], one["serves"]) == ("running", ["1"], "version 2")


def test_a_swap_has_failed_if_one_engine_says_so_and_why() -> None:
    loader, other = swaps(), swaps()
    loader.begin("m", "2").passed("fetched")
    loader.fail(loader.prepare(3, "m", ["2"]), "")
    other.fail(other.prepare(3, "m", ["2"]), "no memory")
    (one,) = merged([*loader.report()["swaps"], *other.report()["swaps"]])
    assert (one["state"], one["why"]) == ("failed", "no memory")
    (one,) = unresolved([one])
    other.prepare(4, "m", ["3"]).done()
    assert unresolved(merged([one, *other.report()["swaps"]])) == []


def test_failures_before_a_change_of_two_engines_stay_apart() -> None:
    one, other = swaps(), swaps()
    other.begin("n", "1")
    for each in (one, other):
        each.fail(each.begin("m", "2"), "no answer")
    assert len(merged([*one.report()["swaps"], *other.report()["swaps"]])) == 3


def test_loads_of_ended_engines_stay_counted_and_their_swaps_do_not() -> None:
    one, other = swaps(), swaps()
    one.count("m", "served")
    one.prepare(1, "m", ["1"]).done()
    parts = {"graphs": [], "requests": {}}
    ended = with_ended(None, {"ready": True, **parts, **one.report()})
    summed = total([{"ready": True, **parts, **other.report()}, ended])
    assert summed["loads"] == [{"name": "m", "outcomes": {"served": 1}}]
    assert summed["swaps"] == []
