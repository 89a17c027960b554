"""``penstock serve`` returns what each library returns in a bare loop, over every protocol: for
single requests, in batches, and in padded batches.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree
from typing import Any, NamedTuple

import grpc
import httpx
import numpy as np
import onnx
import pytest

from penstock.protocols import oip, oip_message
from penstock.protocols.oip import OutTensor
from penstock.service.serve_flags import parse
from tests.models.networks import NETWORKS, Arrays, answers, feed_of
from tests.runtimes import bare
from tests.runtimes.forms import every_form, needs
from tests.runtimes.test_same_answers import TOLERANCE
from tests.services.process import ServiceProcess, running

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

SERVE = (sys.executable, "-m", "penstock", "serve", "--config")

MODES: dict[str, dict[str, Any]] = {
    "alone": {},
    "batched": {"batch_size": 8, "batch_rows": True, "auto_batching_timeout": 20},
}
MODES["padded"] = {**MODES["batched"], "pad": {"enabled": True}}
AXES = {
    "inputs": {"words": ["n", "length"], "scale": ["n", 1]},
    "outputs": {"scores": ["n", "length", 5]},
}
"""Of the network ``sequence``, for Paddle, whose models do not declare them."""


class Served(NamedTuple):
    server: ServiceProcess
    client: httpx.Client
    loops: dict[str, bare.Loop]


@pytest.fixture(
    scope="module",
    params=[pytest.param(each.values[1], marks=each.marks, id=each.id) for each in every_form()],
)
def served(
    request: pytest.FixtureRequest, networks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    form = request.param
    models = {}
    for network in NETWORKS:
        for mode, keys in MODES.items():
            path = str(networks / network / form)
            entry = {"path": path, "executor": "thread", "concurrency": 2, **keys}
            if mode == "padded" and form in ("onnx", "torch_script"):
                entry["policy"] = "learned"
            if mode == "padded" and network == "sequence":
                # ``best`` is computed from the whole padded row: with it, there is no padding.
                entry["fetch_list"] = ["scores"]
                if form.startswith("paddle"):
                    entry["pad"] = {**entry["pad"], **AXES}
            models[f"{network}.{mode}"] = entry
    file = tmp_path_factory.mktemp("served") / "serve.yml"
    file.write_text(json.dumps({"models": models}))  # JSON is valid YAML
    loops = {network: bare.loop(networks / network / form, network, form) for network in NETWORKS}
    with running(file, command=SERVE, timeout=60) as server, httpx.Client(timeout=30) as client:
        yield Served(server, client, loops)


Infer = Callable[[Served, str, Arrays, tuple[str, ...]], Arrays]


def _tensors(feed: Arrays) -> list[OutTensor]:
    return [oip.sent(name, value) for name, value in feed.items()]


def _by_http(
    served: Served, model: str, feed: Arrays, outputs: tuple[str, ...], *, binary: bool
) -> Arrays:
    tensors = [
        {
            "name": name,
            "shape": value.shape,
            "datatype": {"f": "FP32", "i": "INT64"}[value.dtype.kind],
            **(
                {"parameters": {"binary_data_size": value.nbytes}}
                if binary
                else {"data": value.ravel().tolist()}
            ),
        }
        for name, value in feed.items()
    ]
    wanted = [{"name": name, "parameters": {"binary_data": binary}} for name in outputs]
    head = json.dumps({"inputs": tensors, "outputs": wanted}).encode()
    raw = b"".join(value.tobytes() for value in feed.values()) if binary else b""
    fields = {"inference-header-content-length": str(len(head))} if binary else {}
    url = f"{served.server.http_url}/v2/models/{model}/infer"
    reply = served.client.post(url, content=head + raw, headers=fields)
    assert reply.status_code == 200, reply.text
    size = int(reply.headers["inference-header-content-length"]) if binary else None
    encoded_outputs = json.loads(reply.content[:size])["outputs"]
    rest = reply.content[size or 0 :]
    got = {}
    for each in encoded_outputs:
        if binary:
            count = each["parameters"]["binary_data_size"]
            data, rest = np.frombuffer(rest[:count], np.float32), rest[count:]
        else:
            data = np.array(each["data"], np.float32)
        assert each["datatype"] == "FP32"
        got[each["name"]] = data.reshape(each["shape"])
    return got


def _json(served: Served, model: str, feed: Arrays, outputs: tuple[str, ...]) -> Arrays:
    return _by_http(served, model, feed, outputs, binary=False)


def _binary(served: Served, model: str, feed: Arrays, outputs: tuple[str, ...]) -> Arrays:
    return _by_http(served, model, feed, outputs, binary=True)


def _grpc(served: Served, model: str, feed: Arrays, outputs: tuple[str, ...]) -> Arrays:
    message = oip_message.encode_request("", model, _tensors(feed), outputs)
    with grpc.insecure_channel(served.server.rpc_endpoint) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        reply = infer(message, timeout=30)
    got = oip_message.decode_response(reply)
    return {name: got[name] for name in outputs}


PROTOCOLS: dict[str, Infer] = {"json": _json, "binary": _binary, "grpc": _grpc}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_server_returns_the_results_of_a_bare_loop(
    served: Served, network: str, mode: str, protocol: str
) -> None:
    outputs = (
        ("scores",) if (network, mode) == ("sequence", "padded") else NETWORKS[network].outputs
    )
    feeds = [feed_of(network, 1 + at % 11, 4 + at % 5, at) for at in range(24)]
    expected = [served.loops[network](feed) for feed in feeds]

    def infer_with(feed: Arrays) -> Arrays:
        return PROTOCOLS[protocol](served, f"{network}.{mode}", feed, outputs)

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(infer_with, feeds))
    for feed, theirs, ours in zip(feeds, expected, got, strict=True):
        assert [*ours] == [*outputs]
        true = answers(network, feed)
        for name in outputs:
            assert ours[name].shape == theirs[name].shape
            np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=TOLERANCE)
            np.testing.assert_allclose(ours[name], true[name], rtol=0, atol=TOLERANCE)


def test_batches_are_formed_and_padded_as_configured(served: Served) -> None:
    for network in NETWORKS:
        for mode in MODES:
            with ThreadPoolExecutor(16) as pool:
                feeds = [feed_of(network, 1, 4 + at % 5, at) for at in range(64)]
                model = f"{network}.{mode}"
                replies = [pool.submit(_json, served, model, each, ()) for each in feeds]
                assert all(each.result() for each in replies)
    ops = {
        graph["name"]: graph["ops"][0]
        for graph in served.client.get(f"{served.server.http_url}/status").json()["graphs"]
    }
    for network in NETWORKS:
        assert ops[f"{network}.alone"]["batches"] == ops[f"{network}.alone"]["samples"]
        assert ops[f"{network}.batched"]["batches"] < ops[f"{network}.batched"]["samples"]
    assert ops["sequence.padded"]["filled_in"] > 0
    assert ops["sequence.batched"]["filled_in"] == 0
    log = served.server.log()
    assert "does not declare which input" not in log
    assert "Traceback" not in log


def test_a_model_whose_padded_answers_differ_is_served_without_padding(
    networks: Path, tmp_path: Path
) -> None:
    model = copytree(networks / "sequence/onnx", tmp_path / "net")
    loaded = onnx.load(str(model / "model.onnx"))
    loaded.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "other"
    onnx.save(loaded, str(model / "model.onnx"))
    serve = (*SERVE[:-1], "--model")
    more = ("--runtime_thread_num", "1", "--pad")
    with running(model, *more, command=serve, timeout=60) as server:
        assert "its requests are not padded: output 'scores' has the shape" in server.log()


def test_a_model_that_a_worker_process_cannot_open_is_an_error_without_a_traceback(
    networks: Path, tmp_path: Path
) -> None:
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    good = networks / "regression/onnx/model.onnx"
    file = tmp_path / "serve.yml"
    pad = {"batch_size": 4, "pad": {"inputs": {"z": ["n", "w"]}}}
    for entry, text in (
        ({"path": str(tmp_path / "junk.onnx")}, "op 'net': ONNX Runtime cannot open "),
        ({"path": str(good)} | pad, "op 'net': pad.inputs: the model has no 'z', only "),
    ):
        models = {"net": {**entry, "executor": "process"}}
        file.write_text(json.dumps({"models": models}))
        with running(file, command=SERVE, ready=False) as server:
            assert server.wait_exit() == 1
            log = server.log()
        assert f"\nerror: {text}" in log
        assert "Traceback" not in log


@needs("paddle")
def test_paddle_models_run_in_processes_unless_threads_are_configured(
    networks: Path, tmp_path: Path
) -> None:
    path = str(networks / "regression/paddle_json")
    file = tmp_path / "serve.yml"
    cpus = len(os.sched_getaffinity(0))
    feed = feed_of("regression", 3)
    for entry, workers in (
        ({"path": path, "concurrency": 1}, "1 process"),
        ({"path": path, "executor": "thread"}, "4 threads"),
    ):
        file.write_text(json.dumps({"models": {"net": entry}}))
        with running(file, command=SERVE) as server, httpx.Client(timeout=30) as client:
            got = _json(Served(server, client, {}), "net", feed, ("price",))
            true = answers("regression", feed)["price"]
            np.testing.assert_allclose(got["price"], true, rtol=0, atol=TOLERANCE)
            log = server.log()
        assert f"after request  {workers}, {path}" in log
        assert ("keeps Python's global lock" in log) == (workers == "4 threads")
        assert "  model net  version 1, paddle: x float32[?, 13] -> price float32[?, 1]" in log
    (node,) = parse(["--model", path, "--thread", "64"])[0].workflows[0].nodes
    assert (node.options["executor"], node.options["concurrency"]) == ("process", min(64, cpus))
