"""The scenarios: their targets, their checks of answers, and short runs with real processes."""

import dataclasses
from pathlib import Path

import orjson
import pytest

from benchmarks.__main__ import chosen
from benchmarks.bodies import is_echo_json, is_echo_message, is_large_message, large_message
from benchmarks.runner import ScenarioRun
from benchmarks.scenarios import UVICORN, Contender, Load, Scenario, all_scenarios, http
from penstock.protocols.pb import Request, Response


def scenario(name: str) -> Scenario:
    (found,) = chosen([name])
    return found


def test_every_target_has_a_measured_row_and_every_row_a_check_of_answers() -> None:
    for each in all_scenarios():
        rows = {(ours.name, load.label) for ours in each.ours for load in each.loads}
        assert set(each.targets) <= rows
        assert (each.is_right is None) == (each.graph is not None)
        assert each.floor.server or each.graph


def test_an_echo_is_right_only_when_equal_to_its_request() -> None:
    request = orjson.loads(scenario("heads-http").messages()[0])
    answer = {"err_no": 0, "err_msg": "", **request, "tensors": []}
    assert is_echo_json(orjson.dumps(answer))
    assert not is_echo_json(orjson.dumps({**answer, "value": ["?"]}))
    assert is_echo_message(Response(key=request["key"], value=request["value"]).SerializeToString())
    assert not is_echo_message(Response(err_no=3004).SerializeToString())
    large = Request.FromString(large_message())
    right = Response(key=large.key, value=large.value)
    assert is_large_message(right.SerializeToString())
    right.value[0] = right.value[0][:-1]
    assert not is_large_message(right.SerializeToString())


def reduced(name: str, *names: str, load: Load | None = None) -> Scenario:
    """A scenario with these contenders only, and one load."""
    found = scenario(name)
    ours = tuple(each for each in found.ours if each.name in names)
    return dataclasses.replace(found, ours=ours, loads=(load or found.loads[0],), seconds=1.0)


@pytest.mark.real
@pytest.mark.parametrize(
    "measured",
    [
        reduced("heads-http", "thread", load=http(2, "different")),
        pytest.param(reduced("heads-grpc", "process"), marks=pytest.mark.long, id="heads-grpc"),
        pytest.param(
            reduced("graph-texts", "window of 2 ms"), marks=pytest.mark.long, id="graph-texts"
        ),
        pytest.param(reduced("engines", "2 engines"), marks=pytest.mark.long, id="engines"),
        pytest.param(reduced("array", "2 process ops"), marks=pytest.mark.long, id="array"),
        reduced("client", "futures"),
    ],
    ids=lambda each: each.name,
)
def test_a_scenario_has_a_row_for_each_contender(measured: Scenario, tmp_path: Path) -> None:
    progress: list[str] = []
    (row,) = ScenarioRun(measured, tmp_path, rounds=1, seconds=0.1).run(progress.append)
    assert row.failure is None
    assert row.summary is not None
    assert row.summary.rate > 0
    assert progress[-1].endswith("round 1")


@pytest.mark.real
def test_a_contender_with_wrong_answers_or_none_is_a_failed_row(tmp_path: Path) -> None:
    copy = dataclasses.replace(UVICORN, name="twin")
    missing = Contender(name="missing", server="no_such_server")
    echo = dataclasses.replace(reduced("heads-http", load=http(2)), ours=(copy, missing))
    right, failed = ScenarioRun(echo, tmp_path, rounds=1, seconds=0.1).run(lambda text: None)
    assert right.failure is None
    assert "no_such_server" in str(failed.failure)
    wrong = dataclasses.replace(echo, ours=(copy,), is_right=lambda answer: False)
    (failed,) = ScenarioRun(wrong, tmp_path, rounds=1, seconds=0.1).run(lambda text: None)
    assert "wrong answer" in str(failed.failure)
