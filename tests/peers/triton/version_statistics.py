"""Runs versions of a model with Triton's client, and prints the statistics that it gets as JSON;
run by that client's Python.

Usage: version_statistics.py HOST:PORT. The service has model ``m``, with versions 1 and 2.
"""

import json
import sys

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http


def infer(library, address, version):
    """One request on a connection of its own, for each engine gets some of the connections."""
    with library.InferenceServerClient(address) as client:
        tensor = library.InferInput("x", [1, 3], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 3), np.float32))
        client.infer("m", [tensor], model_version=version)


def main():
    address = sys.argv[1]
    for library in (over_http, over_grpc):
        for version in ("1", "1", "1", "1", "1", "2", "2", "2"):
            infer(library, address, version)
    found = {}
    for name, library, more in (("http", over_http, {}), ("grpc", over_grpc, {"as_json": True})):
        with library.InferenceServerClient(address) as client:
            found[name] = {
                "all": client.get_inference_statistics(**more),
                "model": client.get_inference_statistics("m", **more),
                "version": client.get_inference_statistics("m", "2", **more),
            }
    print(json.dumps(found))


main()
