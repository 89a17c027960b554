import inspect
import os

import numpy as np
import pytest

from penstock.errors import InputMismatch, ModelError, WrongType
from penstock.runtimes import local_service
from penstock.runtimes.local_service import LocalPredictor, LocalServiceHandler
from penstock.runtimes.runtime import ModelOptions

PARAMETERS = """
model_config client_type workdir thread_num device_type devices fetch_names mem_optim ir_optim
available_port_generator use_profile precision use_mkldnn mkldnn_cache_capacity mkldnn_op_list
mkldnn_bf16_op_list min_subgraph_size dynamic_shape_info use_calib
"""


def test_the_constructor_has_the_parameters_that_deployed_code_names() -> None:
    assert list(inspect.signature(LocalServiceHandler).parameters) == PARAMETERS.split()


def test_the_handlers_defaults_are_those_of_model_options() -> None:
    assert LocalServiceHandler("m").options == ModelOptions(path="m")


def test_every_parameter_is_passed_to_model_options() -> None:
    same = {
        "thread_num": 3,
        "device_type": 1,
        "mem_optim": False,
        "ir_optim": True,
        "precision": "fp16",
        "use_mkldnn": True,
        "mkldnn_cache_capacity": 4,
        "min_subgraph_size": 7,
        "use_calib": True,
    }
    lists = {"mkldnn_op_list": ["conv2d"], "mkldnn_bf16_op_list": ["mul"], "fetch_names": ["y"]}
    assert LocalServiceHandler("m", devices="0, 2,", **lists, **same).options == ModelOptions(
        path="m",
        devices=("0", "2"),
        fetch_list=("y",),
        mkldnn_op_list=("conv2d",),
        mkldnn_bf16_op_list=("mul",),
        **same,
    )


def test_a_model_is_opened_once_and_predicts(regression, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = LocalServiceHandler(str(regression().parent))
    handler.prepare_server()
    handler.start_server()
    assert handler.get_port_list() == []
    one, two = handler.get_client(0), handler.get_client(1)
    assert one.model.session is two.model.session
    assert one.predict(feed={"x": np.ones(13)}, fetch=["price"])["price"].tolist() == [[13.5]]


def test_workers_are_distributed_over_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    class FakeModel:
        feed_names = fetch_names = outputs = ()

        @classmethod
        def open(cls, options: ModelOptions) -> "FakeModel":
            opened.append(options.devices)
            return cls()

        def clone(self) -> "FakeModel":
            return self

    monkeypatch.setattr(local_service, "Model", FakeModel)
    handler = LocalServiceHandler("m", devices="0,1,2")
    models = [handler.get_client(worker).model for worker in range(7)]
    assert opened == [("0",), ("1",), ("2",)]
    assert [models.index(model) for model in models] == [0, 1, 2, 0, 1, 2, 0]


def test_the_fetch_list_is_that_of_the_arguments_else_all_outputs(two_inputs) -> None:
    assert LocalServiceHandler(str(two_inputs)).get_fetch_list() == ["sum", "twice"]
    assert LocalServiceHandler("not opened", fetch_names=["y"]).get_fetch_list() == ["y"]
    assert LocalServiceHandler("not opened", fetch_names=[]).get_fetch_list() == []


def test_the_client_configuration_is_in_the_model_folder() -> None:
    assert LocalServiceHandler("a/b").get_client_config() == "a/b/serving_server_conf.prototxt"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"model_config": "m", "client_type": "brpc"}, "client_type: 'brpc' is not for a handler"),
        ({"model_config": "m", "client_type": ""}, "client_type: '' is not for a handler"),
        ({"model_config": ""}, "model_config"),
        ({"model_config": "m", "devices": 0}, "devices: quote it: '0'"),
    ],
)
def test_an_unsupported_argument_is_named_in_the_error(arguments, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        LocalServiceHandler(**arguments)


@pytest.fixture
def predictor(two_inputs) -> LocalPredictor:
    return LocalServiceHandler(str(two_inputs)).get_client(0)


def test_predict_adds_a_batch_axis_to_single_rows(predictor) -> None:
    got = predictor.predict({"a": np.array([0.5, 1.5]), "ids": [1, 2]})
    assert {name: value.tolist() for name, value in got.items()} == {
        "sum": [[1.5, 3.5]],
        "twice": [[1, 3]],
    }


def test_predict_passes_batches_on_unchanged(predictor) -> None:
    feed = {"a": np.ones((3, 2), np.float32), "ids": [[1, 2]] * 3}
    assert predictor.predict([feed], "twice", True, 7)["twice"].tolist() == [[2, 2]] * 3
    assert feed["ids"] == [[1, 2]] * 3


@pytest.mark.parametrize("feed", [None, [], [{}, {}], "x", 3])
def test_a_feed_that_is_not_a_dict_raises_wrong_type(predictor, feed) -> None:
    with pytest.raises(WrongType, match="feed must be a dict"):
        predictor.predict(feed)


def test_predict_refuses_unknown_inputs_and_outputs(predictor) -> None:
    with pytest.raises(InputMismatch, match="invalid arg list"):
        predictor.predict({"a": [1, 2], "b": [1, 2]})
    with pytest.raises(InputMismatch, match="requested"):
        predictor.predict({"a": [1, 2], "ids": [1, 2]}, fetch="price")


@pytest.mark.parametrize(("cpus", "threads"), [({0}, 1), ({0, 1}, 2), (set(range(16)), 2)])
def test_the_default_of_thread_num_is_two_or_the_number_of_cpus_if_less(
    monkeypatch: pytest.MonkeyPatch, cpus: set[int], threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cpus)
    assert LocalServiceHandler("m").options.thread_num == threads
