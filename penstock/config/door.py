"""``door``: how the ports are opened, and what the connections behind them may ask of us."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from penstock.config.section import Section
from penstock.config.values import MAX_INT32, Count, Seconds, Text


class TlsConfig(Section):
    """``door.tls``: certificates. Both ports speak TLS when it is set."""

    never_blank = frozenset({"certificate", "key"})

    certificate: Text | None = Field(
        default=None,
        description="PEM file of the server's certificate and the chain behind it.",
    )
    key: Text | None = Field(
        default=None,
        description="PEM file of its private key; without it the certificate's file holds both.",
    )


class DoorConfig(Section):
    """``door``: limits of connections, whichever protocol they speak, and TLS."""

    never_blank = frozenset({"unix_socket"})

    tls: TlsConfig = Field(default=TlsConfig(), description="Certificates; without them no TLS.")
    unix_socket: Text | None = Field(
        default=None,
        description="Path of a Unix socket that is served as well, by every protocol."
        " A socket file there that nobody serves any more is replaced; only the service's own user"
        " may connect.",
    )
    body_pace: Count = Field(
        default=64 << 10,
        description="Bytes a second; what arrives of a body makes `body_timeout` longer at this"
        " pace, and what is read of an answer `write_timeout`.",
    )
    http2_idle: Seconds = Field(
        default=300.0,
        description="Seconds a connection of HTTP/2 (gRPC too) without open streams is kept open.",
    )
    tls_timeout: Seconds = Field(
        default=10.0, description="Seconds within which a TLS handshake must be over."
    )
    max_unsent: Count = Field(
        default=64 << 20,
        description="Most bytes of answers that wait for one connection's reader; beyond it no"
        " further request of it is begun.",
    )
    busy_poll: Annotated[float, Field(ge=0, le=0.01)] = Field(
        default=0.001,
        description="Seconds that the loop looks for the next request before it sleeps, when none"
        " is open and the last ones came as quickly. It answers them sooner, and takes what is left"
        " of its core from about a thousand requests a second on; 0 turns it off.",
    )
    max_request_line: Count = Field(
        default=8 << 10, description="Most bytes of the first line of a request in HTTP/1.1."
    )
    max_header_bytes: Count = Field(
        default=16 << 10,
        description="Most bytes of a request's headers; in HTTP/2 each field counts 32 more.",
    )
    max_header_fields: Count = Field(default=100, description="Most headers of a request.")
    max_header_field: Count = Field(default=8 << 10, description="Most bytes of one header.")
    max_chunks: Count = Field(
        default=65_536, description="Most chunks of a request's body in HTTP/1.1."
    )
    max_streams: Count = Field(
        default=128, description="Most requests at once on one connection of HTTP/2."
    )
    stream_window: Annotated[int, Field(ge=65_535, le=MAX_INT32)] = Field(
        default=1 << 20,
        description="Bytes that a client may send ahead on one stream of HTTP/2.",
    )
    connection_window: Annotated[int, Field(ge=65_535, le=MAX_INT32)] = Field(
        default=4 << 20, description="The same for all streams of a connection together."
    )
    resets: Count = Field(
        default=200, description="Streams that a client of HTTP/2 may reset, each second."
    )
    pings: Count = Field(default=20, description="Pings without traffic between them, each second.")
    settings: Count = Field(default=20, description="SETTINGS frames of a client, each second.")
    empty_frames: Count = Field(
        default=100, description="Frames of a client that bring nothing, each second."
    )
    small_frames: Count = Field(
        default=5000,
        description="Frames of a client, each second, beyond one for each 16 bytes that it sends:"
        " data of less than 7 bytes in a frame of its own.",
    )
    continuations: Count = Field(
        default=16, description="CONTINUATION frames of one request's headers."
    )
