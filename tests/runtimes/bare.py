"""Each library without Penstock, as a script would use it: one run for each request."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.models.networks import NETWORKS, Arrays

Loop = Callable[[Arrays], Arrays]


def loop(folder: Path, network: str, form: str) -> Loop:
    """A function that runs the network once, from named inputs to named outputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        call = _OPENERS[form.partition("_")[0]](folder, form)
    names = NETWORKS[network]

    def run(feed: Arrays) -> Arrays:
        got = call([feed[name] for name in names.inputs])
        return dict(zip(names.outputs, got, strict=True))

    return run


def _onnx(folder: Path, form: str) -> Callable[[list[np.ndarray]], list[Any]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    names = [each.name for each in session.get_inputs()]
    return lambda given: session.run(None, dict(zip(names, given, strict=True)))


def _paddle(folder: Path, form: str) -> Callable[[list[np.ndarray]], list[Any]]:
    from paddle import inference

    files = {
        "paddle_json": ("inference.json", "inference.pdiparams"),
        "paddle_pdmodel": ("inference.pdmodel", "params.pdiparams"),
        "paddle_combined": ("__model__", "__params__"),
        "paddle_separate": (),
    }
    named = [str(folder / each) for each in files[form]] or [str(folder)]
    config = inference.Config(*named)
    config.disable_glog_info()
    config.disable_gpu()
    config.disable_onednn()
    predictor = inference.create_predictor(config)
    inputs = [predictor.get_input_handle(each) for each in predictor.get_input_names()]
    outputs = [predictor.get_output_handle(each) for each in predictor.get_output_names()]

    def run(given: list[np.ndarray]) -> list[Any]:
        for handle, value in zip(inputs, given, strict=True):
            handle.copy_from_cpu(value)
        predictor.run()
        return [handle.copy_to_cpu() for handle in outputs]

    return run


def _torch(folder: Path, form: str) -> Callable[[list[np.ndarray]], list[Any]]:
    import torch

    if form == "torch_script":
        module = torch.jit.load(str(folder / "model.pt")).eval()
    else:
        module = torch.export.load(str(folder / "model.pt2")).module()

    def run(given: list[np.ndarray]) -> list[Any]:
        with torch.inference_mode():
            got = module(*map(torch.from_numpy, given))
        return [each.numpy() for each in (got if isinstance(got, tuple) else (got,))]

    return run


def _openvino(folder: Path, form: str) -> Callable[[list[np.ndarray]], list[Any]]:
    import openvino

    hint = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(folder / "model.xml"), "CPU", hint)
    return lambda given: [compiled(given)[port] for port in compiled.outputs]


_OPENERS = {"onnx": _onnx, "paddle": _paddle, "torch": _torch, "openvino": _openvino}
