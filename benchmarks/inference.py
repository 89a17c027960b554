"""Requests of the Open Inference Protocol and their right answers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnxruntime
import orjson
from numpy.typing import NDArray

from benchmarks.graphs import images, token_lists
from benchmarks.models import FEATURES, price
from penstock.protocols.standard_messages import inference_messages

MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
REQUEST, RESPONSE = inference_messages("ModelInfer")

X = (np.random.default_rng(45).integers(-16, 17, (1, FEATURES)) / 8).astype(np.float32)


def infer_path(model: str) -> str:
    """The route that runs a model."""
    return f"/v2/models/{model}/infer"


@cache
def right_price() -> float:
    """The bare model's output for X."""
    session = onnxruntime.InferenceSession(price(), providers=["CPUExecutionProvider"])
    (prices,) = session.run(None, {"x": X})
    return float(prices[0, 0])


def price_json() -> bytes:
    """The body of a POST."""
    tensor = {"name": "x", "shape": [*X.shape], "datatype": "FP32", "data": X.ravel().tolist()}
    return orjson.dumps({"inputs": [tensor]})


def price_message() -> bytes:
    """A call's message."""
    return _raw("price", X)


def is_price_json(answer: bytes) -> bool:
    """Whether the body holds the right price."""
    (tensor,) = orjson.loads(answer).get("outputs") or [{"name": None}]
    return tensor["name"] == "price" and _is_right_price(tensor["shape"], tensor["data"])


def is_price_message(answer: bytes) -> bool:
    """Whether the message holds the right price."""
    found = RESPONSE.FromString(answer)
    (tensor,) = found.outputs
    return tensor.name == "price" and _is_right_price(tensor.shape, _numbers(found))


def resnet50_messages() -> list[bytes]:
    """Calls' messages, each with another picture."""
    return [_raw("resnet50", image) for image in images()]


def is_scores_message(answer: bytes, expected: NDArray[Any]) -> bool:
    """Whether the message contains the bare model's output."""
    scores = _numbers(RESPONSE.FromString(answer))
    return scores.size == expected.size and np.allclose(scores, expected, rtol=1e-3, atol=1e-5)


def token_messages() -> list[bytes]:
    """Calls' messages, each with another list of tokens."""
    return [_raw("reader", tokens[None], "tokens") for tokens in token_lists()]


def token_texts() -> list[bytes]:
    """Bodies of JSON, each with another list of tokens."""
    return [orjson.dumps({"tokens": [tokens.tolist()]}) for tokens in token_lists()]


def is_topic_text(answer: bytes, expected: NDArray[Any]) -> bool:
    """Whether the body contains the bare model's output."""
    (topic,) = orjson.loads(answer)["topic"]
    return len(topic) == expected.size and np.allclose(topic, expected, rtol=1e-3, atol=1e-5)


def _raw(model: str, x: NDArray[Any], name: str = "x") -> bytes:
    request = REQUEST(model_name=model, raw_input_contents=[x.tobytes()])
    kind = "FP32" if x.dtype == np.float32 else "INT64"
    request.inputs.add(name=name, datatype=kind, shape=x.shape)
    message: bytes = request.SerializeToString()
    return message


def _numbers(answer: Any) -> NDArray[Any]:
    (data,) = answer.raw_output_contents
    return np.frombuffer(data, "<f4")


def _is_right_price(shape: Any, data: Any) -> bool:
    return [*shape] == [1, 1] and len(data) == 1 and abs(data[0] - right_price()) < 1e-3
