"""The rows: what is promised, that it can be measured, and the whole way with real processes."""

import dataclasses
from pathlib import Path

import orjson
import pytest

from benchmarks.__main__ import chosen, parse
from benchmarks.bodies import is_echo_json, is_echo_message, is_large_message, large_message
from benchmarks.runner import ScenarioRun
from benchmarks.scenarios import UVICORN, Contender, Load, Scenario, Target, all_scenarios, http
from penstock.protocols.pb import Request, Response


def scenario(name: str) -> Scenario:
    (found,) = chosen([name])
    return found


def test_the_promises_are_these() -> None:
    promised = {
        (each.name, *where): target
        for each in all_scenarios()
        for where, target in each.targets.items()
    }
    ratios = {where: target.ratio for where, target in promised.items() if target.ratio}
    assert ratios == {
        ("heads-http", "thread", "32, different heads"): 1.2,
        ("heads-http", "thread", "32, same heads"): 1.3,
        ("heads-http", "process", "32, same heads"): 0.85,
        ("heads-grpc", "thread", "8x4, different heads"): 8.0,
        ("heads-grpc", "thread", "8x4, same heads"): 10.0,
        ("heads-grpc", "process", "8x4, same heads"): 5.0,
        ("graph-ensemble", "no window", "32, different heads"): 0.95,
        ("graph-ensemble", "window of 2 ms", "32, different heads"): 0.95,
        ("graph-texts", "no window", "32, different heads"): 0.8,
        ("graph-texts", "window of 2 ms", "32, different heads"): 0.8,
        ("graph-ragged", "no window", "32, different heads"): 0.8,
        ("graph-ragged", "window of 2 ms", "32, different heads"): 0.8,
        ("graph-resnet50", "no window", "16, different heads"): 0.97,
        ("typed-echo", "typed, one request", "32, different heads"): 2.5,
        ("typed-echo", "typed, batch of 32", "32, different heads"): 2.5,
        ("typed-regress-json", "typed", "32, different heads"): 1.2,
        ("typed-regress-msgpack", "typed", "32, different heads"): 1.2,
        ("large-grpc", "thread", "1, same heads"): 1.0,
        ("large-grpc", "thread", "2, same heads"): 1.0,
        ("workers", "process x2", "4, same heads"): 1.8,
        ("client", "futures", "1x32, same heads"): 3.0,
        ("client", "asyncio", "1x32, same heads"): 3.0,
    }
    others = {where[:2]: target for where, target in promised.items() if not target.ratio}
    assert others == {
        ("one-http", "thread"): Target(later_ms=0.1),
        ("one-http", "process"): Target(later_ms=0.15),
        ("one-grpc", "thread"): Target(p50=0.5),
        ("array", "2 process ops"): Target(cpu_ms=0.7, later_ms=0.7),
        ("ops", "3 ops"): Target(cpu_ms=0.016),
    }


def test_every_target_belongs_to_a_measured_row_and_every_row_can_be_judged() -> None:
    for each in all_scenarios():
        rows = {(ours.name, load.label) for ours in each.ours for load in each.loads}
        assert set(each.targets) <= rows
        assert (each.is_right is None) == (each.graph is not None)
        assert each.floor.server or each.graph


def test_echoes_must_come_back_as_they_were_sent() -> None:
    asked = orjson.loads(scenario("heads-http").messages()[0])
    answer = {"err_no": 0, "err_msg": "", **asked, "tensors": []}
    assert is_echo_json(orjson.dumps(answer))
    assert not is_echo_json(orjson.dumps({**answer, "value": ["?"]}))
    assert is_echo_message(Response(key=asked["key"], value=asked["value"]).SerializeToString())
    assert not is_echo_message(Response(err_no=3004).SerializeToString())
    large = Request.FromString(large_message())
    right = Response(key=large.key, value=large.value)
    assert is_large_message(right.SerializeToString())
    right.value[0] = right.value[0][:-1]
    assert not is_large_message(right.SerializeToString())


def test_scenarios_are_chosen_by_how_their_names_begin() -> None:
    assert [each.name for each in chosen(["heads"])] == ["heads-http", "heads-grpc"]
    assert len(chosen(None)) == len(all_scenarios())
    for wrong in (["--only", "nothing-like-it"], ["--rounds", "0"]):
        with pytest.raises(SystemExit):
            parse(wrong)
    assert parse(["--only", "heads", "--seconds", "0.2"]).seconds == 0.2


def brief(name: str, *names: str, load: Load | None = None) -> Scenario:
    """A scenario with these contenders only, and one load."""
    found = scenario(name)
    ours = tuple(each for each in found.ours if each.name in names)
    return dataclasses.replace(found, ours=ours, loads=(load or found.loads[0],), seconds=1.0)


@pytest.mark.real
@pytest.mark.parametrize(
    "measured",
    [
        brief("heads-http", "thread", load=http(2, "different")),
        brief("heads-grpc", "process"),
        brief("graph-texts", "window of 2 ms"),
        brief("engines", "2 engines"),
        brief("array", "2 process ops"),
        brief("client", "futures"),
    ],
    ids=lambda each: each.name,
)
def test_a_scenario_gives_a_row_for_each_contender(measured: Scenario, tmp_path: Path) -> None:
    told: list[str] = []
    (row,) = ScenarioRun(measured, tmp_path, rounds=1, seconds=0.1).run(told.append)
    assert row.failure is None
    assert row.summary is not None
    assert row.summary.rate > 0
    assert told[-1].endswith("round 1")


@pytest.mark.real
def test_a_contender_that_answers_wrongly_or_not_at_all_is_a_failed_row(tmp_path: Path) -> None:
    twin = dataclasses.replace(UVICORN, name="twin")
    missing = Contender(name="missing", server="no_such_server")
    echo = dataclasses.replace(brief("heads-http", load=http(2)), ours=(twin, missing))
    right, failed = ScenarioRun(echo, tmp_path, rounds=1, seconds=0.1).run(lambda text: None)
    assert right.failure is None
    assert "no_such_server" in str(failed.failure)
    wrong = dataclasses.replace(echo, ours=(twin,), is_right=lambda answer: False)
    (failed,) = ScenarioRun(wrong, tmp_path, rounds=1, seconds=0.1).run(lambda text: None)
    assert "wrong answer" in str(failed.failure)
