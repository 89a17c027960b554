"""Calls by baidu_std, the protocol of brpc's servers, over one connection per endpoint.

``over_baidu_std`` makes the calls of a ``ModelClient``, for threads; ``baidu_std`` makes the
connections of any channel. Calls of a connection are multiplexed, and answers may come in any
order. The protocol has no cancellation: the answer to a cancelled call is dropped. Use on the
loop's thread only, except for ``over_baidu_std``.

Source: brpc's description of the protocol and of its error codes.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Final, cast

from penstock.client.call import Call, Outcome, failure
from penstock.client.channels import Channel
from penstock.client.endpoint_channel import CallProtocol, EndpointChannel
from penstock.client.endpoints import Endpoint
from penstock.client.errors import CallFailed
from penstock.client.messages import MAX_MESSAGE_BYTES
from penstock.errors import RequestError, TooLarge
from penstock.protocols.baidu_std import (
    Compression,
    MessageBegun,
    Meta,
    MethodCall,
    ProtocolBroken,
    Reader,
    compress,
    decompress,
    encode_request,
)
from penstock.protocols.status import GRPC_OF_BRPC, BrpcCode, GrpcCode

IDLE: Final = 60.0
"""Seconds without a call after which a connection is replaced: a server may close an idle
connection just when a call is sent. A guess, below the idle timeouts of servers."""

_SILENT_MS: Final = 20_000
"""TCP_USER_TIMEOUT: milliseconds after which a peer that acknowledges no data counts as lost."""

_JOINED: Final = 16 << 10
"""Maximum bytes of a request that is copied behind its header, for a single write."""


class BaiduStdConnection(asyncio.Protocol):
    """One connection; for its attributes see ``endpoint_channel.Connection``.

    Args:
        compression: how requests are compressed.
        owner: the connection's channel.
        loop: the channel's loop.
        name: the endpoint, for error texts.
    """

    def __init__(
        self,
        compression: Compression,
        owner: EndpointChannel,
        loop: asyncio.AbstractEventLoop,
        name: str,
    ) -> None:
        self._compression = compression
        self._owner = owner
        self._loop = loop
        self._name = name
        self._reader = Reader()
        self._calls: dict[int, Call] = {}
        self._arriving: tuple[Meta, list[bytes]] | None = None
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []  # output, written at the end of the turn
        self._leaving = False
        self._used_at = time.monotonic()
        self.opened = 0
        self.problem = "the connection was closed"
        self.server_drains = False
        self.has_answered = False
        self.settled: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()

    @property
    def usable(self) -> bool:
        """Whether it accepts calls; False before it is connected and when it is about to close."""
        transport = self._transport
        return transport is not None and not (self._leaving or transport.is_closing())

    def open(self, call: Call) -> bool:
        """Send a call. Returns False if the call must use another connection."""
        now = time.monotonic()
        if self.opened and not self._calls and now - self._used_at > IDLE:
            self._leave()
            return False
        self._used_at = now
        self.opened += 1
        number = self.opened
        method_call = _method_call(call.method, self._owner.left_ms(call) or 0)
        try:
            head = encode_request(method_call, number, len(call.request), self._compression)
        except ValueError as error:
            call.end(failure(GrpcCode.INVALID_ARGUMENT, str(error)))
            return True
        call.stream = number
        call.connection = self
        call.attempts += 1
        self._calls[number] = call
        if not self._pieces:
            self._loop.call_soon(self._flush)
        if len(call.request) <= _JOINED:
            self._pieces.append(head + call.request)
        else:
            self._pieces += (head, call.request)
        return True

    def leave(self, call: Call) -> None:
        """Remove a call; its answer will be dropped."""
        self._calls.pop(call.stream, None)
        call.detach()
        self._after()

    def close(self, failed: CallFailed | None = None) -> None:
        """Disconnect; open calls end with ``failed``, or with UNAVAILABLE."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._leaving = True
        self._end_calls(failed)
        self._flush()
        transport.close()

    def abort(self) -> None:
        """Disconnect at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept calls from now on: the protocol has no handshake."""
        self._transport = cast(asyncio.Transport, transport)
        link = transport.get_extra_info("socket")
        with suppress(OSError):  # not supported by every system
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_MS)
        self.settled.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Decode answers, and end their calls."""
        reader = self._reader
        reader.receive(data)
        try:
            while not self.gone.done() and (event := reader.next_event()) is not None:
                if isinstance(event, MessageBegun):
                    if event.size > MAX_MESSAGE_BYTES:
                        raise ProtocolBroken(f"an answer has {event.size} bytes")
                    if event.payload is not None:
                        self._answered(event.meta, event.payload)
                    else:
                        self._arriving = event.meta, []
                    continue
                assert self._arriving is not None, "a message begins before its payload"
                meta, parts = self._arriving
                if meta.correlation_id in self._calls:
                    parts.append(event.data)
                if event.ended:
                    self._arriving = None
                    self._answered(meta, b"".join(parts))
        except ProtocolBroken as error:
            self.problem = f"the server broke the protocol: {error}"
            self.close(failure(GrpcCode.INTERNAL, f"{self._name}: {self.problem}"))
        self._after()

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport was closed, by either side or by an error. Called once."""
        if self.gone.done():
            return
        if exc is not None:
            self.problem = f"the connection broke: {exc}"
        self._transport = None
        if not self.settled.done():
            self.settled.set_result(None)
        self._end_calls(None)
        self._owner.lost(self)
        self.gone.set_result(None)

    def _answered(self, meta: Meta, payload: bytes) -> None:
        self.has_answered = True
        call = self._calls.pop(meta.correlation_id, None)
        if call is None or call.ended:  # it was cancelled
            return
        outcome = outcome_of(meta, payload)
        call.detach()
        self._owner.call_ended(outcome)
        if meta.result is not None and meta.result.error_code == BrpcCode.ELOGOFF:
            # brpc sends this before it processes the request.
            self.problem = "the server is stopping"
            self._leave()
            self._owner.retry_unprocessed(call)
            return
        call.end(outcome if isinstance(outcome, bytes) else outcome.at(self._name))

    def _leave(self) -> None:
        """Accept no further calls, and disconnect after the last one."""
        if not self._leaving:
            self._leaving = True
            self._owner.leaving(self)
            self._after()

    def _end_calls(self, failed: CallFailed | None) -> None:
        calls, self._calls = self._calls, {}
        text = f"{self._name}: {self.problem}"
        for call in calls.values():
            call.end(failed or failure(GrpcCode.UNAVAILABLE, text))

    def _after(self) -> None:
        self._used_at = time.monotonic()
        if self._leaving and not self._calls:
            self.close()

    def _flush(self) -> None:
        pieces, self._pieces = self._pieces, []
        if pieces and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(pieces)


@lru_cache(1024)
def _method_call(path: str, timeout_ms: int) -> MethodCall:
    service, _, method = path.removeprefix("/").rpartition("/")
    return MethodCall(service, method, timeout_ms=timeout_ms)


def outcome_of(meta: Meta, payload: bytes) -> Outcome:
    """Return the outcome of a call from its answer. Pure."""
    result = meta.result
    if result is None:
        return failure(GrpcCode.INTERNAL, "the answer is none")
    if result.error_code:
        status = GRPC_OF_BRPC.get(result.error_code, GrpcCode.INTERNAL)
        return failure(status, f"[E{result.error_code}] {result.error_text or 'no reason given'}")
    if not 0 <= meta.attachment_bytes <= len(payload):
        text = f"an answer of {len(payload)} bytes has no attachment of {meta.attachment_bytes}"
        return failure(GrpcCode.INTERNAL, text)
    message = payload[: len(payload) - meta.attachment_bytes]
    try:
        return decompress(meta.compression, message, MAX_MESSAGE_BYTES)
    except TooLarge as error:
        return failure(GrpcCode.RESOURCE_EXHAUSTED, f"the reply is too large: {error}")
    except RequestError as error:
        return failure(GrpcCode.INTERNAL, f"the reply cannot be read: {error}")


def baidu_std(compression: Compression = Compression.NONE) -> CallProtocol:
    """Return the protocol of calls by baidu_std.

    Args:
        compression: how requests are compressed; answers may use any supported compression.

    Raises:
        UnknownEncoding: the compression is not supported.
    """
    compress(compression, b"")
    return CallProtocol(partial(compress, compression), partial(BaiduStdConnection, compression))


def over_baidu_std(
    endpoints: Sequence[Endpoint], compression: Compression = Compression.NONE
) -> Channel:
    """Make the calls of a ``ModelClient`` by baidu_std, without TLS::

        client = ModelClient(ModelFeeds(conf), variants, over_baidu_std)
        client.predict({"x": array}, ["price"], timeout=20.0)

    Args:
        endpoints: servers with the same model; calls are balanced over those that work.
        compression: how requests are compressed; set it by
            ``partial(over_baidu_std, compression=...)``.

    Raises:
        UnknownEncoding: the compression is not supported.
    """
    return Channel(endpoints, None, baidu_std(compression))
