from benchmarks.__main__ import chosen, parse
from benchmarks.results import Row
from benchmarks.rounds import Summary
from benchmarks.side_by_side import LOADS, NAME, scenarios, table


def row(scenario: str, contender: str, load: str | None = None, **figures: float) -> Row:
    figures = {"ratio": 1.5, "ratio_min": 1.4, "ratio_max": 1.6, "cpu_ratio": 1.2} | figures
    rest = ("rps", "p99_us", "p50_ratio", "generator", "floor_generator")
    figures = {"p50_us": 100.0, "cpu_s_per_1000": 0.1, **dict.fromkeys(rest, 1.0)} | figures
    return Row(
        scenario=scenario,
        title="",
        load=LOADS[scenario] if load is None else load,
        contender=contender,
        is_floor=False,
        summary=Summary(rounds=1, **figures),
    )


def cells(rows: list[Row], copies: dict[str, float]) -> dict[str, tuple[str, str]]:
    columns = [list(map(str, column.cells)) for column in table(rows, copies).columns]
    return {what: (thread, process) for what, thread, process, _ in zip(*columns, strict=True)}


def test_every_scenario_of_the_table_has_the_one_load_that_is_shown() -> None:
    found = scenarios()
    assert {each.name: [load.label for load in each.loads] for each in found} == {
        name: [label] for name, label in LOADS.items()
    }
    assert not any(ours.name == "inline" for each in found for ours in each.ours)


def test_the_table_is_chosen_by_its_name_and_costs_no_scenario_twice() -> None:
    assert [each.name for each in chosen([NAME])] == [each.name for each in scenarios()]
    names = [each.name for each in chosen([NAME, "http-echo"])]
    assert len(names) == len(set(names))
    assert parse(["--only", NAME]).only == [NAME]


def test_figures_stand_under_their_executor() -> None:
    rows = [
        row("http-echo", "thread", ratio=1.7),
        row("http-echo", "process", ratio=0.9),
        row("http-echo", "process", load="128 conn", ratio=7.0),
        row("latency", "door", p50_us=150.0),
        row("latency", "thread", p50_us=240.0),
        row("latency", "process", p50_us=400.0),
        row("arrays", "1 process ops", p50_us=400.0, cpu_s_per_1000=0.3),
        row("arrays", "2 process ops", p50_us=900.0, cpu_s_per_1000=1.0),
        row("arrays", "2 process ops, in place", p50_us=650.0, cpu_s_per_1000=0.5),
        row("arrays", "bare copies", p50_us=310.0, cpu_s_per_1000=0.3),
        row("compute", "process x2", ratio=1.9),
        row("compute", "bare loop x2", ratio=1.95),
    ]
    found = cells(rows, {"process": 2.0, "process, in place": 0.0})
    assert found["HTTP echo, 32 connections, over bare uvicorn"] == (
        "1.70 (1.40-1.60), CPU 1.20",
        "0.90 (1.40-1.60), CPU 1.20",
    )
    later = found["one request at a time, later than by the door alone"]
    assert later == ("0.09 ms", "0.25 ms")
    assert found["5 MiB on the way to the next op"][1] == "0.70 ms CPU, 0.50 ms later"
    assert found["the same, written in place"] == ("", "0.20 ms CPU, 0.25 ms later")
    assert found["copies of those written in place"] == ("", "0")
    assert found["between two bare processes"] == ("", "0.30 ms CPU, 0.31 ms")
    assert found["two bare processes over that one"][1].startswith("1.95")


def test_what_is_missing_has_failed() -> None:
    found = cells([row("arrays", "1 process ops")], {"process": 2.0})
    assert found["copies of them"] == ("failed", "2")
    assert found["5 MiB on the way to the next op"] == ("failed", "failed")
    assert found["the same, written in place"] == ("", "failed")
    assert found["copies of those written in place"] == ("", "failed")
    assert found["gRPC echo, 8x4 calls, over bare grpc.aio"] == ("failed", "failed")
