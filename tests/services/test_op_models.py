"""Ops whose models have versions: one op of a running service changes its model."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from penstock.observe.status import ask_status, shown
from tests.kit.onnx_models import scale
from tests.services.process import ServiceProcess, running
from tests.services.repository import (
    Repository,
    alive,
    engine_pids,
    in_order,
    index,
    load,
    models,
    once,
    states,
    until,
    workers,
)

pytestmark = pytest.mark.real

SHORT = """
from penstock import Model, Service
Service("m", Model("models/scale", versions="latest", name="scale"{more})).run_service()
"""
CLASSIC = """
from penstock import Op, WebService

class Scales(WebService):
    def get_pipeline_response(self, read_op):
        return Op(name="scale", input_ops=[read_op])

service = Scales(name="m")
service.prepare_pipeline_config("config.yml")
service.run_service()
"""
CONFIG = """
op:
  scale:
    versions: {versions}
    local_service_conf: {{client_type: local_predictor, model_config: models/scale}}
"""
THREE = {"PENSTOCK_BUILD_DAG_EACH_WORKER": "true", "PENSTOCK_WORKER_NUM": "3"}
KINDS = pytest.mark.parametrize(
    ("more", "environment"),
    [
        pytest.param("", {}, id="process", marks=pytest.mark.long),
        pytest.param(", executor='thread'", {}, id="thread", marks=pytest.mark.long),
        pytest.param("", THREE, id="process, three engines", marks=pytest.mark.long),
        pytest.param(", executor='thread'", THREE, id="thread, three engines"),
    ],
)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "models")
    made.add("scale", 1)
    return made


@contextmanager
def serving(
    repository: Repository, script: str, environment: dict[str, str] | None = None, **more: Any
) -> Iterator[ServiceProcess]:
    """A service of a script beside the repository."""
    file = repository.folder.parent / "app.py"
    file.write_text(script)
    variables = {
        "XDG_CACHE_HOME": str(repository.folder.parent / "cache"),
        "PENSTOCK_REPOSITORY_POLL_SECS": "0.2",
        **(environment or {}),
    }
    with running(file, environment=variables, **more) as server:
        yield server


def version_of(answer: Any) -> str:
    """The version of the op's model that gave an answer, which has as its factor."""
    (values,) = (each["data"] for each in answer["outputs"] if each["name"] == "y")
    return f"{values[0]:.0f}"


@KINDS
def test_an_op_changes_its_model_under_load(
    repository: Repository, more: str, environment: dict[str, str]
) -> None:
    with serving(repository, SHORT.format(more=more), environment) as server:
        before = workers(server, "1")
        with load(server, version_of=version_of) as callers:
            callers.wait("1")
            repository.add("scale", 2)
            callers.wait("2")
            whole = scale(repository.folder.parent / "whole.onnx", 3).read_bytes()
            repository.put("scale", 3, whole[: len(whole) // 2])
            until(lambda: states(server, "scale").get("3") == "UNAVAILABLE")
            made = repository.folder.parent / "made-4"
            made.mkdir()
            scale(made / "model.onnx", 4, output="z")
            repository.move(made, "scale", 4)
            row = until(lambda: index(server, "scale").get("4"))
            until(lambda: "another signature" in index(server, "scale")["4"]["reason"])
            assert row["version"] == "4"
            repository.add("scale", 5)
            callers.wait("5")
        assert callers.failures == []
        together = callers.answers if environment else [[*chain.from_iterable(callers.answers)]]
        assert all(in_order(each) for each in together)
        assert {*callers.versions} == {"1", "2", "5"}
        until(lambda: not alive(before))
        until(lambda: states(server, "scale")["5"] == "READY")
        assert once(server)[1]["model_version"] == "1"  # that of the graph
        assert models(server, "rollback", "scale").returncode == 0
        assert version_of(once(server)[1]) == "2"
        refused = models(server, "unload", "scale")
        assert refused.returncode == 1
        assert "op 'scale' needs a model: it cannot be unloaded" in refused.stderr
        where = "threads for models" if "thread" in more else "worker processes for each version"
        assert f"  with  {where}" in server.log()
        kept = "models that may change are open in threads" in shown(ask_status(server.http_url))
        assert kept == ("thread" in more)
        assert "Traceback" not in server.log()
        assert server.stop() == 0
        assert server.leftovers() == []


def test_a_key_of_a_configuration_file_says_it_too(repository: Repository) -> None:
    config = repository.folder.parent / "config.yml"
    config.write_text(CONFIG.format(versions="latest"))
    repository.add("scale", 2)
    with serving(repository, CLASSIC) as server:
        with load(server, version_of=version_of) as callers:
            callers.wait("2")
            repository.add("scale", 3)
            callers.wait("3")
        assert callers.failures == []
        assert "op    scale  after request  1 process, models/scale/2" in server.log()
        assert "model scale  version 2, onnx: x float32[?, 3] -> y" in server.log()


def test_a_number_is_that_version_and_no_other(repository: Repository) -> None:
    config = repository.folder.parent / "config.yml"
    config.write_text(CONFIG.format(versions=1))
    repository.add("scale", 2)
    with serving(repository, CLASSIC, {"PENSTOCK_MODEL_CONTROL_MODE": "explicit"}) as server:
        assert version_of(once(server)[1]) == "1"
        assert models(server, "load", "scale").returncode == 0
        assert version_of(once(server)[1]) == "1"
    config.write_text(CONFIG.format(versions=7))
    with serving(repository, CLASSIC, ready=False) as server:
        assert server.wait_exit() == 1
        assert "op.scale.versions: models/scale: it has no version 7" in server.log()


@pytest.mark.parametrize("environment", [{}, THREE], ids=["one engine", "three engines"])
def test_workers_and_engines_that_start_later_have_the_version_that_serves(
    repository: Repository, environment: dict[str, str]
) -> None:
    with serving(repository, SHORT.format(more=""), environment) as server:
        with load(server, version_of=version_of) as callers:
            callers.wait("1")
            repository.add("scale", 2)
            callers.wait("2")
        assert callers.failures == []
        until(lambda: states(server, "scale") == {"1": "UNAVAILABLE", "2": "READY"})
        killed = workers(server, "1")
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        until(lambda: len({*workers(server, "1")} - {*killed}) == len(killed))
        with load(server, version_of=version_of) as callers:
            callers.wait("2")
        assert {*callers.versions} == {"2"}
        if environment:
            first = int(engine_pids(server)[0])
            os.kill(first, signal.SIGKILL)
            until(lambda: first not in [each.pid for each in server.descendants()])
            until(server.is_ready)
            with load(server, version_of=version_of) as callers:
                repository.add("scale", 3)
                callers.wait("3")
            assert {*callers.versions} <= {"2", "3"}
