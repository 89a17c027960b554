"""The names that pipelines of the original are written with."""

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
