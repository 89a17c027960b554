from typing import Any

import pytest

from penstock.config.overrides import from_environment, parse_override
from penstock.config.schema import ENVIRONMENT
from penstock.errors import ConfigError


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
def test_an_override_is_read_as_its_key_needs(text: str, key: str, value: Any) -> None:
    parsed = parse_override(text)
    assert parsed == (key, value)
    assert type(parsed[1]) is type(value)


@pytest.mark.parametrize("text", ["", "rpc_port", "=5", ".a=1", "a..b=1", "a.=1", " =1"])
def test_an_override_without_a_key_or_a_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="an override is written key=value"):
        parse_override(text)


def test_only_top_level_keys_with_one_value_have_a_variable() -> None:
    assert ENVIRONMENT["PENSTOCK_HTTP_PORT"] == "http_port"
    assert {"PENSTOCK_DAG", "PENSTOCK_OP"}.isdisjoint(ENVIRONMENT)


def test_empty_and_foreign_variables_are_not_read() -> None:
    environ = {
        "PENSTOCK_HOST": "",
        "PENSTOCK_DEADLINE": "5",
        "HTTP_PORT": "1",
        "PENSTOCK_NAME": "1",
    }
    assert from_environment(environ) == {
        "deadline": ("PENSTOCK_DEADLINE", 5),
        "name": ("PENSTOCK_NAME", "1"),
    }


def test_one_variable_sets_keys_at_any_depth() -> None:
    environ = {
        "PENSTOCK_SET": " op.uci.concurrency=4; op.uci.fetch_list=a,b;;deadline=5;",
        "PENSTOCK_DEADLINE": "6",
    }
    assert from_environment(environ) == {
        "op.uci.concurrency": ("PENSTOCK_SET", 4),
        "op.uci.fetch_list": ("PENSTOCK_SET", ["a", "b"]),
        "deadline": ("PENSTOCK_DEADLINE", 6),
    }
    with pytest.raises(ConfigError, match="environment PENSTOCK_SET: deadline: an override is"):
        from_environment({"PENSTOCK_SET": "deadline"})
