"""What is measured against what: every scenario, its floor, its loads and its targets."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks.models import IMAGE_SHAPE, LINEAR_FEATURES, MLP_FEATURES, input_rows
from benchmarks.runtime_loop import open_session
from penstock.protocols.pb import Request, Response, Tensor

TEXT = "The quick brown fox jumps over the lazy dog."
FP32, BYTES = 1, 13  # Tensor.elem_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How many requests are in flight, and over what."""

    protocol: str
    connections: int
    streams: int = 1

    @property
    def label(self) -> str:
        """How the table names it."""
        if self.protocol == "http":
            return f"{self.connections} conn"
        return f"{self.connections}x{self.streams} calls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One side of a comparison: a server script, or a bare loop over models when it has none.

    ``exact``: every answer must equal the first one, byte by byte. Off where batches of changing
    size may change the last bit of a result.
    """

    name: str
    server: str | None = None
    protocols: tuple[str, ...] = ("http", "grpc")
    options: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    batch: int = 1
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A floor and its contenders under the same loads.

    Attributes:
        body: what is sent: a JSON text for HTTP, a serialised Request for gRPC.
        right: whether an answer's body holds the right values; gets the folder of the models.
        targets: (contender, load's label) to the ratio that is promised.
        patience: how many times the usual length one measurement takes.
    """

    name: str
    title: str
    path: str
    body: Callable[[], bytes]
    right: Callable[[bytes, Path], bool]
    floor: Contender
    ours: tuple[Contender, ...]
    loads: tuple[Load, ...]
    targets: Mapping[tuple[str, str], float] = field(default_factory=dict)
    patience: float = 1.0


def _penstock(server: str, models: tuple[str, ...] = ()) -> dict[str, Contender]:
    return {
        name: Contender(name=name, server=server, options=("--executor", name), models=models)
        for name in ("thread", "inline")
    }


def _batched(server: str, models: tuple[str, ...], size: int) -> Contender:
    options = ("--executor", "thread", "--batch-size", str(size))
    return Contender(
        name=f"thread, batch {size}", server=server, options=options, models=models, exact=False
    )


def _echo_json() -> bytes:
    return orjson.dumps({"key": ["x"], "value": [TEXT]})


def _echo_json_right(body: bytes, _models: Path) -> bool:
    members = {"err_no": 0, "err_msg": "", "key": ["x"], "value": [TEXT], "tensors": []}
    return bool(orjson.loads(body) == members)


def _echo_message() -> bytes:
    request = Request(name="echo", method="prediction", key=["x"], value=[TEXT])
    return request.SerializeToString()


def _echo_message_right(body: bytes, _models: Path) -> bool:
    return Response.FromString(body) == Response(key=["x"], value=[TEXT])


def _bare(folder: Path, model: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
    session = open_session(folder / model)
    outputs = session.run(None, {session.get_inputs()[0].name: x})
    return np.asarray(outputs[0], dtype=np.float32)


def _linear_json() -> bytes:
    row = input_rows((LINEAR_FEATURES,), 1)[0]
    return orjson.dumps({"key": ["x"], "value": [",".join(f"{x:.6f}" for x in row)]})


def _linear_right(body: bytes, models: Path) -> bool:
    answer = orjson.loads(body)
    if answer["err_no"] != 0 or answer["key"] != ["price"]:
        return False
    bare = _bare(models, "linear", input_rows((LINEAR_FEATURES,), 1))
    return bool(np.isclose(float(answer["value"][0]), bare[0, 0], rtol=1e-3, atol=1e-4))


def _tensor_values(body: bytes, name: str) -> NDArray[np.float32] | None:
    """The named tensor of a reply, flat; None when the reply is an error or has no such tensor."""
    answer = Response.FromString(body)
    if answer.err_no != 0:
        return None
    for tensor in answer.tensors:
        if tensor.name == name:
            if tensor.elem_type == BYTES:
                file = io.BytesIO(tensor.byte_data)
                loaded: NDArray[np.float32] = np.lib.format.read_array(file, allow_pickle=False)
                return loaded.ravel()
            return np.array(tensor.float_data, dtype=np.float32)
    return None


def _ensemble_message() -> bytes:
    row = input_rows((MLP_FEATURES,), 1)
    tensor = Tensor(name="x", elem_type=FP32, shape=row.shape, float_data=row.ravel())
    return Request(name="ensemble", method="prediction", tensors=[tensor]).SerializeToString()


def _ensemble_right(body: bytes, models: Path) -> bool:
    row = input_rows((MLP_FEATURES,), 1)
    bare = (_bare(models, "mlp-a", row) + _bare(models, "mlp-b", row)) / 2
    values = _tensor_values(body, "prediction")
    return values is not None and np.allclose(values, bare.ravel(), rtol=1e-4, atol=1e-5)


def _image_message() -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, input_rows(IMAGE_SHAPE, 1), allow_pickle=False)
    tensor = Tensor(name="x", elem_type=BYTES, byte_data=file.getvalue())
    return Request(name="model", method="prediction", tensors=[tensor]).SerializeToString()


def _image_right(body: bytes, models: Path) -> bool:
    values = _tensor_values(body, "score")
    bare = _bare(models, "resnet50", input_rows(IMAGE_SHAPE, 1)).ravel()
    return values is not None and np.allclose(values, bare, rtol=1e-3, atol=1e-3)


def _http_echo() -> Scenario:
    return Scenario(
        name="http-echo",
        title="echo over HTTP, against a bare uvicorn callable",
        path="/echo/prediction",
        body=_echo_json,
        right=_echo_json_right,
        floor=Contender(name="uvicorn", server="floor_http", protocols=("http",)),
        ours=tuple(_penstock("penstock_echo").values()),
        loads=tuple(Load(protocol="http", connections=n) for n in (1, 8, 32, 128)),
        targets={("thread", "32 conn"): 0.75},
    )


def _grpc_echo() -> Scenario:
    loads = [Load(protocol="grpc", connections=c, streams=s) for c, s in ((1, 1), (8, 4), (32, 4))]
    return Scenario(
        name="grpc-echo",
        title="echo over gRPC, against a bare grpc.aio handler",
        path="",
        body=_echo_message,
        right=_echo_message_right,
        floor=Contender(name="grpc.aio", server="floor_grpc", protocols=("grpc",)),
        ours=tuple(_penstock("penstock_echo").values()),
        loads=tuple(loads),
        targets={("thread", "8x4 calls"): 0.85},
    )


def _regression() -> Scenario:
    models = ("linear",)
    server = "penstock_regression"
    return Scenario(
        name="regression",
        title="13-feature regression over HTTP, against the bare runtime",
        path="/regression/prediction",
        body=_linear_json,
        right=_linear_right,
        floor=Contender(name="ONNX Runtime", models=models),
        ours=(*_penstock(server, models).values(), _batched(server, models, 32)),
        loads=tuple(Load(protocol="http", connections=n) for n in (1, 32)),
    )


def _ensemble() -> Scenario:
    models = ("mlp-a", "mlp-b")
    server = "penstock_ensemble"
    return Scenario(
        name="ensemble",
        title="two models and their mean over gRPC, against the bare models back to back",
        path="",
        body=_ensemble_message,
        right=_ensemble_right,
        floor=Contender(name="ONNX Runtime", models=models),
        ours=(*_penstock(server, models).values(), _batched(server, models, 16)),
        loads=tuple(Load(protocol="grpc", connections=c, streams=1) for c in (1, 16)),
    )


def _resnet50(batch: int) -> Scenario:
    models = ("resnet50",)
    server = "penstock_model"
    one = Contender(name="thread", server=server, options=("--executor", "thread"), models=models)
    ours = one if batch == 1 else _batched(server, models, batch)
    load = Load(protocol="grpc", connections=2, streams=max(2, batch))
    return Scenario(
        name=f"resnet50-b{batch}",
        title=f"ResNet-50's layers, images of 600 KB over gRPC, batches of {batch}",
        path="",
        body=_image_message,
        right=_image_right,
        floor=Contender(name="ONNX Runtime", models=models, batch=batch),
        ours=(ours,),
        loads=(load,),
        targets={(ours.name, load.label): 0.97},
        patience=5.0 if batch == 1 else 8.0,
    )


def all_scenarios() -> list[Scenario]:
    """Every scenario, cheap ones first."""
    return [_http_echo(), _grpc_echo(), _regression(), _ensemble(), _resnet50(1), _resnet50(8)]
