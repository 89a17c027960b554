"""HTTP/2 without input and output: one connection, either side of it."""

from penstock.protocols.http2.blocks import encode_block
from penstock.protocols.http2.codes import ErrorCode, StreamLimit
from penstock.protocols.http2.connection import Http2Connection
from penstock.protocols.http2.events import (
    ConnectionFailed,
    DataReceived,
    Event,
    GoawayReceived,
    HeadReceived,
    PingAcknowledged,
    RoomMade,
    StreamReset,
    TrailersReceived,
)
from penstock.protocols.http2.frames import PREFACE
from penstock.protocols.http2.limits import Http2Limits, Role
from penstock.protocols.http2.memo import HeadMemo
from penstock.protocols.http2.settings import PeerSettings
from penstock.protocols.http2.stream import Stream

__all__ = [
    "PREFACE",
    "ConnectionFailed",
    "DataReceived",
    "ErrorCode",
    "Event",
    "GoawayReceived",
    "HeadMemo",
    "HeadReceived",
    "Http2Connection",
    "Http2Limits",
    "PeerSettings",
    "PingAcknowledged",
    "Role",
    "RoomMade",
    "Stream",
    "StreamLimit",
    "StreamReset",
    "TrailersReceived",
    "encode_block",
]
