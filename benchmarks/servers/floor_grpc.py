"""The gRPC floor: a bare grpc.aio unary handler that echoes the pairs.

With ``--graph inference`` it answers the price, which is computed once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import uvloop
from grpc import aio, method_handlers_generic_handler, unary_unary_rpc_method_handler

from benchmarks.calls import INFERENCE
from benchmarks.inference import MODEL_INFER, REQUEST, RESPONSE, right_price
from benchmarks.servers.options import server_options
from penstock.protocols.pb import Request, Response

MAX_MESSAGE_BYTES = 64 << 20


async def inference(request: Request, context: aio.ServicerContext[Request, Response]) -> Response:
    """Answer with the request's keys and values."""
    return Response(key=request.key, value=request.value, tensors=request.tensors)


async def infer(request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
    """Answer with the price."""
    price = np.float32(right_price()).tobytes()
    answer = RESPONSE(model_name=request.model_name, model_version="1", raw_output_contents=[price])
    answer.outputs.add(name="price", datatype="FP32", shape=[request.inputs[0].shape[0], 1])
    return answer


async def main(port: int, graph: str) -> None:
    """Serve until the process is ended."""
    server = aio.server(options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)])
    path, function, request, response = INFERENCE, inference, Request, Response
    if graph == "inference":
        path, function, request, response = MODEL_INFER, infer, REQUEST, RESPONSE
    handler = unary_unary_rpc_method_handler(
        function,
        request_deserializer=request.FromString,
        response_serializer=response.SerializeToString,
    )
    _, service, method = path.split("/")
    server.add_generic_rpc_handlers((method_handlers_generic_handler(service, {method: handler}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    # On uvloop, as Penstock runs it: on asyncio's own loop this floor is 5 to 15 % lower.
    options = server_options()
    uvloop.run(main(options.grpc_port, options.graph))
