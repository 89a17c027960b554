"""What is measured against what: every scenario, its floor, its loads and its targets."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks.client_calls import FEED, IN_FLIGHT, REPLY
from benchmarks.echoes import TEXT, echo_json, echo_json_right, echo_message, echo_message_right
from benchmarks.models import IMAGE_SHAPE, LINEAR_FEATURES, MLP_FEATURES, input_rows
from benchmarks.rounds import Target
from benchmarks.runtime_loop import open_session
from benchmarks.scaling import compute, engines
from benchmarks.scenario import Contender, Load, Scenario
from penstock.protocols.pb import Request, Response, Tensor

LARGE_BYTES = 5 << 20
FP32, BYTES = 1, 13  # Tensor.elem_type


def _penstock(server: str, models: tuple[str, ...] = ()) -> dict[str, Contender]:
    return {
        name: Contender(name=name, server=server, options=("--executor", name), models=models)
        for name in ("thread", "inline", "process")
    }


def _batched(server: str, models: tuple[str, ...], size: int) -> Contender:
    options = ("--executor", "thread", "--batch-size", str(size))
    return Contender(
        name=f"thread, batch {size}", server=server, options=options, models=models, exact=False
    )


def _large_message() -> bytes:
    text = (TEXT * (LARGE_BYTES // len(TEXT) + 1))[:LARGE_BYTES]
    return Request(name="echo", method="prediction", key=["x"], value=[text]).SerializeToString()


def _large_message_right(body: bytes, _models: Path) -> bool:
    sent = Request.FromString(_large_message())
    return Response.FromString(body) == Response(key=sent.key, value=sent.value)


def _call_message() -> bytes:
    return Request(key=list(FEED), value=list(FEED.values())).SerializeToString()


def _call_message_right(body: bytes, _models: Path) -> bool:
    return Response.FromString(body) == REPLY


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
        body=echo_json,
        right=echo_json_right,
        floor=Contender(name="uvicorn", server="floor_http", protocols=("http",)),
        ours=tuple(_penstock("penstock_echo").values()),
        loads=tuple(Load(protocol="http", connections=n) for n in (1, 8, 32, 128)),
        programs=True,
        targets={
            ("thread", "32 conn"): Target(throughput=1.3),
            ("process", "32 conn"): Target(throughput=1.0),
        },
    )


def _grpc_echo() -> Scenario:
    shapes = ((1, 1), (8, 1), (8, 4), (32, 4), (128, 1))
    loads = [Load(protocol="grpc", connections=c, streams=s) for c, s in shapes]
    return Scenario(
        name="grpc-echo",
        title="echo over gRPC, against a bare grpc.aio handler",
        path="",
        body=echo_message,
        right=echo_message_right,
        floor=Contender(name="grpc.aio", server="floor_grpc", protocols=("grpc",)),
        ours=tuple(_penstock("penstock_echo").values()),
        loads=tuple(loads),
        programs=True,
        targets={
            ("thread", "1x1 calls"): Target(p50=0.5),
            ("thread", "8x4 calls"): Target(throughput=10.0),
            ("process", "8x4 calls"): Target(throughput=7.0),
        },
    )


def _heads() -> list[Scenario]:
    """Real clients: ids and deadlines of each request's own, or the same head again and again."""

    def loads(protocol: str, connections: int, streams: int) -> tuple[Load, ...]:
        shape = {"protocol": protocol, "connections": connections, "streams": streams}
        return tuple(Load(**shape, heads=heads) for heads in ("different", "same"))  # type: ignore[arg-type]

    http, grpc = loads("http", 32, 1), loads("grpc", 8, 4)
    thread = (_penstock("penstock_echo")["thread"],)
    return [
        replace(
            _http_echo(),
            name="heads-http",
            ours=thread,
            loads=http,
            targets={
                ("thread", http[0].label): Target(throughput=1.2),
                ("thread", http[1].label): Target(throughput=1.3),
            },
        ),
        replace(
            _grpc_echo(),
            name="heads-grpc",
            ours=thread,
            loads=grpc,
            targets={
                ("thread", grpc[0].label): Target(throughput=8.0),
                ("thread", grpc[1].label): Target(throughput=10.0),
            },
        ),
    ]


def _grpc_large() -> Scenario:
    loads = [Load(protocol="grpc", connections=c) for c in (1, 2)]
    return Scenario(
        name="grpc-large",
        title="echo of 5 MiB over gRPC, against a bare grpc.aio handler: 10 MiB move a request",
        path="",
        body=_large_message,
        right=_large_message_right,
        floor=Contender(name="grpc.aio", server="floor_grpc", protocols=("grpc",)),
        ours=(_penstock("penstock_echo")["thread"],),
        loads=tuple(loads),
        programs=True,
        targets={("thread", load.label): Target(throughput=1.0) for load in loads},
        patience=2.0,  # some tens of answers a second
    )


def _door(load: Load, body: Callable[[], bytes], over: str) -> Scenario:
    return Scenario(
        name=f"door-{load.protocol}",
        title=f"the door without the engine over {over}, against the least that can answer",
        path="/echo/prediction",
        body=body,
        right=lambda answer, _models: answer == body(),
        floor=Contender(name="throwaway", server="floor_door"),
        ours=(Contender(name="door", server="door_echo"),),
        loads=(load,),
        programs=True,
        targets={("door", load.label): Target(throughput=0.8)},
    )


def _door_grpc() -> Scenario:
    return _door(Load(protocol="grpc", connections=8, streams=4), echo_message, "gRPC")


def _door_http() -> Scenario:
    return _door(Load(protocol="http", connections=32), echo_json, "HTTP")


def _latency() -> Scenario:
    return Scenario(
        name="latency",
        title="echo over HTTP, one at a time, against the door alone: how much later is the p50?",
        path="/echo/prediction",
        body=echo_json,
        right=lambda answer, models: answer == echo_json() or echo_json_right(answer, models),
        floor=Contender(name="door", server="door_echo"),
        ours=tuple(_penstock("penstock_echo").values()),
        loads=(Load(protocol="http", connections=1),),
        programs=True,
    )


def _arrays() -> Scenario:
    def contender(ops: int, name: str = "", *more: str) -> Contender:
        options = ("--executor", "process", "--ops", str(ops), "--every-core", *more)
        name = f"{ops} process ops{name}"
        return Contender(name=name, server="penstock_arrays", options=options)

    ours = (contender(2), contender(3), contender(2, ", in place", "--in-place"))

    return Scenario(
        name="arrays",
        title="5 MiB handed on between ops in processes, one at a time: how much later is the p50?",
        path="/echo/prediction",
        body=echo_json,
        right=lambda answer, _models: orjson.loads(answer)["value"] == [str(LARGE_BYTES)],
        floor=contender(1),
        ours=(*ours, Contender(name="bare copies", loop="copy_loop")),
        loads=(Load(protocol="http", connections=1),),
        programs=True,
    )


def in_threads(arrays: Scenario) -> Scenario:
    """The same with its ops in threads, which share what they hand on."""

    def contender(found: Contender) -> Contender:
        options = tuple("thread" if each == "process" else each for each in found.options)
        return replace(found, name=found.name.replace("process", "thread"), options=options)

    return replace(
        arrays,
        name=f"{arrays.name}-thread",
        title=arrays.title.replace("processes", "threads"),
        floor=contender(arrays.floor),
        ours=tuple(contender(ours) for ours in arrays.ours if ours.server is not None),
    )


def _client_calls() -> Scenario:
    def contender(name: str, client: str) -> Contender:
        return Contender(name=name, server="canned_grpc", protocols=("grpc",), client=client)

    load = Load(protocol="grpc", connections=1, streams=IN_FLIGHT)
    target = Target(throughput=3.0)
    return Scenario(
        name="client-calls",
        title=f"{IN_FLIGHT} calls in flight from one core, against the grpc package's in threads",
        path="",
        body=_call_message,
        right=_call_message_right,
        floor=contender("grpcio, threads", "grpcio-threads"),
        ours=tuple(contender(name, name) for name in ("threads", "futures", "asyncio")),
        loads=(load,),
        targets={("futures", load.label): target, ("asyncio", load.label): target},
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
        targets={(ours.name, load.label): Target(throughput=0.97)},
        patience=5.0 if batch == 1 else 8.0,
    )


def all_scenarios() -> list[Scenario]:
    """Every scenario, cheap ones first."""
    arrays = _arrays()
    echoes = [*_heads(), _http_echo(), _grpc_echo(), _grpc_large(), _door_grpc(), _door_http()]
    models = [_regression(), _ensemble(), _resnet50(1), _resnet50(8)]
    processes = [_latency(), arrays, in_threads(arrays), compute()]
    return [*echoes, *processes, *engines(), _client_calls(), *models]
