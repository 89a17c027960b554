import re
from typing import Any

import pytest

from penstock.config.load import load
from penstock.config.op import OpConfig
from penstock.config.resolve import OpOptions, advice, resolve_op
from penstock.errors import ConfigError
from penstock.executors.kinds import INLINE, THREAD
from penstock.runtimes.runtime import ModelOptions


def entry(**keys: Any) -> OpConfig:
    return load(yml_dict={"rpc_port": 0, "op": {"uci": keys}}, environ={}).config.op["uci"]


def resolve(yaml: OpConfig | None = None, **arguments: Any) -> OpOptions:
    return resolve_op("uci", arguments, yaml)


def test_an_op_without_configuration_has_the_defaults_and_no_model() -> None:
    assert resolve() == OpOptions(name="uci")
    assert resolve(entry()) == OpOptions(name="uci")
    assert OpOptions(name="uci") == OpOptions(
        name="uci",
        concurrency=1,
        timeout=None,
        kill_late=False,
        retry=1,
        batch_size=1,
        window=None,
        executor=THREAD,
        isolate_errors=True,
        retry_on_crash=False,
        cpus=(),
        thread_num=2,
        fetch_list=None,
        model=None,
    )


YAML = {
    "concurrency": 2,
    "timeout": 3000,
    "retry": 2,
    "batch_size": 4,
    "auto_batching_timeout": 2000,
    "fetch_list": ["y"],
}


@pytest.mark.parametrize(
    ("argument", "value", "option", "expected"),
    [
        ("concurrency", 5, "concurrency", 5),
        ("concurrency", 1, "concurrency", 1),
        ("concurrency", None, "concurrency", 2),
        ("timeout", 500, "timeout", 0.5),
        ("timeout", -1, "timeout", None),
        ("timeout", None, "timeout", 3.0),
        ("retry", 3, "retry", 3),
        ("retry", 1, "retry", 1),
        ("retry", 0, "retry", 2),
        ("retry", None, "retry", 2),
        ("batch_size", 8, "batch_size", 8),
        ("batch_size", 1, "batch_size", 1),
        ("auto_batching_timeout", 1.5, "window", 0.0015),
        ("auto_batching_timeout", -1, "window", None),
        ("auto_batching_timeout", None, "window", 2.0),
        ("fetch_list", ["c"], "fetch_list", ("c",)),
        ("fetch_list", ("c",), "fetch_list", ("c",)),
        ("fetch_list", [], "fetch_list", ("y",)),
        ("fetch_list", None, "fetch_list", ("y",)),
        ("client_type", "local_predictor", "concurrency", 2),
        ("server_endpoints", [], "concurrency", 2),
    ],
)
def test_a_constructor_s_argument_overrides_yaml(
    argument: str, value: Any, option: str, expected: Any
) -> None:
    assert getattr(resolve(entry(**YAML), **{argument: value}), option) == expected


def test_a_flag_overrides_the_constructor() -> None:
    data = {"rpc_port": 0, "op": {"uci": {"local_service_conf": {"model_config": "m"}}}}
    flags = {"op.uci.concurrency": 7, "op.uci.retry": 4}
    op = load(yml_dict=data, overrides=flags, environ={}).config.op["uci"]
    options = resolve(op, concurrency=2, retry=2, batch_size=3)
    assert (options.concurrency, options.retry, options.batch_size) == (7, 4, 3)


@pytest.mark.parametrize("key", ["op.uci.fetch_list", "op.uci.local_service_conf.fetch_list"])
def test_a_fetch_list_of_a_flag_overrides_all_others(key: str) -> None:
    conf = {"model_config": "m", "fetch_list": ["l"]}
    data = {"rpc_port": 0, "op": {"uci": {"fetch_list": ["y"], "local_service_conf": conf}}}
    op = load(yml_dict=data, overrides={key: ["flag"]}, environ={}).config.op["uci"]
    assert resolve(op, fetch_list=["c"]).fetch_list == ("flag",)


@pytest.mark.parametrize(
    ("constructor", "local", "op_level", "expected"),
    [
        (["c"], ["l"], ["y"], ("c",)),
        (None, ["l"], ["y"], ("l",)),
        (None, None, ["y"], ("y",)),
        (None, [], ["y"], ("y",)),
        (None, [], None, None),
        (None, None, None, None),
    ],
)
def test_the_local_model_s_fetch_list_overrides_the_op_s(
    constructor: Any, local: Any, op_level: Any, expected: Any
) -> None:
    keys = {} if op_level is None else {"fetch_list": op_level}
    conf = {"model_config": "m", "fetch_list": local}
    options = resolve(entry(**keys, local_service_conf=conf), fetch_list=constructor)
    assert options.fetch_list == expected
    assert options.model == ModelOptions(path="m", fetch_list=expected)


def test_the_local_fetch_list_applies_to_a_model_of_the_constructor() -> None:
    conf = entry(local_service_conf={"fetch_list": ["l"]})
    options = resolve_op("uci", {}, conf, model_path="m")
    assert options.model == ModelOptions(path="m", fetch_list=("l",))
    assert resolve_op("uci", {}, conf).fetch_list is None


def test_the_model_s_options_have_every_key_of_its_section() -> None:
    conf = {
        "model_config": "../models/uci",
        "client_type": "local_predictor",
        "fetch_list": ["price"],
        "thread_num": 4,
        "device_type": 2,
        "devices": "0, 1",
        "mem_optim": False,
        "ir_optim": True,
        "precision": "FP16",
        "use_calib": True,
        "use_mkldnn": True,
        "mkldnn_cache_capacity": 3,
        "mkldnn_op_list": ["conv2d"],
        "mkldnn_bf16_op_list": ["fc"],
        "min_subgraph_size": 13,
    }
    assert resolve(entry(local_service_conf=conf)).model == ModelOptions(
        path="../models/uci",
        fetch_list=("price",),
        thread_num=4,
        device_type=2,
        devices=("0", "1"),
        mem_optim=False,
        ir_optim=True,
        precision="fp16",
        use_calib=True,
        use_mkldnn=True,
        mkldnn_cache_capacity=3,
        mkldnn_op_list=("conv2d",),
        mkldnn_bf16_op_list=("fc",),
        min_subgraph_size=13,
    )


def test_a_section_with_the_model_alone_has_the_default_options() -> None:
    assert resolve(entry(local_service_conf={"model_config": "m"})).model == ModelOptions(path="m")


@pytest.mark.parametrize(
    ("keys", "cpus", "threads"),
    [
        ({"executor": "thread", "concurrency": 8}, 1, 1),
        ({"executor": "thread", "concurrency": 8}, 2, 2),
        ({"executor": "inline"}, 16, 2),
        ({"executor": "process"}, 1, 1),
        ({"executor": "process"}, 16, 2),
        ({"executor": "process", "concurrency": 4}, 4, 1),
        ({"executor": "process", "concurrency": 4}, 2, 1),
        ({"executor": "process", "concurrency": 2}, 4, 2),
        ({"executor": "process", "concurrency": 2, "cpu_affinity": "0-1"}, 16, 1),
        ({"executor": "process", "concurrency": 2, "cpu_affinity": ["0-1", "2-3"]}, 16, 2),
        ({"executor": "process", "concurrency": 3, "cpu_affinity": ["0-1", "2-3"]}, 16, 1),
        ({"executor": "ray"}, 16, 1),
        ({"executor": "ray", "ray": {"num_cpus": 4.5}}, 2, 4),
        ({"executor": "ray", "ray": {"num_cpus": 0}}, 16, 1),
        ({"executor": "ray", "local_service_conf": {"thread_num": 7}}, 16, 7),
        ({"executor": "process", "local_service_conf": {"thread_num": 7}}, 1, 7),
        ({"executor": "thread", "local_service_conf": {"thread_num": 7}}, 1, 7),
    ],
)
def test_the_models_threads_fit_the_cpus_unless_configured(
    keys: dict[str, Any], cpus: int, threads: int
) -> None:
    given = {**keys.pop("local_service_conf", {}), "model_config": "m"}
    options = resolve_op("uci", {}, entry(**keys, local_service_conf=given), "thread", cpus)
    assert options.thread_num == threads
    assert options.model == ModelOptions(path="m", thread_num=threads)


def test_a_batch_size_of_one_has_no_window() -> None:
    assert resolve(entry(batch_size=1, auto_batching_timeout=2000)).window is None
    assert resolve(entry(batch_size=2, auto_batching_timeout=2000)).window == 2.0
    assert resolve(entry(auto_batching_timeout=2000), batch_size=2).window == 2.0


def test_executor_and_failure_options_come_from_yaml() -> None:
    options = resolve(
        entry(executor="inline", isolate_errors=False, retry_on_crash=True, on_timeout="kill")
    )
    assert (options.executor, options.isolate_errors) == (INLINE, False)
    assert options.retry_on_crash
    assert options.kill_late


def test_all_problems_of_a_constructor_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(
            concurrency=0,
            retry=-1,
            batch_size=True,
            timeout="3",
            fetch_list="price",
            client_type="x",
        )
    assert sorted(caught.value.problems) == [
        "constructor of op uci: batch_size: must be an integer, got true",
        "constructor of op uci: client_type: must be 'brpc', 'grpc', 'local_predictor' or"
        " 'pipeline_grpc', got the text 'x'",
        "constructor of op uci: concurrency: must be at least 1, got 0",
        "constructor of op uci: fetch_list: must be a list, such as [a, b], got the text 'price'",
        "constructor of op uci: retry: must be at least 1, got -1",
        "constructor of op uci: timeout: must be an integer, got the text '3':"
        " write the number without quotes and without a unit",
    ]


def test_server_endpoints_make_an_op_remote() -> None:
    yaml = entry(client_type="pipeline_grpc", server_endpoints=["h:1", "[::1]:2"], model_name="m")
    options = resolve(yaml, fetch_list=["y"])
    assert options.remote is not None
    assert str(options.remote) == "pipeline m at h:1, [::1]:2"
    assert options.remote.fetch_list == ("y",)
    assert options.model is None
    given = resolve(yaml, server_endpoints=["c:3"], client_type="brpc")
    assert str(given.remote) == "general_model m at c:3"
    assert str(resolve(entry(server_endpoints=["h:1"])).remote) == "model at h:1"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"client_type": "brpc"}, "client_type: brpc needs server_endpoints: the host:port to"),
        (
            {"client_type": "local_predictor", "server_endpoints": ["h:1"]},
            "client_type: local_predictor calls no server: leave out server_endpoints",
        ),
        (
            {"client_type": "grpc", "server_endpoints": ["h"]},
            "constructor of op uci: server_endpoints[0]: must be host:port, such as",
        ),
        (
            {"yaml": entry(server_token="t")},
            "op.uci.server_token: needs server_endpoints",
        ),
        (
            {"yaml": entry(server_token="t", server_endpoints=["h:1"], client_type="brpc")},
            "op.uci.server_token: baidu_std (client_type brpc) carries no token",
        ),
        (
            {"yaml": entry(server_ca_file="ca")},
            "op.uci.server_ca_file: TLS needs server_endpoints that are called by gRPC",
        ),
        (
            {"yaml": entry(server_ca_file="ca", server_endpoints=["h:1"], client_type="brpc")},
            "op.uci.server_ca_file: TLS needs server_endpoints that are called by gRPC",
        ),
        (
            {"yaml": entry(server_cert_file="c", server_endpoints=["h:1"], client_type="grpc")},
            "op.uci.server_cert_file: needs server_ca_file",
        ),
        (
            {"yaml": entry(server_key_file="k", server_ca_file="ca", server_endpoints=["h:1"])},
            "op.uci.server_key_file: needs server_cert_file",
        ),
    ],
)
def test_an_invalid_remote_call_is_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        resolve(**arguments)


def test_a_worker_num_below_the_largest_batch_is_one_warning() -> None:
    options = [
        OpOptions(name="a", batch_size=4, window=0.1),
        OpOptions(name="b", batch_size=8, window=0.1),
    ]
    assert advice(2, options) == [
        "worker_num is 2, below the batch_size 8 of op.b: its batches can never be full"
    ]
    assert advice(8, options) == advice(None, options) == advice(1, []) == []
