"""The SDK: calls a pipeline service."""

from penstock.client.aio import AsyncPipelineClient
from penstock.client.client import PipelineClient
from penstock.client.errors import CallFailed, NotConnected
from penstock.client.future import PredictFuture
from penstock.client.replies import raise_for_error, response_arrays
from penstock.client.tls import Tls

__all__ = [
    "AsyncPipelineClient",
    "CallFailed",
    "NotConnected",
    "PipelineClient",
    "PredictFuture",
    "Tls",
    "raise_for_error",
    "response_arrays",
]
