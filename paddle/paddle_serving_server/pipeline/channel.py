"""Error numbers, and the value or error of one request.

The original's channel classes are missing: Penstock's queues are not accessible to scripts.
"""

from typing import Any

from penstock import ChannelData, ChannelDataEcode, ChannelDataErrcode, ChannelDataType
from penstock_paddle import refuse_name

__all__ = ["ChannelData", "ChannelDataEcode", "ChannelDataErrcode", "ChannelDataType"]

_MISSING = dict.fromkeys(
    ("ChannelStopError", "ChannelTimeoutError", "ChannelType", "ProcessChannel", "ThreadChannel"),
    "queues between ops are not objects of scripts; op.<name>.channel_size limits them",
)


def __getattr__(name: str) -> Any:
    refuse_name(__name__, name, _MISSING)
