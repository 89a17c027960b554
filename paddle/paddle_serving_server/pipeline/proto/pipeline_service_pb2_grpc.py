"""Stub and servicer of the pipeline service, for scripts that use grpcio themselves.

The script creates grpcio's channel or server; this module does not import grpcio.
"""

from typing import Any, Final

from penstock.protocols.pb import Request, Response

_SERVICE: Final = "baidu.paddle_serving.pipeline_serving.PipelineService"


class PipelineServiceStub:
    """Calls the service through a channel of grpcio; ``inference`` takes and returns messages."""

    def __init__(self, channel: Any) -> None:
        self.inference = channel.unary_unary(
            f"/{_SERVICE}/inference",
            request_serializer=Request.SerializeToString,
            response_deserializer=Response.FromString,
        )


class PipelineServiceServicer:
    """Override ``inference``."""

    def inference(self, request: Request, context: Any) -> Response:
        """Answer one request."""
        raise NotImplementedError("override inference")


def add_PipelineServiceServicer_to_server(servicer: PipelineServiceServicer, server: Any) -> None:
    """Register the servicer with a server of grpcio."""
    import grpc

    method = grpc.unary_unary_rpc_method_handler(
        servicer.inference,
        request_deserializer=Request.FromString,
        response_serializer=Response.SerializeToString,
    )
    handler = grpc.method_handlers_generic_handler(_SERVICE, {"inference": method})
    server.add_generic_rpc_handlers((handler,))
