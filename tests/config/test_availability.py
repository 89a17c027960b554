from typing import Any

import pytest

from penstock.config.load import load
from penstock.errors import ConfigError


def op(**keys: Any) -> dict[str, Any]:
    return {"op": {"a": keys}}


def local(**keys: Any) -> dict[str, Any]:
    return op(local_service_conf=keys)


DEVICE = "op.a.local_service_conf.device_type"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (op(server_endpoints=["h:1"]), "op.a.server_endpoints: remote model servers are not yet"),
        (op(client_type="brpc"), "op.a.client_type: brpc is not yet available"),
        (op(client_type="grpc"), "op.a.client_type: grpc is not yet available"),
        (op(client_type="pipeline_grpc"), "op.a.client_type: pipeline_grpc is not yet available"),
        (op(use_encryption_model=True), "op.a.use_encryption_model: encrypted models are not"),
        (local(client_type="brpc"), "op.a.local_service_conf.client_type: brpc is not yet"),
        (local(client_type="grpc"), "op.a.local_service_conf.client_type: grpc is not yet"),
        (local(device_type=3), f"{DEVICE}: 3 (ARM CPU) is not available"),
        (local(device_type=4, devices="0"), f"{DEVICE}: 4 (Kunlun XPU) is not available"),
        (local(device_type=5, devices="0"), f"{DEVICE}: 5 (Ascend 310) is not available"),
        (local(device_type=6, devices="0"), f"{DEVICE}: 6 (Ascend 910) is not available"),
    ],
)
def test_what_is_not_built_is_refused_when_switched_on(data: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(yml_dict={"rpc_port": 0, **data}, environ={})
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(f"yml_dict: {problem}")


@pytest.mark.parametrize(
    "data",
    [
        {"build_dag_each_worker": True, "worker_num": 4},
        {"dag": {"is_thread_op": True, "client_type": "grpc", "prometheus_port": 19393}},
        {"dag": {"use_profile": False, "enable_prometheus": False, "tracer": {"interval_s": 0}}},
        {
            "op": {
                "a": {
                    "executor": "thread",
                    "server_endpoints": [],
                    "client_type": "local_predictor",
                }
            }
        },
        {
            "op": {
                "a": {"use_encryption_model": False, "encryption_key": "key", "client_config": "c"}
            }
        },
        {
            "op": {
                "a": {"local_service_conf": {"device_type": 2, "devices": "0", "use_mkldnn": True}}
            }
        },
    ],
)
def test_the_same_keys_switched_off_are_taken_without_a_word(data: dict[str, Any]) -> None:
    assert load(yml_dict={"rpc_port": 0, **data}, environ={}).warnings == []


def test_reports_that_are_not_built_are_answered_with_one_warning_each() -> None:
    dag = {"use_profile": True, "enable_prometheus": True, "tracer": {"interval_s": 1}}
    warnings = load(yml_dict={"rpc_port": 0, "dag": dag}, environ={}).warnings
    assert sorted(warnings) == [
        "yml_dict: dag.enable_prometheus: is not yet available and has no effect",
        "yml_dict: dag.tracer.interval_s: is not yet available and has no effect",
        "yml_dict: dag.use_profile: is not yet available and has no effect",
    ]
