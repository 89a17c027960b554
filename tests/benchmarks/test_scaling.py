"""Whether the scenarios of several cores differ in their number alone, and judge their answers."""

from pathlib import Path

import orjson

from benchmarks.scaling import compute, engines
from penstock.protocols.pb import Response


def test_one_engine_and_two_differ_in_nothing_else() -> None:
    for scenario in engines():
        (two,) = scenario.ours
        pairs = zip(scenario.floor.options, two.options, strict=True)
        assert [pair for pair in pairs if pair[0] != pair[1]] == [("1", "2")]
        assert scenario.floor.server == two.server
        assert "--every-core" in two.options
        assert scenario.scales


def test_connections_are_enough_for_two_engines_to_get_some_each() -> None:
    assert all(load.connections >= 16 for scenario in engines() for load in scenario.loads)


def test_two_workers_and_two_bare_loops_add_as_many_numbers() -> None:
    scenario = compute()
    steps = {
        contender.options[contender.options.index("--steps") + 1]
        for contender in (scenario.floor, *scenario.ours)
    }
    assert len(steps) == 1


def test_a_sum_must_be_there_and_no_error(tmp_path: Path) -> None:
    http, grpc = (scenario for scenario in engines() if "compute" in scenario.name)
    answer = {"err_no": 0, "err_msg": "", "key": ["x", "sum"], "value": ["?", "7"], "tensors": []}
    assert http.right(orjson.dumps(answer), tmp_path)
    assert not http.right(orjson.dumps({**answer, "err_no": 3004}), tmp_path)
    assert not http.right(orjson.dumps({**answer, "key": ["x", "y"]}), tmp_path)
    assert grpc.right(Response(key=["x", "sum"], value=["?", "7"]).SerializeToString(), tmp_path)
    assert not grpc.right(Response(err_no=3004, key=["sum"]).SerializeToString(), tmp_path)
    assert not grpc.right(Response(key=["x"], value=["?"]).SerializeToString(), tmp_path)
