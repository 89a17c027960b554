"""Loads and unloads models with Triton's client, and prints what it sees as JSON; run by that
client's Python.

Usage: repository.py HOST:PORT FILE, where FILE is an ONNX model of ``x`` float32 [n, 3].
"""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.grpc.aio as over_grpc_aio
import tritonclient.http as over_http
import tritonclient.http.aio as over_http_aio
from tritonclient.utils import InferenceServerException


def rows_of(index):
    """The index as tuples, of JSON and of a message."""
    if not isinstance(index, list):
        index = [
            {"name": x.name, "version": x.version, "state": x.state, "reason": x.reason}
            for x in index.models
        ]
    return sorted([each["name"], each["version"], each["state"]] for each in index)


def error_of(call, *arguments, **more):
    try:
        call(*arguments, **more)
    except InferenceServerException as error:
        return [error.status(), error.message()]
    return None


def answer_of(library, client, model):
    tensor = library.InferInput("x", [1, 3], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 3), np.float32))
    return client.infer(model, [tensor]).as_numpy("y").tolist()


def blocking(library, address, file):
    seen = {}
    with library.InferenceServerClient(address) as client:
        seen["extensions"] = extensions_of(client.get_server_metadata())
        seen["before"] = rows_of(client.get_model_repository_index())
        seen["ready before"] = client.is_model_ready("a")
        client.load_model("a")
        seen["ready"] = client.is_model_ready("a")
        seen["answer"] = answer_of(library, client, "a")
        seen["loaded"] = rows_of(client.get_model_repository_index())
        client.unload_model("a")
        seen["ready after"] = client.is_model_ready("a")
        seen["unloaded"] = rows_of(client.get_model_repository_index())
        client.load_model("e")
        seen["with its steps"] = rows_of(client.get_model_repository_index())
        client.unload_model("e", unload_dependents=True)
        seen["without its steps"] = rows_of(client.get_model_repository_index())
        config = json.dumps({"max_batch_size": 4, "backend": "onnxruntime"})
        client.load_model("sent", config=config, files={"file:7/model.onnx": file.read_bytes()})
        seen["sent"] = answer_of(library, client, "sent")
        client.load_model("a", config=json.dumps({"max_batch_size": 2}))
        seen["config"] = config_of(client.get_model_config("a"))
        client.load_model("a")
        seen["config of the repository"] = config_of(client.get_model_config("a"))
        for name in ("a", "sent"):
            client.unload_model(name)
        seen["broken"] = error_of(client.load_model, "broken")
        seen["broken again"] = error_of(client.load_model, "broken")
        seen["unknown"] = error_of(client.load_model, "nope")
        seen["unknown unload"] = error_of(client.unload_model, "nope")
    return seen


def extensions_of(metadata):
    return list(metadata["extensions"] if isinstance(metadata, dict) else metadata.extensions)


def config_of(config):
    return config["max_batch_size"] if isinstance(config, dict) else config.config.max_batch_size


async def in_loop(library, address):
    async with library.InferenceServerClient(address) as client:
        await client.load_model("a")
        loaded = rows_of(await client.get_model_repository_index())
        await client.unload_model("a")
        return loaded, rows_of(await client.get_model_repository_index())


def main():
    address, file = sys.argv[1], Path(sys.argv[2])
    seen = {
        "http": blocking(over_http, address, file),
        "grpc": blocking(over_grpc, address, file),
        "http.aio": asyncio.run(in_loop(over_http_aio, address)),
        "grpc.aio": asyncio.run(in_loop(over_grpc_aio, address)),
    }
    print(json.dumps(seen))


main()
