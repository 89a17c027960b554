"""What engine and workers say to each other: frames, and the values in them.

Pure: bytes and values in, bytes and values out.
"""

from penstock.executors.processes.frame.decoder import Decoder, decode
from penstock.executors.processes.frame.encoder import encode
from penstock.executors.processes.frame.frames import (
    HEADER_BYTES,
    UNASKED_BYTES,
    Frame,
    FrameError,
    FrameReader,
    Kind,
    OnlyPickledError,
    header,
)
from penstock.executors.processes.frame.values import LARGE, MAX_DEPTH, Blob, Ref

__all__ = [
    "HEADER_BYTES",
    "LARGE",
    "MAX_DEPTH",
    "UNASKED_BYTES",
    "Blob",
    "Decoder",
    "Frame",
    "FrameError",
    "FrameReader",
    "Kind",
    "OnlyPickledError",
    "Ref",
    "decode",
    "encode",
    "header",
]
