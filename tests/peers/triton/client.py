"""Calls a service with Triton's client and prints the results as JSON; run by that client's Python.

Usage: client.py HOST:PORT CASES, where CASES is a JSON file with a list of
``{"model": ..., "inputs": {name: [datatype, shape, data]}}``.
"""

import asyncio
import json
import queue
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.grpc.aio as over_grpc_aio
import tritonclient.http as over_http
import tritonclient.http.aio as over_http_aio
from tritonclient.utils import InferenceServerException, triton_to_np_dtype


def array_of(datatype, shape, data):
    if datatype == "BYTES":
        array = np.empty(len(data), object)
        array[:] = [each.encode() for each in data]
    else:
        dtype = ml_dtypes.bfloat16 if datatype == "BF16" else triton_to_np_dtype(datatype)
        array = np.array(data, dtype)
    return array.reshape(shape)


def inputs_of(library, case, **more):
    inputs = []
    for name, (datatype, shape, data) in case["inputs"].items():
        tensor = library.InferInput(name, shape, datatype)
        tensor.set_data_from_numpy(array_of(datatype, shape, data), **more)
        inputs.append(tensor)
    return inputs


def shown(result):
    response = result.get_response()
    if not isinstance(response, dict):
        outputs = {each.name: each.datatype for each in response.outputs}
    else:
        outputs = {each["name"]: each["datatype"] for each in response["outputs"]}
    return {
        name: [datatype, list(array.shape), plain(array)]
        for name, datatype in outputs.items()
        for array in [result.as_numpy(name)]
    }


def plain(array):
    return [each.decode() if isinstance(each, bytes) else each for each in array.ravel().tolist()]


def call(answers, how, client, model, inputs, **more):
    try:
        answers[how] = shown(client.infer(model, inputs, **more))
    except InferenceServerException as error:
        answers[how] = {"error": [error.status(), error.message()]}


async def call_asyncio(address, case, answers):
    async with over_http_aio.InferenceServerClient(address) as client:
        result = await client.infer(case["model"], inputs_of(over_http, case))
        answers["http, asyncio"] = shown(result)
    async with over_grpc_aio.InferenceServerClient(address) as client:
        result = await client.infer(case["model"], inputs_of(over_grpc, case))
        answers["grpc, asyncio"] = shown(result)


def call_stream(client, case, answers):
    results = queue.Queue()
    client.start_stream(lambda result, error: results.put(error or result))
    for number in range(3):
        client.async_stream_infer(case["model"], inputs_of(over_grpc, case), request_id=str(number))
    for number in range(3):
        result = results.get(timeout=10)
        if isinstance(result, Exception):
            answers[f"grpc, stream {number}"] = {"error": [result.status(), result.message()]}
        else:
            assert result.get_response().id == str(number)
            answers[f"grpc, stream {number}"] = shown(result)
    client.stop_stream()


def main():
    address, cases = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    http = over_http.InferenceServerClient(address)
    grpc = over_grpc.InferenceServerClient(address)
    found = {
        "server": http.get_server_metadata(),
        "live": [http.is_server_live(), grpc.is_server_live()],
        "ready": [http.is_server_ready(), grpc.is_server_ready()],
        "no such model": [
            each.is_model_ready(*model)
            for each in (http, grpc)
            for model in (["nope"], ["nope", "3"])
        ],
        "answers": [],
    }
    for case in cases:
        answers = {}
        found["answers"].append(answers)
        model = case["model"]
        if not case.get("wrong"):
            assert http.is_model_ready(model)
            assert grpc.is_model_ready(model, case.get("version", "1"))
            found[f"metadata of {model}"] = http.get_model_metadata(model)
            assert grpc.get_model_metadata(model, as_json=True)["name"] == model
            found[f"configuration of {model}"] = [
                http.get_model_config(model),
                grpc.get_model_config(model, as_json=True)["config"],
            ]
        if not any(each[0] in ("FP16", "BF16") for each in case["inputs"].values()):
            plain_inputs = inputs_of(over_http, case, binary_data=False)
            call(answers, "http, json", http, model, plain_inputs)
        inputs = inputs_of(over_http, case)
        call(answers, "http, raw", http, model, inputs)
        gzip = {
            "request_compression_algorithm": "gzip",
            "response_compression_algorithm": "gzip",
        }
        call(answers, "http, gzip", http, model, inputs, **gzip)
        call(answers, "http, deflate", http, model, inputs, request_compression_algorithm="deflate")
        inputs = inputs_of(over_grpc, case)
        call(answers, "grpc", grpc, model, inputs)
        call(answers, "grpc, gzip", grpc, model, inputs, compression_algorithm="gzip")
        call_stream(grpc, case, answers)
        if not case.get("wrong"):
            asyncio.run(call_asyncio(address, case, answers))
    found["statistics"] = [
        http.get_inference_statistics(),
        grpc.get_inference_statistics(as_json=True),
    ]
    print(json.dumps(found))


main()
