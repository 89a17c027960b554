from typing import Any

import pytest

from penstock.config.load import load
from penstock.errors import ConfigError


def problems_of(data: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(yml_dict=data, environ={})
    return caught.value.problems


def test_one_of_the_ports_must_be_set() -> None:
    assert problems_of({}) == [
        "yml_dict: rpc_port or http_port must be set, or nobody can reach the service"
    ]


def test_a_port_from_the_environment_or_a_flag_is_set_too() -> None:
    assert load(yml_dict={}, environ={"PENSTOCK_RPC_PORT": "0"}).config.rpc_port == 0
    assert load(yml_dict={}, environ={}, overrides={"http_port": 0}).config.http_port == 0


def test_a_port_that_is_wrong_is_not_called_missing_as_well() -> None:
    assert problems_of({"rpc_port": 80}) == [
        "yml_dict: rpc_port: must be 0 (any free port) or between 1024 and 65535, got 80"
    ]
    assert len(problems_of({"rpc_port": None})) == 1


def test_both_ports_must_differ_unless_the_system_chooses_them() -> None:
    assert problems_of({"rpc_port": 18080, "http_port": 18080}) == [
        "yml_dict: http_port: is 18080, and rpc_port is the same: each needs its own"
    ]
    assert load(yml_dict={"rpc_port": 0, "http_port": 0}, environ={}).warnings == []


def test_the_deadline_must_not_exceed_its_maximum() -> None:
    assert problems_of({"rpc_port": 0, "deadline": 700}) == [
        "yml_dict: deadline: 700 s is more than max_deadline, 600 s"
    ]
    assert len(problems_of({"rpc_port": 0, "deadline": 700, "max_deadline": "x"})) == 1
    assert load(yml_dict={"rpc_port": 0, "deadline": 700, "max_deadline": 700}, environ={})


def test_a_maximum_below_the_default_deadline_needs_no_deadline_beside_it() -> None:
    assert load(yml_dict={"rpc_port": 0, "max_deadline": 10}, environ={}).config.max_deadline == 10
    assert problems_of({"rpc_port": 0, "deadline": 60, "max_deadline": 10}) == [
        "yml_dict: deadline: 60 s is more than max_deadline, 10 s"
    ]


@pytest.mark.parametrize("device_type", [1, 2])
def test_a_gpu_needs_card_ids(device_type: int) -> None:
    conf: dict[str, Any] = {"device_type": device_type}
    data = {"rpc_port": 0, "op": {"a": {"local_service_conf": conf}}}
    [problem] = problems_of(data)
    assert problem.startswith("yml_dict: op.a.local_service_conf.device_type: ")
    assert problem.endswith("needs card ids in devices")
    conf["devices"] = 0
    [problem] = problems_of(data)
    assert "op.a.local_service_conf.devices: must be text" in problem
    conf["devices"] = "0"
    assert load(yml_dict=data, environ={}).warnings == []


def test_the_number_of_engines_has_an_end() -> None:
    data: dict[str, Any] = {"rpc_port": 0, "worker_num": 1025}
    assert load(yml_dict=data, environ={}).config.engines == 1
    assert problems_of({**data, "build_dag_each_worker": True}) == [
        "yml_dict: worker_num: with build_dag_each_worker: must be at most 1024, got 1025"
    ]
