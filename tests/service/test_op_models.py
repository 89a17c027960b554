"""Versions of the models of ops: what a graph is made of, and what is refused."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import App, Model, Op, Service
from penstock.errors import ConfigError, ModelError, StartupError, VersionsError
from penstock.repository.options import OpModel, Repositories
from penstock.repository.served import Served, Update
from penstock.service.blueprint import Deployment, deploy
from penstock.service.op_models import OpShelf, OpVersions, op_models_of, with_op_models
from penstock.service.repository import Controller
from penstock.testing import client
from tests.kit.onnx_models import scale


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for version in (1, 2):
        place = tmp_path / "models" / "scale" / str(version)
        place.mkdir(parents=True)
        scale(place / "model.onnx", version)
        (place / "_SUCCESS").touch()
    return tmp_path / "models" / "scale"


def deployment_of(last: Op) -> Deployment:
    service = Service("m", last)
    service.prepare_beside({})
    return deploy([service.blueprint()])


def test_ops_without_versions_change_nothing(folder: Path) -> None:
    deployment = deployment_of(Model(folder / "1"))
    assert with_op_models(deployment) is deployment


def test_an_op_runs_the_newest_version_in_a_process_and_a_copy_of_the_op(folder: Path) -> None:
    last = Model(folder, versions="latest")
    deployment = with_op_models(deployment_of(last))
    (graph,) = deployment.graphs
    (options,) = graph.options
    assert (options.model_version, options.model_shown) == ("2", f"{folder}/2")
    assert options.executor.name == "process"
    assert graph.version == "1"
    assert graph.graph.ops[0] is not last
    assert deployment.models == {"scale": "scale 2"}
    assert options.model is not None
    assert (Path(options.model.path) / "model.onnx").read_bytes() == (
        folder / "2" / "model.onnx"
    ).read_bytes()


def test_a_graph_with_a_version_of_a_model_that_is_not_there_is_refused(folder: Path) -> None:
    deployment = with_op_models(deployment_of(Model(folder, versions=1)))
    made = deployment.version_of({"name": "m", "version": "1", "models": dict(_models(deployment))})
    assert made.options[0].model_version == "1"
    with pytest.raises(StartupError, match="no version of the model of op 'scale' is there yet"):
        deployment.version_of({"name": "m", "version": "1", "models": {}})


def test_the_examples_of_a_version_warm_it_up(folder: Path) -> None:
    (folder / "2" / "examples").mkdir()
    rows = np.ones((2, 3), np.float32)
    np.savez(folder / "2" / "examples" / "rows.npz", x=rows)
    last = Model(folder, versions="latest")
    deployment = with_op_models(deployment_of(last))
    (op,) = deployment.graphs[0].graph.ops
    assert [[*each] for each in op.warmups] == [[*each] for each in op.examples] == [["x"]]
    assert (op.warmups[0]["x"] == rows).all()
    assert [*last.warmups] == []
    (folder / "2" / "examples" / "bad.npz").write_bytes(b"no arrays")
    (folder / "2" / "_SUCCESS").touch()
    with pytest.raises(ModelError, match=r"the example .*bad\.npz cannot be read"):
        with_op_models(deployment_of(Model(folder, versions="latest")))


def test_a_worker_needs_only_the_model_of_its_own_op(folder: Path) -> None:
    first = Model(folder, versions=1, name="first")
    deployment = with_op_models(deployment_of(Model(folder, first, versions=2, name="last")))
    source = deployment.source_of(deployment.graphs[0], "last")
    models = _models(deployment)
    models["first"]["path"] = str(folder / "gone")  # type: ignore[index]
    assert source.description is not None
    gone = replace(source, description={**source.description, "models": models})
    graph, index = deployment.find_op(gone)
    assert (index, graph.options[index].model_version) == (1, "2")
    with pytest.raises(StartupError, match="no such file or folder"):
        deployment.version_of({"name": "m", "version": "1", "models": models})


def _models(deployment: Deployment) -> dict[str, object]:
    (state,) = deployment.changed.values()
    assert state.default is not None
    found: dict[str, object] = state.versions[state.default]["models"]
    return found


@pytest.mark.parametrize("given", [0.5, True, "newest", "1, 2", "all"])
def test_an_op_runs_one_version(folder: Path, given: object) -> None:
    with pytest.raises(ConfigError, match="must be latest, or the number of a version"):
        deployment_of(Model(folder, versions=given))  # type: ignore[arg-type]


def test_all_models_that_have_no_version_are_told(folder: Path, tmp_path: Path) -> None:
    first = Model(folder, versions=7)
    last = Model(tmp_path / "none", first, versions="latest")
    with pytest.raises(ConfigError) as caught:
        with_op_models(deployment_of(last))
    assert f"op.scale.versions: {folder}: it has no version 7" in str(caught.value)
    assert f"op.none.versions: {tmp_path}/none: {tmp_path}/none: no such folder" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({}, "the op has no model"),
        ({"server_endpoints": ["127.0.0.1:1"]}, "the model is not one that this service opens"),
    ],
)
def test_an_op_without_a_model_of_its_own_has_no_versions(keys: dict[str, Any], why: str) -> None:
    service = Service("m", Op(name="a"), op={"a": {"versions": "latest", **keys}})
    service.prepare_beside({})
    with pytest.raises(ConfigError, match=rf"op\.a\.versions: {why}"):
        service.blueprint()


def test_the_test_client_serves_them_in_threads(folder: Path) -> None:
    app = App("numbers")
    app.graph("/scaled", Model(folder, versions="latest"))
    with client(app) as numbers:
        answer = numbers.post("/scaled", json={"x": [[1, 2, 3]]})
    assert answer.json()["y"] == [[2, 4, 6]]


class _Graphs:
    """The versions of one graph."""

    def __init__(self, state: Served) -> None:
        self.state = state

    def names(self) -> list[str | None]:
        return [self.state.name]

    def served(self, name: str | None) -> Served | None:
        return self.state

    async def change(self, name: str | None, update: Update, *, ended: bool = False) -> None:
        self.state = update(self.state)

    async def swap(self, description: object) -> None:
        raise NotImplementedError


def _described(version: str) -> dict[str, str]:
    return {"name": "scale", "version": version, "path": f"/cache/{version}"}


async def test_another_version_of_a_model_is_another_content_of_the_graph_s_version() -> None:
    model = OpModel(name="scale", graph="m", op="scale", place="models/scale", versions="latest")
    start = {"name": "m", "version": "1", "models": {"scale": _described("1"), "other": "kept"}}
    graphs = _Graphs(Served(name="m").with_version(start))
    versions = OpVersions([model], graphs)
    assert versions.names() == ["scale"]

    await versions.change("scale", lambda now: _grown(now, "2"))
    served = versions.served("scale")
    assert served is not None
    assert (served.default, [*served.versions]) == ("2", ["2"])
    assert graphs.state.default == "1"
    assert graphs.state.versions["1"]["models"] == {"scale": _described("2"), "other": "kept"}

    def labelled(now: Served | None) -> Served:
        return _grown(now, "3").with_label("stable", "3")

    with pytest.raises(VersionsError, match="no labels and weights"):
        await versions.change("scale", labelled)
    with pytest.raises(VersionsError, match="it cannot be unloaded"):
        await versions.change("scale", lambda now: Served(name="scale"))
    with pytest.raises(StartupError, match="no op has a model 'other'"):
        await versions.change("other", lambda now: Served(name="other"))
    assert versions.served("scale") == served


async def test_what_is_not_tried_again_of_each_op_s_model_is_in_the_state_of_the_graph() -> None:
    models = [
        OpModel(name=f"m/{op}", graph="m", op=op, place=f"models/{op}", versions="latest")
        for op in ("a", "a/b")
    ]
    start = {op: {"name": f"m/{op}", "version": "1", "path": f"/{op}"} for op in ("a", "a/b")}
    state = Served(name="m").with_version({"name": "m", "version": "1", "models": start})
    graphs = _Graphs(state)
    versions = OpVersions(models, graphs)

    async def bar(name: str, barred: dict[str, str]) -> None:
        def update(now: Served | None) -> Served:
            assert now is not None
            return replace(now, barred=barred)

        await versions.change(name, update)

    def known() -> list[dict[str, str]]:
        # Of an engine that loads models next.
        found = [OpVersions(models, graphs).served(each.name) for each in models]
        return [dict(each.barred) for each in found if each is not None]

    await bar("m/a", {"abc": "it is broken", "123": "taken back"})
    await bar("m/a/b", {"abc": "it has another signature"})
    assert graphs.state.versions == state.versions
    assert known() == [
        {"abc": "it is broken", "123": "taken back"},
        {"abc": "it has another signature"},
    ]
    await bar("m/a", {})
    assert known() == [{}, {"abc": "it has another signature"}]


class _Refusing(_Graphs):
    """Engines that cannot open version 2 of an op's model."""

    def __init__(self, state: Served) -> None:
        super().__init__(state)
        self.tried = 0

    async def change(self, name: str | None, update: Update, *, ended: bool = False) -> None:
        state = update(self.state)
        if state.versions["1"]["models"]["scale"]["version"] == "2":
            self.tried += 1
            raise StartupError("it is no model")
        self.state = state


async def test_the_engine_that_loads_models_next_does_not_try_a_broken_one_again(
    folder: Path, tmp_path: Path
) -> None:
    for version in ("1", "2"):
        (folder / version).mkdir(exist_ok=True)
        (folder / version / "model.onnx").touch()
        (folder / version / "_SUCCESS").touch()
    model = OpModel(name="scale", graph="m", op="scale", place=str(folder), versions="latest")
    shelf = OpShelf([model], Repositories(places=(), cache=str(tmp_path / "cache")))
    start = {"name": "m", "version": "1", "models": {"scale": _described("1")}}
    graphs = _Refusing(Served(name="m").with_version(start))
    for _ in range(2):
        versions = OpVersions([model], graphs)
        controller = Controller(shelf, versions, lambda name, version: False, mode="poll")
        controller.start()
        try:
            async with asyncio.timeout(30):
                while [each["reason"] for each in controller.rows() if each["version"] == "2"] != [
                    "it is no model"
                ] or not graphs.state.barred:
                    await asyncio.sleep(0.005)
        finally:
            await controller.close()
    assert graphs.tried == 1


def _grown(now: Served | None, version: str) -> Served:
    assert now is not None
    return now.with_version(_described(version), default=True)


def test_a_model_that_no_op_has_is_told_with_those_that_there_are(tmp_path: Path) -> None:
    model = OpModel(
        name="g/rec", graph="g", op="rec", place=str(tmp_path / "rec"), versions="latest"
    )
    shelf = OpShelf([model], Repositories(places=(), cache=str(tmp_path / "cache")))
    assert shelf.unknown == "no op's model is called so, only g/rec"


async def test_code_that_is_new_has_no_version_of_an_op_s_model_yet() -> None:
    model = OpModel(name="new", graph="m", op="new", place="models/new", versions="latest")
    graphs = _Graphs(Served(name="m").with_version({"name": "m", "version": "1"}))
    assert OpVersions([model], graphs).served("new") == Served(name="new")


def test_each_op_of_several_graphs_has_a_name(folder: Path) -> None:
    services = [Service(name, Model(folder, versions="latest")) for name in ("a", "b")]
    for each in services:
        each.prepare_beside({})
    deployment = deploy([each.blueprint() for each in services])
    assert [each.name for each in op_models_of(deployment)] == ["a/scale", "b/scale"]


def test_what_an_op_remembers_for_an_outage_and_does_not_run_is_released(tmp_path: Path) -> None:
    (tmp_path / "rec/1").mkdir(parents=True)
    (tmp_path / "rec/1/model.onnx").write_bytes(b"a model")
    one = OpModel(name="a", graph="g", op="a", place=str(tmp_path / "rec"), versions="latest")
    models = [one, replace(one, name="b", op="b"), replace(one, name="c", op="c", versions="2")]
    shelf = OpShelf(models, Repositories(places=(), cache=str(tmp_path / "cache")))
    for name, entry in shelf.scan().entries.items():
        held = shelf.hold(entry, "1", lambda step: {})
        shelf.remember(name, shelf.places[0], [held.description])
        held.release()
    before = sorted(os.listdir("/proc/self/fd"))
    remembered = shelf.remembered(shelf.places[0])
    assert {name: len(each) for name, each in remembered.items()} == {"a": 1, "b": 1}
    for each in remembered.values():
        each[0].release()
    assert sorted(os.listdir("/proc/self/fd")) == before
