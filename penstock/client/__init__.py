"""The clients of pipeline services and model servers.

Each is imported when it is first used: a service uses parts of this package, and most need no
client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client.client import AsyncPipelineClient, PipelineClient, PredictFuture
    from penstock.client.errors import CallFailed, NotConnected
    from penstock.client.http_stream import stream, stream_async
    from penstock.client.messages import raise_for_error, response_arrays
    from penstock.client.predictors import Split, VariantConf
    from penstock.client.sdk import Answer, AnswerFuture, Endpoint, Service, Variant
    from penstock.client.tls import Tls
    from penstock.client.trace import AttemptTrace, Timeline, TimelineStep, Trace

__all__ = [
    "Answer",
    "AnswerFuture",
    "AsyncPipelineClient",
    "AttemptTrace",
    "CallFailed",
    "Endpoint",
    "NotConnected",
    "PipelineClient",
    "PredictFuture",
    "Service",
    "Split",
    "Timeline",
    "TimelineStep",
    "Tls",
    "Trace",
    "Variant",
    "VariantConf",
    "raise_for_error",
    "response_arrays",
    "stream",
    "stream_async",
]

_MODULE_OF = {
    **dict.fromkeys(
        ("AsyncPipelineClient", "PipelineClient", "PredictFuture"), "penstock.client.client"
    ),
    **dict.fromkeys(("CallFailed", "NotConnected"), "penstock.client.errors"),
    **dict.fromkeys(("stream", "stream_async"), "penstock.client.http_stream"),
    **dict.fromkeys(("raise_for_error", "response_arrays"), "penstock.client.messages"),
    "Tls": "penstock.client.tls",
    **dict.fromkeys(("Split", "VariantConf"), "penstock.client.predictors"),
    **dict.fromkeys(
        ("Answer", "AnswerFuture", "Endpoint", "Service", "Variant"), "penstock.client.sdk"
    ),
    **dict.fromkeys(("AttemptTrace", "Timeline", "TimelineStep", "Trace"), "penstock.client.trace"),
}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(module), name)
    return found
