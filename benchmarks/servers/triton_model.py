"""A model in Triton's Python backend, by ONNX Runtime on one thread.

The requests of a batch are run together, padded with zeros to the longest, or one by one.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as triton  # type: ignore[import-not-found]


class TritonPythonModel:
    """The class that the backend loads."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the model file of the configuration."""
        found = json.loads(args["model_config"])
        (self._input,), (self._output,) = found["input"], found["output"]
        parameters = found["parameters"]
        self._padded = parameters["padded"]["string_value"] == "True"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            parameters["file"]["string_value"], options, providers=["CPUExecutionProvider"]
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer the requests of one batch."""
        name = self._input["name"]
        inputs = [triton.get_input_tensor_by_name(each, name).as_numpy() for each in requests]
        if self._padded:
            (outputs,) = self._session.run(None, {name: _joined(inputs)})
        else:
            outputs = np.concatenate([self._session.run(None, {name: x})[0] for x in inputs])
        answers, at = [], 0
        for each in inputs:
            rows = outputs[at : at + len(each)]
            answers.append(triton.InferenceResponse([triton.Tensor(self._output["name"], rows)]))
            at += len(each)
        return answers


def _joined(inputs: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Arrays of some rows each in one array."""
    if len({each.shape[1] for each in inputs}) == 1:
        return np.concatenate(inputs)
    width, at = max(each.shape[1] for each in inputs), 0
    joined = np.zeros((sum(map(len, inputs)), width), inputs[0].dtype)
    for each in inputs:
        joined[at : at + len(each), : each.shape[1]] = each
        at += len(each)
    return joined
