"""Checks between keys: unavailable features, conflicting keys, choice of ports."""

from typing import Any

import pytest

from penstock.config.checks import Ports, ports, unavailable
from penstock.config.load import load
from penstock.config.schema import ServiceConfig
from penstock.errors import ConfigError


def op(**keys: Any) -> dict[str, Any]:
    return {"op": {"a": keys}}


def local(**keys: Any) -> dict[str, Any]:
    return op(local_service_conf=keys)


def problems_of(data: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(yml_dict=data, environ={})
    return [problem.removeprefix("yml_dict: ") for problem in caught.value.problems]


LOCAL = "op.a.local_service_conf"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (op(use_encryption_model=True), "op.a.use_encryption_model: needs encryption_key"),
        (local(device_type=1), f"{LOCAL}.device_type: 1 (GPU) needs card ids in devices"),
        (local(device_type=2), f"{LOCAL}.device_type: 2 (GPU with TensorRT) needs card ids in"),
        (local(device_type=1, devices=0), f"{LOCAL}.devices: must be text"),
        (local(device_type=3), f"{LOCAL}.device_type: 3 (ARM CPU) is not available"),
        (local(device_type=4, devices="0"), f"{LOCAL}.device_type: 4 (Kunlun XPU) is not"),
        (local(device_type=5, devices="0"), f"{LOCAL}.device_type: 5 (Ascend 310) is not"),
        (local(device_type=6, devices="0"), f"{LOCAL}.device_type: 6 (Ascend 910) is not"),
        ({"rpc_port": None}, "rpc_port: is left blank"),
        # An invalid port is not reported as missing too.
        ({"rpc_port": 80}, "rpc_port: must be 0 (any free port) or between 1024 and 65535, got 80"),
        ({"deadline": 700}, "deadline: 700 s is more than max_deadline, 600 s"),
        ({"deadline": 60, "max_deadline": 10}, "deadline: 60 s is more than max_deadline, 10 s"),
        ({"deadline": 700, "max_deadline": "x"}, "max_deadline: must be a number"),
        (
            {"worker_num": 1025, "build_dag_each_worker": True},
            "worker_num: with build_dag_each_worker: must be at most 1024, got 1025",
        ),
        ({"admin_host": "::1"}, "admin_host: needs admin_port"),
        ({"load_model": "m"}, "load_model: needs model_control_mode: explicit"),
        (
            {"load_model": "m", "model_control_mode": "poll"},
            "load_model: needs model_control_mode: explicit",
        ),
        ({"admin_port": 9000, "rpc_port": 9000}, "admin_port: is 9000, and rpc_port is the same"),
        ({"cors": {"max_age": 1}}, "cors.max_age: needs cors.origins"),
        ({"quotas": {"free": {}}}, "quotas.free: needs rate or concurrency"),
        ({"quotas": {"free": {"burst": 1, "concurrency": 1}}}, "quotas.free.burst: needs rate"),
        ({"rollout": {"m": {"steps": [5, 5]}}}, "rollout.m.steps: must be ascending, from 0 to"),
        ({"rollout": {"m": {"steps": [5, 101]}}}, "rollout.m.steps: must be ascending, from 0 to"),
        ({"rollout": {"m": {"steps": [0, 5]}}}, "rollout.m.steps: has a step of 0 %, and needs sh"),
        (
            {"rollout": {"m": {"steps": [5], "disagreement": 0.1}}},
            "rollout.m.disagreement: needs shadow.share",
        ),
        ({"rollout": {"m": {"shadow": {"share": 5}}}}, "rollout.m.shadow: needs steps"),
        ({"rollout": {"": {}}}, "rollout: the name '' must be the name of a model"),
        ({"priority": {"header": True}}, "priority.header: needs priority.levels"),
        (
            {"queue": {"levels": {"2": {"timeout": 1.0}}}},
            "queue.levels.2: there is no such priority",
        ),
        ({"queue": {"levels": {"low": {}}}}, "queue.levels: the name 'low' must be a priority"),
        (
            {"priority": {"levels": 2, "callers": {"ann": 3}}},
            "priority.callers.ann: is 3, and priority.levels has only 2",
        ),
        ({"security": {"open": ["/a"]}}, "security: admits everybody: set keys"),
        ({"security": {}}, "security: admits everybody: set keys"),
        ({"security": None}, "security: is left blank"),
        ({"security": {"certificates": {}}}, "security: admits everybody: set keys"),
        *(
            ({"security": {key: None}}, f"security.{key}: is left blank")
            for key in ("keys", "keys_env", "jwt", "certificates")
        ),
        ({"security": {"keys": "k", "scopes": None}}, "security.scopes: is left blank"),
        (
            {"security": {"jwt": {"audience": ["a"], "keys": "k"}}},
            "security.jwt.issuer: must be set",
        ),
        (
            {"security": {"jwt": {"issuer": 1, "audience": ["a"], "keys": "k"}}},
            "security.jwt.issuer: must be text",
        ),
        (
            {"security": {"certificates": {"a": []}}},
            "security.certificates: needs door.tls.client_ca",
        ),
        (
            {"security": {"jwt": {"issuer": "i", "audience": ["a"], "keys": "http://a.test/k"}}},
            "security.jwt.keys: must be a file, https, or http on this machine",
        ),
        (
            {"cors": {"origins": ["*"], "credentials": True}},
            "cors.credentials: needs origins by name, not *",
        ),
        (
            {"cors": {"origins": ["null"], "credentials": True}},
            "cors.credentials: needs origins by name, not null",
        ),
        (
            {"cors": {"origins": ["a://b"], "credentials": True, "exposed_headers": ["*"]}},
            "cors.exposed_headers: * is no list",
        ),
        ({"door": {"tls": {"key": "k.pem"}}}, "door.tls.key: needs door.tls.certificate"),
    ],
)
def test_an_invalid_combination_is_one_problem(data: dict[str, Any], problem: str) -> None:
    (message,) = problems_of({"rpc_port": 0, **data})
    assert message.startswith(problem)


@pytest.mark.parametrize(
    "data",
    [
        {"http_port": 0},
        {"deadline": 700, "max_deadline": 700},
        {"max_deadline": 10},  # below the default deadline, which is lowered
        {"worker_num": 1025},
        {"build_dag_each_worker": True, "worker_num": 4},
        {"dag": {"is_thread_op": True, "client_type": "grpc", "prometheus_port": 19393}},
        {"dag": {"use_profile": False, "enable_prometheus": True, "tracer": {"interval_s": 0}}},
        op(executor="thread", server_endpoints=[], client_type="local_predictor"),
        op(use_encryption_model=False, encryption_key="key", client_config="c"),
        local(device_type=2, devices="0", use_mkldnn=True),
    ],
)
def test_disabled_or_consistent_keys_cause_no_warning(
    data: dict[str, Any],
) -> None:
    assert load(yml_dict={"rpc_port": 0, **data}, environ={}).warnings == []


def test_the_metrics_port_must_differ_from_the_others() -> None:
    dag = {"enable_prometheus": True, "prometheus_port": 9393}
    assert problems_of({"rpc_port": 0, "http_port": 9393, "dag": dag}) == [
        "dag.prometheus_port: is 9393, and http_port is the same: leave it out, as http_port has"
        " /metrics, too"
    ]
    load(yml_dict={"rpc_port": 9393, "dag": {"prometheus_port": 9393}}, environ={})  # disabled


def test_one_of_the_ports_must_be_set_in_yaml_environment_or_flags() -> None:
    missing = "set rpc_port or http_port: the service has no port"
    assert problems_of({}) == [missing]
    assert load(yml_dict={}, environ={"PENSTOCK_RPC_PORT": "0"}).config.rpc_port == 0
    assert load(yml_dict={}, environ={}, overrides={"http_port": 0}).config.http_port == 0


def must_not_be_probed(port: int) -> bool:
    raise AssertionError(f"asked for {port}")


@pytest.mark.parametrize(
    ("rpc", "http", "expected"),
    [
        (18080, 18090, Ports(rpc=18080, http=18090)),
        (18080, None, Ports(rpc=18080, http=None)),
        (0, 0, Ports(rpc=0, http=0)),
        (0, 18090, Ports(rpc=0, http=18090)),
        (None, 0, Ports(rpc=0, http=0)),
        (18080, 18080, Ports(rpc=None, http=18080)),
    ],
)
def test_configured_ports_are_used_without_probing(rpc: int, http: int, expected: Ports) -> None:
    given = {"rpc_port": rpc, "http_port": http}
    config = ServiceConfig.model_validate({k: v for k, v in given.items() if v is not None})
    assert ports(config, must_not_be_probed) == expected


@pytest.mark.parametrize(
    ("http", "taken", "rpc"),
    [
        (9999, set(), 10000),
        (9999, {10000, 10001}, 10002),
        (65535, set(), 1024),
        (65534, {65535, 1024}, 1025),
    ],
)
def test_the_grpc_port_is_the_next_free_one_after_http(
    http: int, taken: set[int], rpc: int
) -> None:
    chosen = ports(ServiceConfig(http_port=http), lambda port: port not in taken)
    assert chosen == Ports(rpc=rpc, http=http)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"http_port": 18080}, Ports(rpc=None, http=18080)),
        ({"http_port": 0}, Ports(rpc=None, http=0)),
        ({"http_port": 18080, "rpc_port": 18090}, Ports(rpc=18090, http=18080)),
        ({"rpc_port": 18090}, Ports(rpc=18090, http=None)),
    ],
)
def test_a_service_of_one_port_has_two_only_if_both_are_set(
    keys: dict[str, int], expected: Ports
) -> None:
    assert ports(ServiceConfig(**keys), must_not_be_probed, one_port=True) == expected


def test_no_free_port_and_no_port_at_all_are_refused() -> None:
    with pytest.raises(ConfigError, match="no port is free"):
        ports(ServiceConfig(http_port=9999), lambda port: False)
    with pytest.raises(ConfigError, match="set rpc_port or http_port"):
        ports(ServiceConfig(), must_not_be_probed)


@pytest.mark.parametrize(("missing", "found"), [("error", 1), ("cpu", 0)])
def test_unavailable_hardware_is_accepted_if_missing_device_allows_the_cpu(
    missing: str, found: int
) -> None:
    op = {"local_service_conf": {"model_config": "m", "device_type": 4, "devices": "0"}}
    config = ServiceConfig.model_validate(
        {"rpc_port": 0, "missing_device": missing, "op": {"a": op}}
    )
    assert len(unavailable(config)) == found
