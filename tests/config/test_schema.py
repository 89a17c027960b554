"""Every key: a valid value, one of a wrong type, and one out of range (if it has a range)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.config.callers import (
    CorsConfig,
    PriorityConfig,
    QueueConfig,
    QueuePolicyConfig,
    SecurityConfig,
    TlsConfig,
)
from penstock.config.load import load
from penstock.config.machines import ExternalStoreConfig, RayConfig
from penstock.config.op import MAX_CPU, LocalServiceConfig, OpConfig, PadConfig, parse_cpus
from penstock.config.schema import (
    DagConfig,
    DoorConfig,
    RolloutConfig,
    ServiceConfig,
    ShadowConfig,
    TracerConfig,
    UiConfig,
)
from penstock.config.section import keys_of
from penstock.errors import ConfigError

NO_RANGE = object()
HUGE = 10**400

# place: (key, valid value, its parsed value, wrong type, out of range)
SERVICE = [
    ("rpc_port", 18080, 18080, "18080", 80),
    ("http_port", 0, 0, True, 65536),
    ("admin_port", 9000, 9000, "9000", 80),
    ("admin_host", "::1", "::1", 0, "[::1]"),
    ("host", "::1", "::1", 0, "[::1]"),
    ("allowed_hosts", ["a.example", "*.b", "::1"], ("a.example", "*.b", "::1"), "a", ["a:80"]),
    ("strict", True, True, "yes", NO_RANGE),
    ("cors", {}, CorsConfig(), ["*"], NO_RANGE),
    ("priority", {}, PriorityConfig(), 2, NO_RANGE),
    ("queue", {}, QueueConfig(), [], NO_RANGE),
    ("quotas", {}, {}, [], NO_RANGE),
    ("rollout", {}, {}, [], NO_RANGE),
    ("security", {"keys": "k.txt"}, SecurityConfig(keys="k.txt"), ["a"], NO_RANGE),
    ("service", "ocr.py:OcrService", "ocr.py:OcrService", ["a.py:B"], "OcrService"),
    ("name", "uci", "uci", 7, "a/b"),
    ("model_repository", "models", ("models",), 1, [""]),
    ("model_control_mode", "poll", "poll", 1, "never"),
    ("repository_poll_secs", 1, 1.0, "60s", 0),
    ("load_model", ["a", "b"], ("a", "b"), 1, [""]),
    ("model_load_thread_count", 1, 1, True, 0),
    ("swap", "resource", "resource", 1, "both"),
    ("model_cache", "cache", "cache", 1, ""),
    ("model_cache_limit_mib", 100, 100, True, 0),
    ("model_public_key", "public.pem", "public.pem", 1, ""),
    ("worker_num", 4, 4, True, 0),
    ("build_dag_each_worker", False, False, 0, NO_RANGE),
    ("grpc_gateway_port", 80, 80, "80", NO_RANGE),
    ("deadline", 5, 5.0, "60s", 0),
    ("max_deadline", 600.5, 600.5, True, float("inf")),
    ("stream_limit", 60, 60.0, "60s", 0),
    ("max_message_bytes", 256 << 20, 256 << 20, 1.5, 1 << 31),
    ("max_inflight_bytes", 4 << 30, 4 << 30, "2GiB", 0),
    ("max_requests", 10, 10, 10.0, 0),
    ("max_calls", 10, 10, "10", 0),
    ("max_connections", 10, 10, [], -1),
    ("start_timeout", 0, 0.0, "10min", -1),
    ("hang_limit", 0, 0.0, "60s", -1),
    ("crash_dir", "crashes", "crashes", 1, ""),
    ("log_dir", "logs", "logs", 1, ""),
    ("log_level", "Debug", "debug", "loud", NO_RANGE),
    ("log_format", "json", "json", "xml", NO_RANGE),
    ("applications", ["a.b:c"], ("a.b:c",), "a.b:c", ["a.b"]),
    ("instruments", ["a.b:C"], ("a.b:C",), "a.b:C", ["a.b"]),
    ("missing_device", "cpu", "cpu", True, "gpu"),
    ("strict_status", True, True, "yes", NO_RANGE),
    ("docs", False, False, "no", NO_RANGE),
    ("log_requests", True, True, "yes", NO_RANGE),
    ("supervised", True, True, "yes", NO_RANGE),
    ("otel", True, True, "yes", NO_RANGE),
    ("metrics", False, False, "no", NO_RANGE),
    ("drain_delay", 0, 0.0, None.__class__, -0.1),
    ("drain_timeout", 1, 1.0, "1", float("nan")),
    ("header_timeout", 2, 2.0, {}, 0),
    ("body_timeout", 2.5, 2.5, False, HUGE),
    ("write_timeout", 1, 1.0, "1s", 0),
    ("keep_alive", 75, 75.0, "75", -1),
    ("door", {}, DoorConfig(), 1, NO_RANGE),
    ("ui", {}, UiConfig(), True, NO_RANGE),
    ("dag", {}, DagConfig(), 1, NO_RANGE),
    ("op", {}, {}, [], NO_RANGE),
]
QUEUE = [
    ("timeout", 1, 1.0, "1s", 0),
    ("timeout_action", "delay", "delay", True, "later"),
    ("levels", {"1": {"timeout": 2}}, {"1": QueuePolicyConfig(timeout=2.0)}, [], NO_RANGE),
]
PRIORITY = [
    ("levels", 4, 4, True, 17),
    ("default", 2, 2, "2", 0),
    ("ageing", 2.0, 2.0, "2", 0.0),
    ("callers", {"ann": 2}, {"ann": 2}, [2], NO_RANGE),
    ("scopes", {"bulk": 2}, {"bulk": 2}, ["bulk"], NO_RANGE),
    ("routes", {"/slow": 2}, {"/slow": 2}, 7, NO_RANGE),
    ("header", True, True, "yes", NO_RANGE),
]
CORS = [
    ("origins", ["https://A.b:443"], ("https://a.b",), "https://a.b", ["https://a.b/"]),
    ("methods", ["POST"], ("POST",), "POST", ["post"]),
    ("headers", ["X-A", "*"], ("X-A", "*"), "X-A", ["X A"]),
    ("exposed_headers", [], (), "X-A", [""]),
    ("credentials", True, True, "yes", NO_RANGE),
    ("max_age", 0, 0, 1.5, 86_401),
]
UI = [
    ("enabled", False, False, "no", NO_RANGE),
    ("token", "0123456789abcdef", "0123456789abcdef", 1, "0123456789abcde"),
]
DOOR = [
    ("tls", {}, TlsConfig(), "server.pem", NO_RANGE),
    ("unix_socket", "run/penstock.sock", "run/penstock.sock", 1, ""),
    ("body_pace", 1024, 1024, 1.5, 0),
    ("http2_idle", 60, 60.0, "60", 0),
    ("max_connection_age", 300, 300.0, "300", 0),
    ("tls_timeout", 2, 2.0, True, -1),
    ("max_unsent", 1 << 20, 1 << 20, "1MiB", 0),
    ("busy_poll", 0, 0.0, "1ms", 0.011),
    ("half_close_probe", True, True, "yes", NO_RANGE),
    ("max_request_line", 4096, 4096, "4096", 0),
    ("max_header_bytes", 4096, 4096, 1.0, 0),
    ("max_header_fields", 50, 50, [], 0),
    ("max_header_field", 1024, 1024, {}, 0),
    ("max_streams", 64, 64, "64", 0),
    ("stream_window", 65_535, 65_535, "65535", 65_534),
    ("connection_window", 1 << 20, 1 << 20, 1.5, 65_534),
    ("resets", 5, 5, "5", 0),
]
TLS = [
    ("certificate", "server.pem", "server.pem", 1, ""),
    ("key", "server.key", "server.key", [], ""),
    ("client_ca", "clients.pem", "clients.pem", 1, ""),
]
DAG = [
    ("retry", 2, 2, "2", 0),
    ("client_type", "grpc", "grpc", 1, "http"),
    ("use_profile", False, False, 1, NO_RANGE),
    ("channel_size", 0, None, 1.0, -1),
    ("is_thread_op", True, True, "True", NO_RANGE),
    ("tracer", {}, TracerConfig(), 10, NO_RANGE),
    ("channel_recv_frist_arrive", True, True, 1, NO_RANGE),
    ("enable_prometheus", False, False, "no", NO_RANGE),
    ("prometheus_port", 19393, 19393, "19393", 1),
    ("external_store", "redis://h", "redis://h", 1, "h:6379"),
    ("external_store_options", {}, ExternalStoreConfig(), "redis", NO_RANGE),
]
EXTERNAL_STORE = [
    ("min_bytes", 1, 1, 0.5, 0),
    ("timeout", 2, 2.0, "2", 0),
    ("password", "env:P", "env:P", 1, ""),
    ("ca_file", "ca.pem", "ca.pem", 1, ""),
    ("cert_file", "cert.pem", "cert.pem", 1, ""),
    ("key_file", "key.pem", "key.pem", 1, ""),
    ("shared_secret", "env:S", "env:S", 1, ""),
]
TRACER = [("interval_s", -1, None, 1.5, 1 << 31)]
OP = [
    ("concurrency", 6, 6, "6", 0),
    ("timeout", 3000, 3000, 0.5, HUGE),
    ("on_timeout", "kill", "kill", True, "stop"),
    ("retry", 3, 3, True, 0),
    ("batch_size", 8, 8, 8.0, -1),
    ("policy", "learned", "learned", "lifo", NO_RANGE),
    ("batch_rows", True, True, 1, NO_RANGE),
    ("allow_split_request", False, False, 0, NO_RANGE),
    ("enable_overrun", True, True, "true", NO_RANGE),
    ("rows", {"x": 0, "s": "none", "y": None}, {"x": 0, "s": None, "y": None}, "second", {"x": -1}),
    ("shared_outputs", ["names"], ("names",), "names", [""]),
    ("verify_batches", "strict", "strict", True, "on"),
    ("verify_seconds", 5, 5.0, "5", 0),
    ("examples", ["a.npz"], ("a.npz",), "a.npz", [""]),
    ("auto_batching_timeout", 0.5, 0.5, "2000", 1e10),
    ("client_type", "local_predictor", "local_predictor", 1, "tcp"),
    ("server_endpoints", ["h:1"], ("h:1",), "127.0.0.1:9393", ["h"]),
    ("server_token", "env:T", "env:T", 1, ""),
    ("server_ca_file", "ca.pem", "ca.pem", 1, ""),
    ("server_cert_file", "cert.pem", "cert.pem", 1, ""),
    ("server_key_file", "key.pem", "key.pem", 1, ""),
    ("model_name", "uci", "uci", 1, ""),
    ("client_config", "conf.prototxt", "conf.prototxt", ["conf"], ""),
    ("fetch_list", ["price"], ("price",), "price", [""]),
    ("use_encryption_model", False, False, 0, NO_RANGE),
    ("encryption_key", "./key", "./key", 1, ""),
    ("executor", "inline", "inline", 1, "spark"),
    ("seats", 16, 16, 1.5, 0),
    ("socket", "run/op.sock", "run/op.sock", 1, ""),
    ("socket_format", "msgpack", "msgpack", 1, "pickle"),
    ("memory_limit_mib", 500, 500, "500MiB", 0),
    ("max_batches", 1000, 1000, 1.5, 0),
    ("isolate_errors", False, False, "false", NO_RANGE),
    ("retry_on_crash", True, True, 1, NO_RANGE),
    ("cpu_affinity", [0, "1-2"], ("0", "1-2"), True, "3-1"),
    ("local_service_conf", {}, LocalServiceConfig(), "model", NO_RANGE),
    ("versions", 3, "3", 1.5, -1),
    ("pad", {}, PadConfig(), True, NO_RANGE),
    ("ray", {}, RayConfig(), True, NO_RANGE),
]
RAY = [
    ("address", "head:6379", "head:6379", 1, "ray://head:10001"),
    ("namespace", "texts", "texts", 1, ""),
    ("num_cpus", 2, 2.0, "2", -1),
    ("num_gpus", 0.5, 0.5, "1", -1),
    ("resources", {"tpu": 1}, {"tpu": 1.0}, ["tpu"], NO_RANGE),
    ("placement", "spread", "spread", 1, "pack"),
    ("runtime_env", {"working_dir": "."}, {"working_dir": "."}, "env", NO_RANGE),
]
PAD = [
    ("enabled", True, True, 1, NO_RANGE),
    ("inputs", {"x": ["n", 3, "h"]}, {"x": ("n", 3, "h")}, ["x"], NO_RANGE),
    ("outputs", {"y": ["n", "h"]}, {"y": ("n", "h")}, "y", NO_RANGE),
    ("values", {"x": -1}, {"x": -1.0}, 0, NO_RANGE),
    ("sizes", [128, 256], (128, 256), [256, 128], 0),
    ("max_elements", 0, 0, 0.5, -1),
    ("min_similarity", 0.9, 0.9, "0.5", 1.1),
]
LOCAL = [
    ("model_config", "uci_housing_model", "uci_housing_model", 1, ""),
    ("client_type", "local_predictor", "local_predictor", False, "pipeline_grpc"),
    ("fetch_list", ["a", "b"], ("a", "b"), [1], [""]),
    ("workdir", "work", "work", 0, NO_RANGE),
    ("thread_num", 4, 4, "4", 0),
    ("device_type", 0, 0, "0", 7),
    ("devices", "0,1", "0,1", 0, "gpu0"),
    ("mem_optim", False, False, 0, NO_RANGE),
    ("ir_optim", True, True, "True", NO_RANGE),
    ("precision", "INT8", "int8", 8, "fp61"),
    ("use_calib", True, True, 1, NO_RANGE),
    ("use_mkldnn", True, True, 1, NO_RANGE),
    ("mkldnn_cache_capacity", 10, 10, True, -1),
    ("mkldnn_op_list", ["conv2d"], ("conv2d",), "conv2d", [""]),
    ("mkldnn_bf16_op_list", ["fc"], ("fc",), {"fc": 1}, [""]),
    ("min_subgraph_size", 13, 13, "13", 0),
]
ROLLOUT = [
    ("steps", [5, 50], (5, 50), 5, [5.0]),
    ("hold", 60, 60.0, "60s", -1),
    ("samples", 500, 500, 0.5, 0),
    ("error_rate", 0, 0.0, "1%", 1.1),
    ("p99_ratio", 2, 2.0, "2x", 0.9),
    ("disagreement", 0.02, 0.02, "2%", -0.1),
    ("sticky", "x-user", "x-user", 1, "x user"),
    ("shadow", {}, ShadowConfig(), 10, NO_RANGE),
]
SHADOW = [
    ("share", 10, 10, 0.1, 101),
    ("requests", 16, 16, 0.5, 0),
    ("compare", "label", "label", 1, "argmax"),
    ("relative", 0.01, 0.01, "1%", 1.1),
    ("absolute", 0, 0.0, "0", -1),
]
PLACES: list[tuple[type[Any], tuple[str, ...], list[Any]]] = [
    (ServiceConfig, (), SERVICE),
    (DoorConfig, ("door",), DOOR),
    (TlsConfig, ("door", "tls"), TLS),
    (CorsConfig, ("cors",), CORS),
    (PriorityConfig, ("priority",), PRIORITY),
    (QueueConfig, ("queue",), QUEUE),
    (RolloutConfig, ("rollout", "m"), ROLLOUT),
    (ShadowConfig, ("rollout", "m", "shadow"), SHADOW),
    (UiConfig, ("ui",), UI),
    (DagConfig, ("dag",), DAG),
    (TracerConfig, ("dag", "tracer"), TRACER),
    (ExternalStoreConfig, ("dag", "external_store_options"), EXTERNAL_STORE),
    (OpConfig, ("op", "uci"), OP),
    (LocalServiceConfig, ("op", "uci", "local_service_conf"), LOCAL),
    (PadConfig, ("op", "uci", "pad"), PAD),
    (RayConfig, ("op", "uci", "ray"), RAY),
]
ROWS = [(section, place, *row) for section, place, rows in PLACES for row in rows]
IDS = [".".join((*row[1], row[2])) for row in ROWS]


def config_with(place: tuple[str, ...], key: str, value: Any) -> dict[str, Any]:
    inner: dict[str, Any] = {key: value}
    if place == ("door", "tls") and key in ("key", "client_ca"):
        inner["certificate"] = "server.pem"  # without which a key is refused
    if key == "load_model":
        inner["model_control_mode"] = "explicit"  # without which it is refused
    if key == "admin_host":
        inner["admin_port"] = 0  # without which it is refused
    if place == ("cors",):
        inner = {"origins": ["https://app.example"], **inner}  # without which others are refused
    if place == ("priority",):
        inner = {"levels": 4, **inner}
    if place == ("rollout", "m"):  # without which others are refused
        inner = {"steps": [5], "shadow": {"share": 1}, **inner}
    for step in reversed(place):
        inner = {step: inner}
    if place == ("rollout", "m", "shadow"):
        inner["rollout"]["m"]["steps"] = [5]
    return inner if inner.keys() & {"rpc_port"} else {"rpc_port": 0, **inner}


def section_at(config: ServiceConfig, place: tuple[str, ...]) -> Any:
    section: Any = config
    for step in place:
        section = section[step] if isinstance(section, dict) else getattr(section, step)
    return section


def test_the_tables_have_every_key() -> None:
    for section, _, rows in PLACES:
        assert [row[0] for row in rows if row[0] in keys_of(section)] == [row[0] for row in rows]
        assert {row[0] for row in rows} == set(keys_of(section))


@pytest.mark.parametrize(
    ("section", "place", "key", "good", "becomes", "wrong", "beyond"), ROWS, ids=IDS
)
def test_a_valid_value_is_accepted(
    section: Any, place: Any, key: str, good: Any, becomes: Any, wrong: Any, beyond: Any
) -> None:
    loaded = load(yml_dict=config_with(place, key, good), environ={})
    field = {field.alias or name: name for name, field in section.model_fields.items()}[key]
    value = getattr(section_at(loaded.config, place), field)
    assert value == becomes
    assert type(value) is type(becomes)
    assert loaded.warnings == []


@pytest.mark.parametrize(
    ("section", "place", "key", "good", "becomes", "wrong", "beyond"), ROWS, ids=IDS
)
def test_an_invalid_type_or_value_is_refused_with_its_key_path(
    section: Any, place: Any, key: str, good: Any, becomes: Any, wrong: Any, beyond: Any
) -> None:
    path = ".".join((*place, key))
    for value in (wrong, beyond):
        if value is not NO_RANGE:
            with pytest.raises(ConfigError) as caught:
                load(yml_dict=config_with(place, key, value), environ={})
            (problem,) = caught.value.problems
            assert problem.startswith((f"yml_dict: {path}: must", f"yml_dict: {path}[0]: must"))
            assert ", got " in problem


def test_an_op_s_times_are_converted_to_seconds_or_none() -> None:
    op = OpConfig.model_validate({"timeout": 3000, "auto_batching_timeout": 2.5})
    assert (op.timeout, op.window) == (3.0, 0.0025)
    off = OpConfig.model_validate({"timeout": 0, "auto_batching_timeout": -1})
    assert (off.timeout, off.window) == (None, None)


@given(st.integers() | st.floats())
def test_a_time_is_positive_and_finite_or_none(value: float) -> None:
    try:
        loaded = load(
            yml_dict={"rpc_port": 0, "op": {"a": {"auto_batching_timeout": value}}}, environ={}
        )
    except ConfigError:
        assert not 0 < value <= 2147483647
        return
    window = loaded.config.op["a"].window
    assert (window is None) == (value <= 0)


def test_card_ids_are_separated_by_commas() -> None:
    assert LocalServiceConfig(devices=" 0, 1 ").device_ids == ("0", "1")
    assert LocalServiceConfig().device_ids == ()


@pytest.mark.parametrize("entry", [{"inputs": {"x": [""]}}, {"values": {"x": "0"}}])
def test_an_invalid_entry_of_pad_is_refused_with_its_name(entry: Any) -> None:
    (key,) = entry
    with pytest.raises(ConfigError, match=rf"op.uci.pad.{key}.x(\[0\])?: must be"):
        load(yml_dict=config_with(("op", "uci"), "pad", entry), environ={})


def test_a_priority_without_a_key_of_the_queue_has_the_general_one() -> None:
    queue = QueueConfig(
        timeout=0.5,
        levels={
            "2": QueuePolicyConfig(timeout_action="delay"),
            "3": QueuePolicyConfig(timeout=9.0),
        },
    )
    policies = [(each.timeout, each.timeout_action) for each in map(queue.of, (1, 2, 3))]
    assert policies == [(0.5, "reject"), (0.5, "delay"), (9.0, "reject")]


def test_any_key_of_pad_enables_it_unless_enabled_is_false() -> None:
    assert not PadConfig().on
    assert PadConfig(sizes=32).on
    assert not PadConfig(sizes=32, enabled=False).on


def test_more_than_1024_workers_or_threads_are_refused() -> None:
    assert OpConfig.model_validate({"concurrency": 1024}).concurrency == 1024
    for data in ({"concurrency": 1025}, {"local_service_conf": {"thread_num": 1025}}):
        with pytest.raises(ValidationError, match="less than or equal to 1024"):
            OpConfig.model_validate(data)


@pytest.mark.parametrize(
    ("data", "engines", "most_running"),
    [
        ({}, 1, None),
        ({"worker_num": 4}, 1, 4),
        ({"build_dag_each_worker": True}, 1, None),
        ({"build_dag_each_worker": True, "worker_num": 4}, 4, None),
    ],
)
def test_worker_num_is_a_limit_of_requests_or_a_number_of_engines(
    data: dict[str, Any], engines: int, most_running: int | None
) -> None:
    config = ServiceConfig.model_validate(data)
    assert (config.engines, config.most_running) == (engines, most_running)


# CPUs


def cpus(value: Any) -> tuple[set[int], ...]:
    config = load(yml_dict={"rpc_port": 0, "op": {"a": {"cpu_affinity": value}}}, environ={})
    return tuple(map(set, config.config.op["a"].cpus))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", {0}),
        ("0-1,3", {0, 1, 3}),
        (" 2 , 2-2 ", {2}),
        (f"{MAX_CPU}", {MAX_CPU}),
        ("3,1-2,2", {1, 2, 3}),
    ],
)
def test_cpus_are_numbers_and_ranges(text: str, expected: set[int]) -> None:
    assert parse_cpus(text) == expected
    assert cpus(text) == (expected,)


def test_a_list_has_the_cpus_of_each_worker() -> None:
    assert cpus(["0-1", "2-3"]) == ({0, 1}, {2, 3})
    assert cpus([0, 1]) == ({0}, {1})
    assert cpus(5) == ({5},)


def test_cpus_may_be_set_by_a_flag() -> None:
    loaded = load(yml_dict={"rpc_port": 0}, overrides={"op.a.cpu_affinity": "0-1,3"}, environ={})
    assert loaded.config.op["a"].cpus == (frozenset({0, 1, 3}),)


@pytest.mark.parametrize(
    "value",
    [
        *("", " ", "a", "-1", "1-", "2-1", "0,,1", "0-1-2", f"{MAX_CPU + 1}", "0-99999", "٣"),
        *([], [""], [[0]], ["0", None], {"0": 1}, 0.5, True, -1),
    ],
    ids=repr,
)
def test_invalid_cpus_are_refused_with_the_key(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"op\.a\.cpu_affinity: must be .*0-1,3"):
        cpus(value)


@pytest.mark.parametrize(
    "origin",
    [
        *("app.example", "https://app.example/", "https://*", "https://a.*.example", "https://"),
        *("https://user@app.example", "https://app.example:99999999", "https://größe.example"),
        *("//app.example", "https://*app.example", "https://app.example,https://b.example"),
    ],
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="must be an origin"):
        load(yml_dict={"rpc_port": 0, "cors": {"origins": [origin]}}, environ={})


@pytest.mark.parametrize(
    "origin",
    [
        *("*", "null", "https://app.example:8443", "http://127.0.0.1:3000", "http://[::1]:3000"),
        *("https://*.app.example:*", "chrome-extension://abcdef", "tauri://localhost"),
    ],
)
def test_origins_of_browsers_and_of_other_programs_with_pages(origin: str) -> None:
    loaded = load(yml_dict={"rpc_port": 0, "cors": {"origins": [origin]}}, environ={})
    assert loaded.config.cors.origins == (origin,)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("ray://head:10001", "does not use Ray's client"),
        ("head", "must be auto, or host:port"),
        (":6379", "must be auto, or host:port"),
    ],
)
def test_an_address_of_ray_is_refused_with_the_reason(address: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        OpConfig.model_validate({"ray": {"address": address}})
    for each in ("auto", "head:6379"):
        assert OpConfig.model_validate({"ray": {"address": each}}).ray.address == each
