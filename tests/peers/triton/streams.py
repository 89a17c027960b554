"""Calls models that stream with Triton's client and prints what it gets as JSON; run by that
client's Python.

Usage: streams.py HOST:PORT
"""

import asyncio
import json
import queue
import sys

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.grpc.aio as over_grpc_aio
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException


def integers(library, **values):
    inputs = []
    for name, value in values.items():
        tensor = library.InferInput(name, [1], "INT64")
        tensor.set_data_from_numpy(np.array([value], np.int64))
        inputs.append(tensor)
    return inputs


def shown(result, error):
    if error is not None:
        return {"error": str(error.message()), "status": str(error.status())}
    response = result.get_response()
    found = {"id": response.id, "final": None}
    if "triton_final_response" in response.parameters:
        found["final"] = response.parameters["triton_final_response"].bool_param
    for output in response.outputs:
        array = result.as_numpy(output.name)
        found[output.name] = [output.datatype, list(array.shape), plain(array.tolist())]
    return found


def plain(value):
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value


def stream(client, requests, *, answers, headers=None):
    """The answers to requests on one stream; no more than so many, unless it ends before."""
    results = queue.Queue()

    def take(result, error):
        results.put(shown(result, error))

    client.start_stream(take, headers=headers)
    for model, inputs, more in requests:
        client.async_stream_infer(model, inputs, **more)
    found = [results.get(timeout=30) for _ in range(answers)]
    client.stop_stream()
    while not results.empty():
        found.append(results.get())
    return found


async def stream_asyncio(address, requests):
    async def each():
        for model, inputs, more in requests:
            yield {"model_name": model, "inputs": inputs, **more}

    found = []
    async with over_grpc_aio.InferenceServerClient(address) as client:
        async for result, error in client.stream_infer(each()):
            found.append(shown(result, error))
    return found


async def cancel_asyncio(address, key):
    """Cancel a stream after the second answer; returns the number of answers."""
    tensor = over_grpc.InferInput("key", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([key.encode()], object))
    count = 0

    async def once():
        yield {"model_name": "endless", "inputs": [tensor]}
        await asyncio.Event().wait()

    async with over_grpc_aio.InferenceServerClient(address) as client:
        answers = client.stream_infer(once())
        async for _ in answers:
            count += 1
            if count == 2:
                answers.cancel()
                break
    return count


def main():
    address = sys.argv[1]
    client = over_grpc.InferenceServerClient(address)
    http = over_http.InferenceServerClient(address)
    count = integers(over_grpc, upto=3, fail_at=-1)
    fails = integers(over_grpc, upto=3, fail_at=2)
    fails_at_once = integers(over_grpc, upto=3, fail_at=0)
    double = integers(over_grpc, x=21)
    final = {"enable_empty_final_response": True}
    found = {
        "metadata": http.get_model_metadata("count"),
        "configuration": [
            http.get_model_config("count"),
            client.get_model_config("count", as_json=True)["config"],
            http.get_model_config("double"),
        ],
        "stream": stream(client, [("count", count, {"request_id": "a"})], answers=3),
        "final": stream(client, [("count", count, {"request_id": "a", **final})], answers=4),
        "mixed": stream(
            client,
            [
                ("count", count, {"request_id": "a", **final}),
                ("double", double, {"request_id": "b"}),
                ("double", double, {"request_id": "c"}),
            ],
            answers=6,
        ),
        "fails": stream(client, [("count", fails, {}), ("double", double, {})], answers=4),
        "closes": stream(
            client, [("count", fails, {})], answers=3, headers={"triton_grpc_error": "true"}
        ),
        "asyncio": asyncio.run(stream_asyncio(address, [("count", count, {"request_id": "d"})])),
        "cancelled": asyncio.run(cancel_asyncio(address, "cancelled")),
        "whole": [
            shown(client.infer("count", count, request_id="w"), None),
            shown(client.infer("count", integers(over_grpc, upto=0, fail_at=-1)), None),
        ],
    }
    for name, inputs in (("at once", fails_at_once), ("in the middle", fails)):
        try:
            client.infer("count", inputs)
        except InferenceServerException as error:
            found[f"fails {name}"] = shown(None, error)
    print(json.dumps(found))


main()
