"""The parts of gRPC that do not depend on HTTP/2: messages, statuses, metadata, and request
headers.

Source: the gRPC over HTTP/2 protocol (PROTOCOL-HTTP2).
"""

from penstock.protocols.grpc.messages import (
    ENCODINGS,
    GZIP,
    IDENTITY,
    Deferred,
    MessageReader,
    encode_message,
    message_prefix,
    unary_message,
)
from penstock.protocols.grpc.metadata import (
    Metadata,
    decode_metadata,
    encode_metadata,
)
from penstock.protocols.grpc.request import ACCEPTED, check_request
from penstock.protocols.grpc.status import (
    HEAD,
    OK_TRAILERS,
    GrpcError,
    code_of_http,
    decode_status_message,
    encode_status_message,
    read_status,
    trailers,
)
from penstock.protocols.grpc.timeout import encode_timeout, parse_timeout

__all__ = [
    "ACCEPTED",
    "ENCODINGS",
    "GZIP",
    "HEAD",
    "IDENTITY",
    "OK_TRAILERS",
    "Deferred",
    "GrpcError",
    "MessageReader",
    "Metadata",
    "check_request",
    "code_of_http",
    "decode_metadata",
    "decode_status_message",
    "encode_message",
    "encode_metadata",
    "encode_status_message",
    "encode_timeout",
    "message_prefix",
    "parse_timeout",
    "read_status",
    "trailers",
    "unary_message",
]
