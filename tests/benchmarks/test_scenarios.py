"""Whether the judges of answers tell right from wrong."""

import io
from pathlib import Path

import numpy as np
import orjson
import pytest

from benchmarks.client_calls import REPLY
from benchmarks.models import LINEAR_FEATURES, MLP_FEATURES, input_rows, model_folder
from benchmarks.runtime_loop import open_session
from benchmarks.scenario import Scenario
from benchmarks.scenarios import all_scenarios
from penstock.protocols.pb import Request, Response, Tensor


def scenario(name: str) -> Scenario:
    (found,) = [scenario for scenario in all_scenarios() if scenario.name == name]
    return found


def run(models: Path, name: str, features: int) -> np.ndarray:
    session = open_session(model_folder(name, models))
    return session.run(None, {"x": input_rows((features,), 1)})[0]


def test_an_echo_must_be_the_text_that_was_sent(tmp_path: Path) -> None:
    echo = scenario("http-echo")
    asked = orjson.loads(echo.body())
    answer = {"err_no": 0, "err_msg": "", **asked, "tensors": []}
    assert echo.right(orjson.dumps(answer), tmp_path)
    assert not echo.right(orjson.dumps({**answer, "value": ["?"]}), tmp_path)
    assert not echo.right(orjson.dumps({**answer, "err_no": 3004}), tmp_path)

    echo = scenario("grpc-echo")
    asked = Request.FromString(echo.body())
    right = Response(key=asked.key, value=asked.value)
    assert echo.right(right.SerializeToString(), tmp_path)
    right.err_no = 3004
    assert not echo.right(right.SerializeToString(), tmp_path)


def test_five_mebibytes_must_come_back_whole(tmp_path: Path) -> None:
    large = scenario("grpc-large")
    asked = Request.FromString(large.body())
    assert len(asked.value[0]) == 5 << 20
    right = Response(key=asked.key, value=asked.value)
    assert large.right(right.SerializeToString(), tmp_path)
    right.value[0] = right.value[0][:-1]
    assert not large.right(right.SerializeToString(), tmp_path)
    assert not large.right(Response(err_no=3004).SerializeToString(), tmp_path)


@pytest.mark.parametrize("name", ["door-grpc", "door-http"])
def test_the_door_alone_must_give_back_the_very_bytes(tmp_path: Path, name: str) -> None:
    door = scenario(name)
    assert door.right(door.body(), tmp_path)
    assert not door.right(door.body() + b" ", tmp_path)


def test_a_client_s_server_must_answer_what_the_client_expects(tmp_path: Path) -> None:
    calls = scenario("client-calls")
    assert calls.right(REPLY.SerializeToString(), tmp_path)
    assert not calls.right(Response(err_no=3004).SerializeToString(), tmp_path)
    assert Request.FromString(calls.body()).key == ["x"]


def test_only_exact_answers_are_left_to_programs_that_weigh_them() -> None:
    by_programs = [scenario for scenario in all_scenarios() if scenario.programs]
    assert {each.name for each in by_programs} == {
        "heads-http",
        "heads-grpc",
        "http-echo",
        "grpc-echo",
        "grpc-large",
        "door-grpc",
        "door-http",
        "latency",
        "arrays",
        "arrays-thread",
        "compute",
        "engines-http-echo",
        "engines-http-compute",
        "engines-grpc-echo",
        "engines-grpc-compute",
    }
    for each in by_programs:
        assert all(contender.exact for contender in (each.floor, *each.ours))


def test_a_price_must_be_what_the_bare_model_says(tmp_path: Path) -> None:
    price = run(tmp_path, "linear", LINEAR_FEATURES)[0, 0]
    answer = {"err_no": 0, "key": ["price"], "value": [str(price)]}
    regression = scenario("regression")
    assert regression.right(orjson.dumps(answer), tmp_path)
    assert not regression.right(orjson.dumps({**answer, "value": [str(price + 1)]}), tmp_path)
    assert not regression.right(orjson.dumps({**answer, "err_no": 6000}), tmp_path)


@pytest.mark.parametrize("as_bytes", [False, True], ids=["numbers", "npy bytes"])
def test_an_ensemble_must_be_the_mean_of_the_bare_models(tmp_path: Path, as_bytes: bool) -> None:
    mean = (run(tmp_path, "mlp-a", MLP_FEATURES) + run(tmp_path, "mlp-b", MLP_FEATURES)) / 2

    def reply(values: np.ndarray) -> bytes:
        if as_bytes:
            file = io.BytesIO()
            np.lib.format.write_array(file, values, allow_pickle=False)
            tensor = Tensor(name="prediction", elem_type=13, byte_data=file.getvalue())
        else:
            tensor = Tensor(name="prediction", elem_type=1, shape=[1, 2], float_data=values[0])
        return Response(tensors=[tensor]).SerializeToString()

    ensemble = scenario("ensemble")
    assert ensemble.right(reply(mean), tmp_path)
    assert not ensemble.right(reply(mean[:, ::-1]), tmp_path)
    assert not ensemble.right(Response(err_no=9000).SerializeToString(), tmp_path)
    assert not ensemble.right(Response().SerializeToString(), tmp_path)
