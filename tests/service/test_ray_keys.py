"""The keys of ops whose workers Ray places: what reaches the executor, and refusals."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from penstock import Op, Service, op
from penstock.errors import ConfigError
from penstock.executors.ray.options import RayOptions
from penstock.service import ray_problems
from penstock.service.blueprint import deploy
from penstock.service.server import prepared
from tests.kit.onnx_models import scale
from tests.service.in_process import blueprint_of, root


class Work(Op):
    """Does nothing."""

    def process(self, feed_batch: Any, typical_logid: Any) -> Any:
        return feed_batch[0]


def blueprint(top: dict[str, Any] | None = None, **keys: Any) -> Any:
    entry = {"executor": "ray", **keys}
    return blueprint_of(Work("work", input_ops=[root()]), {"op": {"work": entry}, **(top or {})})


def test_the_keys_reach_the_executor() -> None:
    given = {"address": "auto", "num_gpus": 0.5, "resources": {"odd": 1}, "placement": "spread"}
    assert blueprint(ray=given).options[0].ray == RayOptions(
        address="auto", num_gpus=0.5, resources={"odd": 1.0}, placement="spread"
    )
    assert blueprint().options[0].ray == RayOptions()


def test_the_short_form_has_them_too() -> None:
    @op(executor="ray", ray={"num_cpus": 2})
    def work(request: dict[str, Any]) -> dict[str, Any]:
        return request

    (graph,), _ = prepared([Service("work", work)])
    assert graph.blueprint().options[0].ray == RayOptions(num_cpus=2.0)

    @op(executor="ray", ray={"num_cpu": 2})
    def other(request: dict[str, Any]) -> dict[str, Any]:
        return request

    with pytest.raises(ConfigError, match=r"ray\.num_cpu"):
        prepared([Service("work", other)])


def test_the_keys_of_an_op_that_runs_otherwise_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"op\.work\.ray: is for ops with executor: ray, and th"):
        blueprint(executor="thread", ray={"num_cpus": 2})


def test_a_missing_package_is_told_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        ray_problems, "find_spec", lambda name: None if name == "ray" else found(name)
    )
    with pytest.raises(ConfigError, match=r"pip install 'penstock-serving\[ray\]'"):
        blueprint()
    blueprint(executor="thread")


def test_several_engines_do_not_start_a_cluster_each() -> None:
    top = {"build_dag_each_worker": True, "worker_num": 2}
    with pytest.raises(ConfigError, match=r"op\.work\.ray\.address: must be set with several eng"):
        blueprint(top)
    blueprint(top, ray={"address": "auto"})


class OfModel(Op):
    """Runs a model."""


def blueprint_of_model(ray: dict[str, Any], top: dict[str, Any] | None = None, **conf: Any) -> Any:
    entry = {"executor": "ray", "ray": ray, "local_service_conf": conf}
    return blueprint_of(OfModel("work", input_ops=[root()]), {"op": {"work": entry}, **(top or {})})


@pytest.mark.parametrize("top", [{}, {"missing_device": "cpu"}])
def test_the_gpu_of_a_model_is_one_of_its_nodes(tmp_path: Path, top: dict[str, Any]) -> None:
    path = str(scale(tmp_path / "model.onnx", 2))
    (options,) = blueprint_of_model({"num_gpus": 0.5}, top, model_config=path, devices="0").options
    assert options.model.devices == ("0",), "whether this machine has one or not"
    (options,) = blueprint_of_model({"num_gpus": 2}, top, model_config=path, devices="1").options
    assert options.model.missing_device == top.get("missing_device", "error")


def test_a_model_is_tried_out_here_without_the_gpu_of_its_node(tmp_path: Path) -> None:
    path = str(scale(tmp_path / "model.onnx", 2))
    made = blueprint_of_model({"num_gpus": 1}, model_config=path, devices="0")
    (tried,) = deploy([made]).in_threads().graphs[0].options
    assert (tried.executor.name, tried.model.devices) == ("thread", ())
    assert made.options[0].model.devices == ("0",)


def test_a_gpu_of_which_ray_does_not_know_is_refused(tmp_path: Path) -> None:
    path = str(scale(tmp_path / "model.onnx", 2))
    with pytest.raises(ConfigError, match=r"op\.work\.ray\.num_gpus: must be set: the model is on"):
        blueprint_of_model({}, model_config=path, devices="0")
    with pytest.raises(ConfigError, match=r"conf\.devices: a worker sees only .* the ids 0$"):
        blueprint_of_model({"num_gpus": 0.5}, model_config=path, devices="0,1")
    with pytest.raises(ConfigError, match=r"num_gpus is 2\), with the ids 0 to 1$"):
        blueprint_of_model({"num_gpus": 2}, model_config=path, devices="3")
    blueprint_of_model({}, model_config=path, devices="0", device_type=0)
    blueprint_of_model({}, model_config=path)
