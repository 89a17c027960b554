"""The whole way with real processes: the floor measured against itself."""

import dataclasses
from pathlib import Path

import orjson
import pytest

from benchmarks.__main__ import chosen, hop_chosen, parse
from benchmarks.results import Row, machine_facts, table_of, to_json
from benchmarks.rounds import Summary, Target
from benchmarks.run import ScenarioRun
from benchmarks.scenario import Contender, Load, Scenario
from benchmarks.scenarios import all_scenarios


def floor_against_itself() -> Scenario:
    (echo,) = chosen(["http-echo"])
    twin = Contender(name="twin", server="floor_http", protocols=("http",))
    load = Load(protocol="http", connections=2)
    return dataclasses.replace(
        echo,
        ours=(twin,),
        loads=(load,),
        programs=False,
        # Kept also where windows of a tenth of a second are cut by whoever else has the cores.
        targets={("twin", load.label): Target(throughput=0.001, p50=1000.0)},
    )


@pytest.mark.real
def test_a_scenario_gives_a_row_for_each_contender(tmp_path: Path) -> None:
    run = ScenarioRun(floor_against_itself(), tmp_path, rounds=2, seconds=0.1)
    ticks: list[str] = []
    floor, twin = run.run(ticks.append)
    assert len(ticks) == run.measurements == 4
    assert floor.failure is None
    assert twin.failure is None
    assert floor.is_floor
    assert twin.summary is not None
    assert twin.summary.rounds == 2
    assert 0 < twin.summary.ratio_min <= twin.summary.ratio <= twin.summary.ratio_max
    assert floor.summary is not None
    assert floor.summary.ratio == 1.0
    assert twin.meets_target
    assert table_of("title", [floor, twin]).row_count == 2
    document = orjson.loads(to_json([floor, twin], [], {"seconds": 0.1}, machine_facts()))
    assert [row["contender"] for row in document["rows"]] == ["uvicorn", "twin"]


@pytest.mark.real
def test_a_contender_that_answers_wrongly_or_not_at_all_is_a_failed_row(tmp_path: Path) -> None:
    scenario = floor_against_itself()
    wrong = dataclasses.replace(scenario, right=lambda body, models: False)
    rows = ScenarioRun(wrong, tmp_path, rounds=1, seconds=0.1).run(lambda what: None)
    assert all("wrong answer" in str(row.failure) for row in rows)
    missing = dataclasses.replace(scenario.ours[0], server="no_such_server")
    run = ScenarioRun(
        dataclasses.replace(scenario, ours=(missing,)), tmp_path, rounds=1, seconds=0.1
    )
    floor, twin = run.run(lambda what: None)
    assert floor.summary is not None
    assert "no_such_server" in str(twin.failure)
    assert twin.summary is None
    assert table_of("title", [floor, twin]).row_count == 2


@pytest.mark.real
def test_a_client_is_measured_beside_the_grpc_package(tmp_path: Path) -> None:
    (scenario,) = chosen(["client-calls"])
    futures = [ours for ours in scenario.ours if ours.name == "futures"]
    scenario = dataclasses.replace(scenario, ours=tuple(futures))
    floor, ours = ScenarioRun(scenario, tmp_path, rounds=1, seconds=0.1).run(lambda what: None)
    assert floor.failure is ours.failure is None
    assert ours.summary is not None
    assert ours.summary.rps > 0
    assert ours.summary.cpu_s_per_1000 > 0
    assert ours.target == Target(throughput=3.0)


@pytest.mark.real
def test_two_engines_and_bare_loops_are_measured_on_every_core(tmp_path: Path) -> None:
    (echo,) = chosen(["engines-grpc-echo"])
    floor, ours = ScenarioRun(echo, tmp_path, rounds=1, seconds=0.1).run(lambda what: None)
    assert floor.failure is ours.failure is None
    assert ours.summary is not None
    assert ours.summary.cpu_s_per_1000 > 0
    assert ours.summary.ceiling > 0
    log = tmp_path / "run" / echo.name / "enginesx2" / "server.log"
    assert "2 engines" in log.read_text()

    (compute,) = chosen(["compute"])
    bare = [ours for ours in compute.ours if ours.loop == "compute_loop"]
    compute = dataclasses.replace(compute, ours=tuple(bare), patience=1.0)
    floor, ours = ScenarioRun(compute, tmp_path, rounds=1, seconds=0.2).run(lambda what: None)
    assert floor.failure is ours.failure is None
    assert ours.summary is not None
    assert ours.summary.rps > 0


def row_with(target: Target, *, floor_generator: float, ceiling: float = 0.0) -> Row:
    summary = Summary(
        ceiling=ceiling,
        rounds=1,
        rps=100.0,
        p50_us=400.0,
        p99_us=900.0,
        cpu_s_per_1000=0.012,
        ratio=2.0,
        ratio_min=2.0,
        ratio_max=2.0,
        p50_ratio=0.7,
        cpu_ratio=1.1,
        generator=0.2,
        floor_generator=floor_generator,
    )
    return Row(
        scenario="s",
        title="t",
        load="1 conn",
        contender="thread",
        is_floor=False,
        target=target,
        summary=summary,
    )


def shown(row: Row) -> list[str]:
    return [str(next(iter(column.cells))) for column in table_of("title", [row]).columns]


def test_the_table_says_which_promise_was_kept_and_when_to_doubt_that() -> None:
    *_, p50_ratio, _, note = shown(row_with(Target(p50=0.5), floor_generator=0.2))
    assert (p50_ratio, note) == ("0.700", "p50 <= 0.5 MISSED")
    note = shown(row_with(Target(throughput=2.0), floor_generator=0.97))[-1]
    assert note == ">= 2 met, floor's generator at 97%"
    note = shown(row_with(Target(throughput=2.1), floor_generator=0.2, ceiling=2.04))[-1]
    assert note == ">= 2.1 MISSED, at most 2.04 beside the client"


def test_the_promises_are_these() -> None:
    promised = {
        (f"{scenario.name}{' same' * ('same' in load)}", contender): str(target)
        for scenario in all_scenarios()
        for (contender, load), target in scenario.targets.items()
        if str(target) != "p50 <= 0.5"
    }
    assert promised == {
        ("heads-http", "thread"): ">= 1.2",
        ("heads-http same", "thread"): ">= 1.3",
        ("heads-grpc", "thread"): ">= 8",
        ("heads-grpc same", "thread"): ">= 10",
        ("http-echo", "thread"): ">= 1.3",
        ("http-echo", "process"): ">= 1",
        ("grpc-echo", "thread"): ">= 10",
        ("grpc-echo", "process"): ">= 7",
        ("grpc-large", "thread"): ">= 1",
        ("door-grpc", "door"): ">= 0.8",
        ("door-http", "door"): ">= 0.8",
        ("compute", "process x2"): ">= 1.8",
        ("client-calls", "futures"): ">= 3",
        ("client-calls", "asyncio"): ">= 3",
        ("resnet50-b1", "thread"): ">= 0.97",
        ("resnet50-b8", "thread, batch 8"): ">= 0.97",
    }
    (echo,) = chosen(["grpc-echo"])
    assert echo.targets["thread", "1x1 calls"] == Target(p50=0.5)


def test_every_target_belongs_to_a_measured_row() -> None:
    loops = ("compute_loop", "copy_loop")
    for scenario in all_scenarios():
        rows = {(ours.name, load.label) for ours in scenario.ours for load in scenario.loads}
        assert set(scenario.targets) <= rows
        assert scenario.body()
        protocols = {load.protocol for load in scenario.loads}
        for contender in (scenario.floor, *scenario.ours):
            assert contender.server is None or protocols <= set(contender.protocols)
            assert contender.server or contender.models or contender.loop in loops


def test_scenarios_are_chosen_by_how_their_names_begin() -> None:
    assert [scenario.name for scenario in chosen(["resnet50"])] == ["resnet50-b1", "resnet50-b8"]
    assert len(chosen(None)) == len(all_scenarios())
    assert hop_chosen(None)
    assert hop_chosen(["hop"])
    assert not hop_chosen(["http"])
    with pytest.raises(SystemExit):
        parse(["--only", "nothing-like-it"])
    with pytest.raises(SystemExit):
        parse(["--rounds", "0"])
    assert parse(["--only", "http", "--seconds", "0.2"]).seconds == 0.2
