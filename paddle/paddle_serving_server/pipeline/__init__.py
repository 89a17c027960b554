"""The public names of the original's pipeline package."""

from paddle_serving_server.pipeline.pipeline_server import PipelineServer
from penstock import Analyst, LocalServiceHandler, Op, PipelineClient, RequestOp, ResponseOp

__all__ = [
    "Analyst",
    "LocalServiceHandler",
    "Op",
    "PipelineClient",
    "PipelineServer",
    "RequestOp",
    "ResponseOp",
]
