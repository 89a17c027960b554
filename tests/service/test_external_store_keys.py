"""The keys of the external store: what reaches the ops, refusals, and a warning."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from penstock import Op
from penstock.errors import ConfigError
from penstock.executors import kinds
from penstock.executors.elsewhere.executor import ElsewhereExecutor
from penstock.executors.external_store import kinds as stores
from penstock.executors.kinds import ExecutorKind
from penstock.service.external_store import store_options, stored_ops
from tests.service.in_process import blueprint_of, root

FAR = ExecutorKind(name="far", make=ElsewhereExecutor, elsewhere=True)  # type: ignore[arg-type]
SECRET = "hush-hush"


class Work(Op):
    """Does nothing."""

    def process(self, feed_batch: Any, typical_logid: Any) -> Any:
        return feed_batch[0]


@pytest.fixture(autouse=True)
def _far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kinds._registered, "far", FAR)


def blueprint(url: str | None = "redis://store:7/1", far: str = "ab", **options: Any) -> Any:
    last = Work("b", input_ops=[Work("a", input_ops=[root()])])
    dag = {"external_store": url, "external_store_options": options}
    entries = {name: {"executor": "far"} for name in far}
    return blueprint_of(
        last, {"op": entries, "dag": {key: value for key, value in dag.items() if value}}
    )


def problem(*arguments: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        blueprint(*arguments, **options)
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_the_keys_reach_the_ops(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(SECRET)
    found = blueprint(min_bytes=7, timeout=2, password=str(tmp_path / "password"))
    options = store_options(found.config, "sums")
    assert options is not None
    assert (options.service, str(options.address)) == ("sums", "redis://store:7/1")
    assert (options.min_bytes, options.timeout) == (7, 2.0)
    assert stored_ops(found.graph.plan, found.graph.ops, found.options, found.config) == {0}
    assert not any("external_store" in each for each in found.warnings)
    assert store_options(blueprint(None).config, "sums") is None


def test_a_store_that_nothing_uses_is_told() -> None:
    for far in ("", "a", "b"):
        found = blueprint(far=far)
        assert any("dag.external_store has no effect" in each for each in found.warnings)
        assert (
            stored_ops(found.graph.plan, found.graph.ops, found.options, found.config)
            == frozenset()
        )


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        (f"redis://:{SECRET}@", {}, "external_store: must be a URL such as"),
        (f"redis://:{SECRET}@h/x", {}, "is the number of a database"),
        (f"http://:{SECRET}@h", {}, "must begin with one of redis://, valkey://"),
        (f"redis://:{SECRET}@h", {"password": "env:PASSWORD"}, "is a second password"),
        (
            "redis://h",
            {"password": "env:NO_SUCH"},
            "password: env:NO_SUCH: the variable is not set",
        ),
        ("redis://h", {"password": "/no/such"}, "password: /no/such: the token cannot be read"),
        ("redis://h", {"ca_file": "/no/such"}, "ca_file: is for rediss://, with TLS"),
        ("rediss://h", {"ca_file": "/no/such"}, "ca_file: /no/such: No such file"),
        ("rediss://h", {"key_file": "/no/such"}, "key_file: needs cert_file"),
        ("redis://h", {"min_bytes": 0}, "min_bytes: must be at least 1"),
        (None, {"min_bytes": 5}, "external_store_options: needs dag.external_store"),
    ],
)
def test_what_cannot_work_is_refused_without_its_password(
    url: str | None, options: dict[str, Any], text: str
) -> None:
    assert text in problem(url, **options)


def test_without_the_package_redis_the_service_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stores, "find_spec", lambda name: None)
    assert "pip install 'penstock-serving[redis]'" in problem()
    assert importlib.util.find_spec("redis") is not None


def test_the_configuration_does_not_show_its_url() -> None:
    found = blueprint(f"redis://:{SECRET}@h")
    assert SECRET not in f"{found.config!r} {found!r}"


class Before(Op):
    """Has a hook before its call."""

    def preprocess(self, input_dicts: Any, data_id: Any, log_id: Any) -> Any:
        return {}, False, None, ""


class After(Op):
    """Has a hook after its call."""

    def postprocess(self, input_dicts: Any, fetch: Any, data_id: Any, log_id: Any) -> Any:
        return {}, None, ""


REMOTE = {"server_endpoints": ["h:1"]}


@pytest.mark.parametrize(
    ("first", "second", "more", "kept"),
    [
        (Op, Op, {}, {0}),
        (Before, Op, {}, {0}),
        (Op, After, {}, {0}),
        (After, Op, {}, set()),
        (Op, Before, {}, set()),
        (Op, Op, {"batch_size": 2}, set()),
        (Op, Op, {"client_type": "pipeline_grpc"}, set()),
    ],
)
def test_values_of_remote_ops_without_hooks_stay_in_the_store(
    first: type[Op],
    second: type[Op],
    more: dict[str, Any],
    kept: set[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHARED", "0123456789abcdef")
    last = second("b", input_ops=[first("a", input_ops=[root()])])
    for options in ({"shared_secret": "env:SHARED"}, {}):
        dag = {"external_store": "redis://h", "external_store_options": options}
        ops = {"a": REMOTE, "b": {**REMOTE, **more}}
        found = blueprint_of(last, {"op": ops, "dag": dag})
        wanted = kept if options else set()
        assert stored_ops(found.graph.plan, found.graph.ops, found.options, found.config) == wanted
        told = any("dag.external_store has no effect" in each for each in found.warnings)
        assert told is (not options), "with a secret, other services may use it"


def test_a_short_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARED", SECRET)
    assert "has fewer than 16 characters" in problem(shared_secret="env:SHARED")
    assert "the variable is not set" in problem(shared_secret="env:NO_SUCH")
