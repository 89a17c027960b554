"""Penstock serves graphs of machine-learning models.

Nothing happens on import: no log is configured, no thread started, no file written.
"""

from penstock.client import AsyncPipelineClient, PipelineClient
from penstock.ops.channel_data import ChannelData, ChannelDataType
from penstock.ops.ends import RequestOp, ResponseOp
from penstock.ops.op import Op
from penstock.ops.product import CustomException, ProductErrCode
from penstock.ops.short import FunctionOp, Model, op
from penstock.protocols.status import CustomExceptionCode
from penstock.runtimes.local_service import LocalServiceHandler
from penstock.service.server import PipelineServer, WebService
from penstock.service.short import Service

__version__ = "0.1.0"

ChannelDataErrcode = CustomExceptionCode
ChannelDataEcode = CustomExceptionCode

__all__ = [
    "AsyncPipelineClient",
    "ChannelData",
    "ChannelDataEcode",
    "ChannelDataErrcode",
    "ChannelDataType",
    "CustomException",
    "CustomExceptionCode",
    "FunctionOp",
    "LocalServiceHandler",
    "Model",
    "Op",
    "PipelineClient",
    "PipelineServer",
    "ProductErrCode",
    "RequestOp",
    "ResponseOp",
    "Service",
    "WebService",
    "op",
]
