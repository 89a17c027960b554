"""What engine and workers say to each other: frames, and the values in them.

Pure: bytes and values in, bytes and values out.
"""

from penstock.executors.processes.frame.decoder import Decoder, decode
from penstock.executors.processes.frame.encoder import (
    Encoder,
    encode,
    listed,
    packed,
    packed_scalars,
)
from penstock.executors.processes.frame.frames import (
    HEADER_BYTES,
    UNASKED_BYTES,
    Frame,
    FrameError,
    FrameReader,
    Kind,
    OnlyPickledError,
    framed,
    header,
)
from penstock.executors.processes.frame.values import KEY_TYPES as SCALARS
from penstock.executors.processes.frame.values import LARGE, LENGTH, MAX_DEPTH, Blob, Ref

__all__ = [
    "HEADER_BYTES",
    "LARGE",
    "LENGTH",
    "MAX_DEPTH",
    "SCALARS",
    "UNASKED_BYTES",
    "Blob",
    "Decoder",
    "Encoder",
    "Frame",
    "FrameError",
    "FrameReader",
    "Kind",
    "OnlyPickledError",
    "Ref",
    "decode",
    "encode",
    "framed",
    "header",
    "listed",
    "packed",
    "packed_scalars",
]
