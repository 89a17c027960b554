"""Penstock serves graphs of machine-learning models.

Nothing happens on import: no log is configured, no thread started, no file written. A name below is
imported when it is first used, so that a client does not pay for the server, nor an op for either.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from penstock.version import VERSION

if TYPE_CHECKING:
    from penstock.api.middleware import Middleware
    from penstock.caller import Caller
    from penstock.client import AsyncPipelineClient, PipelineClient
    from penstock.errors import HttpError
    from penstock.instrument import Instrument
    from penstock.ops.channel_data import ChannelData, ChannelDataType
    from penstock.ops.ends import RequestOp, ResponseOp
    from penstock.ops.op import Op
    from penstock.ops.product import CustomException, ProductErrCode
    from penstock.ops.seats import Done
    from penstock.ops.short import FunctionOp, Model, op
    from penstock.protocols.status import CustomExceptionCode
    from penstock.protocols.status import CustomExceptionCode as ChannelDataEcode
    from penstock.protocols.status import CustomExceptionCode as ChannelDataErrcode
    from penstock.runtimes.local_service import LocalServiceHandler
    from penstock.service.app import App
    from penstock.service.server import PipelineServer, Service, WebService, run
    from penstock.tensor import Signature
    from penstock.typed.arrays import Array, Image, Media
    from penstock.typed.parameters import Cookie, Header, Path, Query
    from penstock.typed.response import File, Response, redirect
    from penstock_paddle.instruments.analyst import Analyst

__version__ = VERSION

__all__ = [
    "Analyst",
    "App",
    "Array",
    "AsyncPipelineClient",
    "Caller",
    "ChannelData",
    "ChannelDataEcode",
    "ChannelDataErrcode",
    "ChannelDataType",
    "Cookie",
    "CustomException",
    "CustomExceptionCode",
    "Done",
    "File",
    "FunctionOp",
    "Header",
    "HttpError",
    "Image",
    "Instrument",
    "LocalServiceHandler",
    "Media",
    "Middleware",
    "Model",
    "Op",
    "Path",
    "PipelineClient",
    "PipelineServer",
    "ProductErrCode",
    "Query",
    "RequestOp",
    "Response",
    "ResponseOp",
    "Service",
    "Signature",
    "WebService",
    "op",
    "redirect",
    "run",
]

_ALIASES = dict.fromkeys(("ChannelDataEcode", "ChannelDataErrcode"), "CustomExceptionCode")
_NAMES_BY_MODULE = {
    "penstock.api.middleware": ("Middleware",),
    "penstock.client": ("AsyncPipelineClient", "PipelineClient"),
    "penstock.caller": ("Caller",),
    "penstock.errors": ("HttpError",),
    "penstock.instrument": ("Instrument",),
    "penstock.ops.channel_data": ("ChannelData", "ChannelDataType"),
    "penstock.ops.ends": ("RequestOp", "ResponseOp"),
    "penstock.ops.op": ("Op",),
    "penstock.ops.product": ("CustomException", "ProductErrCode"),
    "penstock.ops.seats": ("Done",),
    "penstock.ops.short": ("FunctionOp", "Model", "op"),
    "penstock.protocols.status": ("CustomExceptionCode", *_ALIASES),
    "penstock.runtimes.local_service": ("LocalServiceHandler",),
    "penstock.service.app": ("App",),
    "penstock.service.server": ("PipelineServer", "Service", "WebService", "run"),
    "penstock.tensor": ("Signature",),
    "penstock.typed.arrays": ("Array", "Image", "Media"),
    "penstock.typed.parameters": ("Cookie", "Header", "Path", "Query"),
    "penstock.typed.response": ("File", "Response", "redirect"),
    "penstock_paddle.instruments.analyst": ("Analyst",),
}
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(import_module(module), _ALIASES.get(name, name))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "penstock_paddle":
            raise
        text = f"{__name__}.{name} is in the distribution penstock-paddle, which is not installed"
        raise ImportError(f"{text}: pip install penstock-paddle") from error
    globals()[name] = found  # from now on found without this function
    return found


def __dir__() -> list[str]:
    hidden = set() if find_spec("penstock_paddle") else {"Analyst"}
    return sorted({*globals(), *__all__} - hidden)
