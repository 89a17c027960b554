"""A pipeline service with grpcio only, for Penstock's client: echoes, waits or fails as requested.

python grpcio_server.py '{"port": "9000", "certificate": "...", "key": "..."}'
"""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from penstock.protocols.pb import Request, Response

CODES = {code.value[0]: code for code in grpc.StatusCode}


def inference(request: Request, context: grpc.ServicerContext) -> Response:
    requested = dict(zip(request.key, request.value, strict=True))
    if "fail" in requested:
        context.abort(CODES[int(requested["fail"])], "as you wish: é")
    if "hold" in requested:
        ended = threading.Event()
        context.add_callback(ended.set)
        ended.wait()
    return Response(key=request.key, value=request.value, tensors=request.tensors)


def main() -> None:
    requested = json.loads(sys.argv[1])
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", -1)])
    handler = grpc.unary_unary_rpc_method_handler(
        inference,
        request_deserializer=Request.FromString,
        response_serializer=Response.SerializeToString,
    )
    service = "baidu.paddle_serving.pipeline_serving.PipelineService"
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"inference": handler}),)
    )
    address = f"127.0.0.1:{requested['port']}"
    if "key" in requested:
        pair = (Path(requested["key"]).read_bytes(), Path(requested["certificate"]).read_bytes())
        server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    else:
        server.add_insecure_port(address)
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
