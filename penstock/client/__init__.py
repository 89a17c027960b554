"""The clients of pipeline services and model servers."""

from penstock.client.client import AsyncPipelineClient, PipelineClient, PredictFuture
from penstock.client.errors import CallFailed, NotConnected
from penstock.client.http_stream import stream, stream_async
from penstock.client.messages import raise_for_error, response_arrays
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
    "stream",
    "stream_async",
]
