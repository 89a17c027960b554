import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.config.load import Loaded, from_environment, load, parse_override, read_overriding
from penstock.config.op import LocalServiceConfig, OpConfig
from penstock.config.problems import Problem
from penstock.config.schema import DagConfig, ServiceConfig, TracerConfig
from penstock.config.section import keys_of
from penstock.errors import ConfigError

MANY_FAULTS = """\
rpc_port:
http_prot: 18080
worker_num: true
dag:
  retry: 0
  tracer: 10
op:
  det:
    concurrency: 2
    device_type: 1
    concurrency: 3
    local_service_conf:
      devices: 0
      thread_nums: 2
  rec:
    batch_size: "4"
    fetch_list:
    local_service_conf:
      fetch_list: [a, 1, b, 2]
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yml"
    path.write_text(text)
    return path


def problems_of(**arguments: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(**{"environ": {}, **arguments})
    return caught.value.problems


def test_all_problems_are_listed_at_once_with_line_and_key(tmp_path: Path) -> None:
    path = write(tmp_path, MANY_FAULTS)
    problems = [each.removeprefix(f"{path}:") for each in problems_of(yml_file=path)]
    assert problems == [
        "1: rpc_port: is left blank: give it a value or leave the key out",
        "2: http_prot: is not a known key; did you mean http_port?",
        "3: worker_num: must be an integer, got true",
        "5: dag.retry: must be at least 1, got 0",
        "6: dag.tracer: must be a mapping of keys to values, got 10",
        "10: op.det.device_type: is not a known key;"
        " device_type belongs under op.<name>.local_service_conf",
        "11: op.det.concurrency: is given twice, first on line 9",
        '13: op.det.local_service_conf.devices: must be text, got 0: put it in quotes, "0"',
        "14: op.det.local_service_conf.thread_nums: is not a known key; did you mean thread_num?",
        "16: op.rec.batch_size: must be an integer, got the text '4':"
        " write the number without quotes and without a unit",
        "17: op.rec.fetch_list: is left blank: give it a value or leave the key out",
        '19: op.rec.local_service_conf.fetch_list[1]: must be text, got 1: put it in quotes, "1"',
        '19: op.rec.local_service_conf.fetch_list[3]: must be text, got 2: put it in quotes, "2"',
    ]


def test_a_blank_key_with_a_default_has_the_default() -> None:
    blank: dict[str, Any] = {"rpc_port": 0, "http_port": 0}
    sections = [
        (ServiceConfig, blank),
        (DagConfig, blank.setdefault("dag", {})),
        (TracerConfig, blank["dag"].setdefault("tracer", {})),
        (OpConfig, blank.setdefault("op", {}).setdefault("uci", {})),
        (LocalServiceConfig, blank["op"]["uci"].setdefault("local_service_conf", {})),
    ]
    for section, data in sections:
        for key in keys_of(section):
            if key not in section.never_blank:
                data.setdefault(key, None)
    config = load(yml_dict=blank, environ={}).config
    assert config == ServiceConfig(rpc_port=0, http_port=0, op={"uci": OpConfig()})


@pytest.mark.parametrize(
    ("place", "key"),
    [
        *(((), key) for key in ("rpc_port", "http_port", "grpc_gateway_port")),
        *((("op", "a"), key) for key in ("server_endpoints", "client_config", "fetch_list")),
        *(
            (("op", "a", "local_service_conf"), key)
            for key in ("model_config", "mkldnn_op_list", "mkldnn_bf16_op_list")
        ),
    ],
)
def test_a_blank_key_that_requires_a_value_is_refused(place: tuple[str, ...], key: str) -> None:
    data: dict[str, Any] = {"rpc_port": 0, "http_port": 0}
    inner = data
    for step in place:
        inner = inner.setdefault(step, {})
    inner[key] = None
    path = ".".join((*place, key))
    expected = f"yml_dict: {path}: is left blank: give it a value or leave the key out"
    assert problems_of(yml_dict=data) == [expected]


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (
            {"op": {"x": {"workers": 1}}},
            "op.x.workers: is not a known key; it is called concurrency here",
        ),
        (
            {"op": {"x": {"wait": 1}}},
            "op.x.wait: is not a known key; it is called auto_batching_timeout here",
        ),
        ({"work_num": 1}, "work_num: is not a known key; did you mean worker_num?"),
        ({"RPC-PORT": 1}, "RPC-PORT: is not a known key; did you mean rpc_port?"),
        ({"dag": {"is_tread": 1}}, "dag.is_tread: is not a known key; did you mean is_thread_op?"),
        (
            {"timeout": 1},
            "timeout: is not a known key; timeout belongs under queue or queue.levels.<name>"
            " or dag.external_store_options or op.<name>",
        ),
        (
            {"op": {"a": {"host": 1}}},
            "op.a.host: is not a known key; host belongs under the top of the file",
        ),
        ({"retry": 1}, "retry: is not a known key; retry belongs under dag or op.<name>"),
        ({"zzz": 1}, "zzz: is not a known key"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(data: Any, hint: str) -> None:
    assert problems_of(yml_dict={"rpc_port": 0, **data}) == [f"yml_dict: {hint}"]


def test_an_unknown_key_is_refused_even_if_blank() -> None:
    assert problems_of(yml_dict={"rpc_port": 0, "op": {"det": {"devices": None}}}) == [
        "yml_dict: op.det.devices: is not a known key;"
        " devices belongs under op.<name>.local_service_conf"
    ]


def test_lenient_turns_unknown_keys_into_warnings_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path, "rpc_port: 0\nwork_num: 1\nop:\n  det:\n    devices: ''\n")
    loaded = load(yml_file=path, environ={}, lenient=True)
    assert loaded.config == ServiceConfig(rpc_port=0, op={"det": OpConfig()})
    assert loaded.warnings == [
        f"{path}:2: work_num: is not a known key; did you mean worker_num?",
        f"{path}:5: op.det.devices: is not a known key;"
        " devices belongs under op.<name>.local_service_conf",
    ]
    assert problems_of(yml_dict={"rpc_port": 0, "work_num": 1, "worker_num": 0}, lenient=True) == [
        "yml_dict: worker_num: must be at least 1, got 0"
    ]


def test_an_unknown_key_of_security_is_never_ignored() -> None:
    data = {"rpc_port": 0, "securities": {}, "security": {"keys": "k", "scopees": {}}, "jwt": {}}
    assert problems_of(yml_dict=data, lenient=True) == [
        "yml_dict: security.scopees: is not a known key; did you mean scopes?",
        "yml_dict: securities: is not a known key; did you mean security?",
        "yml_dict: jwt: is not a known key; jwt belongs under security",
    ]


def test_a_dict_is_not_modified_even_by_overrides() -> None:
    data: dict[str, Any] = {"rpc_port": 0, "dag": None, "op": {"uci": {"fetch_list": ["a"]}}}
    before = copy.deepcopy(data)
    loaded = load(yml_dict=data, overrides={"op.uci.concurrency": 3, "dag.retry": 2}, environ={})
    assert data == before
    assert loaded.config.op["uci"].concurrency == 3
    assert loaded.config.dag.retry == 2
    assert loaded.source == "yml_dict"


def test_flags_override_the_environment_and_the_environment_overrides_yaml(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, "rpc_port: 18080\nhttp_port: 18081\nhost: 127.0.0.2\nworker_num: 1\n")
    environ = {
        "PENSTOCK_HTTP_PORT": "18082",
        "PENSTOCK_HOST": "0.0.0.0",
        "PENSTOCK_NAME": "7",
        "PENSTOCK_WORKER_NUM": "",
    }
    overrides = {"host": "::1", "deadline": 2.5, "name": None}
    config = load(yml_file=path, environ=environ, overrides=overrides).config
    assert (config.rpc_port, config.http_port) == (18080, 18082)
    assert (config.host, config.name, config.worker_num) == ("::1", "7", 1)
    assert config.deadline == 2.5


def test_a_further_file_overrides_code_and_yaml_and_is_below_the_environment(
    tmp_path: Path,
) -> None:
    file = tmp_path / "over.yml"
    file.write_text(
        "name: over\ndeadline: 7\nop:\n  a: {concurrency: 5}\n"
        "priority:\n  levels: 2\n  routes: {/a.b: 2}\n"
    )
    found = load(
        yml_dict={"name": "dict", "http_port": 8000, "op": {"a": {"concurrency": 2, "retry": 3}}},
        over=read_overriding(file),
        constructors={("op", "a", "concurrency"): 4},
        environ={"PENSTOCK_DEADLINE": "8"},
        overrides={"rpc_port": 8001},
    )
    config = found.config
    assert (config.name, config.http_port, config.deadline) == ("over", 8000, 8.0)
    assert (config.op["a"].concurrency, config.op["a"].retry) == (5, 3)
    assert config.priority.routes == {"/a.b": 2}
    assert ("name",) in found.overriding
    assert ("http_port",) not in found.overriding


def test_problems_of_a_further_file_have_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "over.yml"
    file.write_text("op:\n  a:\n    concurrency: many\nhttp_prt: 8000\n")
    with pytest.raises(ConfigError) as caught:
        load(yml_dict={"rpc_port": 0}, over=read_overriding(file), environ={})
    assert {each.partition(": ")[0] for each in caught.value.problems} == {f"{file}:3", f"{file}:4"}
    file.write_text("deadline: 1\ndeadline: 2\n")
    with pytest.raises(ConfigError, match=r"over\.yml:2: deadline"):
        read_overriding(file)


def test_an_invalid_value_is_reported_with_its_source(tmp_path: Path) -> None:
    path = write(tmp_path, "rpc_port: 18080\nworker_num: 1\nop:\n  a: 5\n")
    problems = problems_of(
        yml_file=path,
        environ={"PENSTOCK_WORKER_NUM": "many"},
        overrides={"op.b.retry": 0, "op.b.retri": 1, "dag.": 1},
    )
    assert sorted(problems) == sorted(
        [
            f"{path}:4: op.a: must be a mapping of keys to values, got 5",
            "environment PENSTOCK_WORKER_NUM: worker_num: must be an integer, got the text 'many':"
            " write the number without quotes and without a unit",
            "flag: op.b.retry: must be at least 1, got 0",
            "flag: op.b.retri: is not a known key; did you mean retry?",
            "flag: dag.: is not a known key",
        ]
    )


def test_a_variable_sets_nested_keys_above_constructors_and_below_flags() -> None:
    loaded = load(
        yml_dict={"rpc_port": 0, "op": {"a": {"retry": 2, "concurrency": 1}}},
        overrides={"op.a.concurrency": 2},
        environ={"PENSTOCK_SET": "op.a.concurrency=3;op.a.retry=4;dag.retry=5"},
    )
    op = loaded.config.op["a"]
    assert (op.concurrency, op.retry, loaded.config.dag.retry) == (2, 4, 5)
    assert op.forced == {"concurrency", "retry"}
    assert loaded.warnings == []
    assert problems_of(yml_dict={"rpc_port": 0}, environ={"PENSTOCK_SET": "dag.retri=1"}) == [
        "environment PENSTOCK_SET: dag.retri: is not a known key; did you mean retry?"
    ]


@pytest.mark.parametrize(
    ("yaml", "environ", "overrides", "host"),
    [
        ({}, {}, {}, "0.0.0.0"),
        ({"host": None}, {}, {}, "0.0.0.0"),
        ({"host": "::1"}, {}, {}, "::1"),
        ({}, {"PENSTOCK_HOST": "::1"}, {}, "::1"),
        ({}, {}, {"host": "::1"}, "::1"),
    ],
)
def test_the_caller_s_defaults_apply_only_to_unset_keys(
    yaml: dict[str, Any], environ: dict[str, str], overrides: dict[str, str], host: str
) -> None:
    data = {"rpc_port": 0, "dag": {"retry": 2}, **yaml}
    defaults = {("host",): "0.0.0.0", ("dag", "is_thread_op"): False, ("dag", "retry"): 3}
    config = load(yml_dict=data, defaults=defaults, environ=environ, overrides=overrides).config
    assert config.host == host
    assert (config.dag.is_thread_op, config.dag.retry) == (False, 2)
    assert data == {"rpc_port": 0, "dag": {"retry": 2}, **yaml}


def test_a_relative_file_is_relative_to_the_base_folder(tmp_path: Path) -> None:
    write(tmp_path, "rpc_port: 18080\n")
    loaded = load(yml_file="config.yml", base_dir=tmp_path, environ={})
    assert loaded == Loaded(
        config=ServiceConfig(rpc_port=18080), warnings=[], source=str(tmp_path / "config.yml")
    )


@pytest.mark.parametrize("arguments", [{}, {"yml_file": "a.yml", "yml_dict": {}}])
def test_either_a_file_or_a_dict_must_be_given(arguments: dict[str, Any]) -> None:
    assert problems_of(**arguments) == ["give either yml_file or yml_dict"]


@pytest.mark.parametrize("data", [[], "rpc_port: 1", 5])
def test_a_dict_of_another_type_is_refused(data: Any) -> None:
    [problem] = problems_of(yml_dict=data)
    assert problem.startswith("yml_dict: must be a mapping, got ")


def test_keys_of_a_dict_must_be_text() -> None:
    assert problems_of(yml_dict={"rpc_port": 0, 1: 2, "op": {3: {}, "a": {None: 1}}}) == [
        "yml_dict: op: the name 3 is not text: put it in quotes",
        "yml_dict: op.a: the key nothing is not text",
        "yml_dict: the key 1 is not text",
    ]


def test_a_name_of_an_op_must_be_printable() -> None:
    assert problems_of(yml_dict={"rpc_port": 0, "op": {"a\udcff": {}, "b": {"x": 1}}})[0] == (
        "yml_dict: op: the name 'a\\udcff' has unprintable characters: choose another"
    )


def test_a_dict_that_contains_itself_is_refused() -> None:
    data: dict[str, Any] = {"rpc_port": 0}
    data["op"] = {"a": data}
    data["dag"] = {"tracer": data}
    assert problems_of(yml_dict=data)


KEYS = sorted(
    {
        key
        for s in (ServiceConfig, DagConfig, TracerConfig, OpConfig, LocalServiceConfig)
        for key in keys_of(s)
    }
)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["local_predictor", "brpc", "0", "fp16", 18080, 2, 10**400])
)  # fmt: skip
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS) | st.text(max_size=5) | st.integers(), inner, max_size=6
        )
    ),
    max_leaves=25,
)


def loaded_or_refused(**arguments: Any) -> Loaded | ConfigError:
    try:
        return load(**{"environ": {}, **arguments})
    except ConfigError as error:
        return error


def check(result: Loaded | ConfigError) -> None:
    if isinstance(result, ConfigError):
        assert result.problems
        assert all("\n" not in each for each in result.problems)
    else:
        assert isinstance(result.config, ServiceConfig)


@given(
    data=st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), TREES, max_size=8),
    lenient=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_dict_is_loaded_or_a_config_error(data: dict[str, Any], lenient: bool) -> None:
    check(loaded_or_refused(yml_dict=data, lenient=lenient))


VALUES = ["", "0", "1", "18080", "true", "'0'", "[a, b]", "{a: 1}", "*x", "&x 5", "-1", "brpc", "|"]
LINES = st.builds(
    lambda indent, key, value: f"{'  ' * indent}{key}: {value}",
    st.integers(0, 3),
    st.sampled_from([*KEYS, "uci", "*x", "<<", "&x", "1"]),
    st.sampled_from(VALUES),
)


@given(st.text(max_size=40) | st.lists(LINES, max_size=8).map("\n".join), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_file_is_loaded_or_a_config_error(tmp_path: Path, text: str, lenient: bool) -> None:
    path = tmp_path / "config.yml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    check(loaded_or_refused(yml_file=path, lenient=lenient))


@given(st.text(max_size=30), st.text(max_size=10))
def test_any_override_and_variable_is_loaded_or_a_config_error(text: str, value: str) -> None:
    try:
        key, parsed = parse_override(f"{text}={value}")
    except ConfigError:
        return
    environ = {"PENSTOCK_HOST": value, "PENSTOCK_DEADLINE": value}
    check(loaded_or_refused(yml_dict={"rpc_port": 0}, overrides={key: parsed}, environ=environ))


# Unknown variables


def test_a_misspelt_variable_is_a_warning_with_the_nearest_name() -> None:
    loaded = load(
        yml_dict={"rpc_port": 0},
        environ={"PENSTOCK_HTTP_PRT": "8080", "PENSTOCK_COLOUR": "red", "HTTP_PRT": "1"},
    )
    assert loaded.warnings == [
        "environment PENSTOCK_HTTP_PRT: is not a known variable and sets nothing;"
        " did you mean PENSTOCK_HTTP_PORT?",
        "environment PENSTOCK_COLOUR: is not a known variable and sets nothing",
    ]


def test_the_token_of_commands_is_no_key_of_a_service() -> None:
    loaded = load(yml_dict={"rpc_port": 0}, environ={"PENSTOCK_TOKEN": "psk_secret"})
    assert loaded.warnings == []


def test_the_variables_that_kubernetes_sets_for_a_service_cause_no_warning() -> None:
    variables = {
        "PENSTOCK_SERVICE_HOST": "10.0.0.1",
        "PENSTOCK_SERVICE_PORT": "8080",
        "PENSTOCK_SERVICE_PORT_HTTP": "8080",
        "PENSTOCK_PORT": "tcp://10.0.0.1:8080",
        "PENSTOCK_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "PENSTOCK_PORT_8080_TCP_ADDR": "10.0.0.1",
    }
    assert load(yml_dict={"rpc_port": 0}, environ=variables).warnings == []


def test_the_variable_of_a_kubernetes_service_with_the_name_of_a_key_sets_nothing() -> None:
    variables = {"PENSTOCK_HTTP_PORT": "tcp://10.0.0.1:8080", "PENSTOCK_ADMIN_PORT": "udp://1"}
    loaded = load(yml_dict={"http_port": 8080}, environ=variables)
    assert (loaded.config.http_port, loaded.config.admin_port) == (8080, None)
    assert loaded.warnings == []


def test_a_later_problem_is_reported_with_the_place_of_its_key(tmp_path: Path) -> None:
    write(tmp_path, "rpc_port: 0\nop:\n  a:\n    retry: 2\n")
    loaded = load(
        yml_file="config.yml",
        base_dir=tmp_path,
        environ={},
        overrides={"op.a.concurrency": 2},
    )
    at = tmp_path / "config.yml"
    assert loaded.place(Problem(path=("op", "a", "retry"), text="odd")) == (
        f"{at}:4: op.a.retry: odd"
    )
    assert loaded.place(Problem(path=("op", "a", "concurrency"), text="odd")) == (
        "flag: op.a.concurrency: odd"
    )


# Texts of flags and environment variables


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("rpc_port=18080", "rpc_port", 18080),
        ("op.uci.concurrency = 4", "op.uci.concurrency", 4),
        ("deadline=2.5", "deadline", 2.5),
        ("op.uci.timeout=-1", "op.uci.timeout", -1),
        ("dag.is_thread_op=True", "dag.is_thread_op", True),
        ("strict_status=false", "strict_status", False),
        ("op.uci.local_service_conf.devices=0", "op.uci.local_service_conf.devices", "0"),
        ("op.uci.local_service_conf.devices='0,1'", "op.uci.local_service_conf.devices", "0,1"),
        ("op.uci.local_service_conf.devices=", "op.uci.local_service_conf.devices", ""),
        ("op.uci.local_service_conf.precision=fp16", "op.uci.local_service_conf.precision", "fp16"),
        ("op.uci.devices=0", "op.uci.local_service_conf.devices", "0"),
        ("op.uci.client_config=a=b", "op.uci.client_config", "a=b"),
        ("op.uci.fetch_list=price", "op.uci.fetch_list", ["price"]),
        ("op.uci.fetch_list=[a, 'b', 1]", "op.uci.fetch_list", ["a", "b", "1"]),
        ("op.dag.concurrency=2", "op.dag.concurrency", 2),
        ("name=7", "name", "7"),
        ("concurrency=2", "concurrency", 2),
        ("unknown.key=text", "unknown.key", "text"),
        ("host.inner.deeper=1", "host.inner.deeper", 1),
        ("op.uci=5", "op.uci", 5),
    ],
)
def test_an_override_is_parsed_by_the_type_of_its_key(text: str, key: str, value: Any) -> None:
    parsed = parse_override(text)
    assert parsed == (key, value)
    assert type(parsed[1]) is type(value)


@pytest.mark.parametrize("text", ["", "rpc_port", "=5", ".a=1", "a..b=1", "a.=1", " =1"])
def test_an_override_without_a_key_or_a_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="an override is written key=value"):
        parse_override(text)


def test_one_variable_sets_several_keys_at_any_depth() -> None:
    environ = {
        "PENSTOCK_SET": " op.uci.concurrency=4; op.uci.fetch_list=a,b;;rollout.m.steps=[5, 25];"
        "deadline=5;",
        "PENSTOCK_DEADLINE": "6",
    }
    assert from_environment(environ) == {
        "op.uci.concurrency": ("PENSTOCK_SET", 4),
        "op.uci.fetch_list": ("PENSTOCK_SET", ["a", "b"]),
        "rollout.m.steps": ("PENSTOCK_SET", [5, 25]),
        "deadline": ("PENSTOCK_DEADLINE", 6),
    }
    with pytest.raises(ConfigError, match="environment PENSTOCK_SET: deadline: an override is"):
        from_environment({"PENSTOCK_SET": "deadline"})


@pytest.mark.parametrize(
    ("given", "environment"),
    [
        ({"ui": {"token": "hush hush"}}, {}),
        ({"ui": {"token": 271828182845904523}}, {}),
        ({"ui": "token=hush"}, {}),
        ({}, {"PENSTOCK_SET": "ui.token=hush"}),
        ({}, {"PENSTOCK_SET": "ui.token hush"}),
    ],
)
def test_a_wrong_token_is_not_repeated(given: dict[str, Any], environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as refused:
        load(yml_dict={"rpc_port": 0, **given}, environ=environment)
    assert "ui" in str(refused.value)
    assert "hush" not in str(refused.value)
    assert "271828" not in str(refused.value)
