"""HTTP/2 without I/O: the state of one connection, for servers and clients."""

from penstock.protocols.http2.codes import ErrorCode, StreamLimit
from penstock.protocols.http2.connection import Http2Connection
from penstock.protocols.http2.events import (
    ConnectionFailed,
    DataReceived,
    Event,
    GoawayReceived,
    HeadReceived,
    HeadTooLarge,
    PingAcknowledged,
    StreamReset,
    TrailersReceived,
)
from penstock.protocols.http2.frames import PREFACE, PeerSettings
from penstock.protocols.http2.hpack import encode_block
from penstock.protocols.http2.limits import Http2Limits, Role
from penstock.protocols.http2.stream import Stream

__all__ = [
    "PREFACE",
    "ConnectionFailed",
    "DataReceived",
    "ErrorCode",
    "Event",
    "GoawayReceived",
    "HeadReceived",
    "HeadTooLarge",
    "Http2Connection",
    "Http2Limits",
    "PeerSettings",
    "PingAcknowledged",
    "Role",
    "Stream",
    "StreamLimit",
    "StreamReset",
    "TrailersReceived",
    "encode_block",
]
