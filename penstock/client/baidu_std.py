"""Calls by baidu_std, the protocol of brpc's servers, over one connection per endpoint.

``baidu_std`` makes the connections of any channel; ``over_baidu_std`` is a channel for threads.
Calls of a connection are multiplexed, and answers may come in any order. The protocol has no
cancellation: the answer to a cancelled call is dropped. Use on the loop's thread only, except for
``over_baidu_std``.

Source: brpc's description of the protocol and of its error codes.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Final, cast

from penstock.client.call import Call, Outcome, failure, nonsense
from penstock.client.channels import Channel
from penstock.client.connection import CallProtocol, Connection, Owner
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
connection just when a call is sent. Less than the idle timeouts of servers."""

_SILENT_MS: Final = 20_000
"""TCP_USER_TIMEOUT: milliseconds after which a peer that acknowledges no data counts as lost."""

_JOINED: Final = 16 << 10
"""Maximum bytes of a request that is copied behind its header, for a single write."""


class BaiduStdConnection(Connection):
    """One connection. It is settled at once: the protocol has no handshake.

    Args:
        compression: how requests are compressed.
        owner: the connection's channel.
        loop: the channel's loop.
        name: the endpoint, for error texts.
    """

    def __init__(
        self,
        compression: Compression,
        owner: Owner,
        loop: asyncio.AbstractEventLoop,
        name: str,
    ) -> None:
        super().__init__(owner, loop, name)
        self._compression = compression
        self._reader = Reader()
        self._calls: dict[int, Call] = {}
        self._arriving: tuple[Meta, list[bytes]] | None = None
        self._pieces: list[bytes] = []  # output, written at the end of the turn
        self._used_at = time.monotonic()

    def open(self, call: Call) -> bool:
        """False means that it has been idle for too long."""
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
        """Its answer will be dropped."""
        self._calls.pop(call.stream, None)
        call.detach()
        self._after()

    def close(self, failed: CallFailed | None = None) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._leaving = True
        self._end_calls(failed)
        self._flush()
        transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept calls from now on."""
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
            self._fail(f"the server broke the protocol: {error}")
        self._after()

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
        super()._leave()
        self._after()

    def _take_calls(self) -> Collection[Call]:
        calls, self._calls = self._calls, {}
        return calls.values()

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
        return nonsense("the answer is none")
    if result.error_code:
        status = GRPC_OF_BRPC.get(result.error_code, GrpcCode.INTERNAL)
        text = f"[E{result.error_code}] {result.error_text or 'no reason given'}"
        if result.error_code in (BrpcCode.ELIMIT, BrpcCode.EOVERCROWDED):
            # brpc sends these before it processes the request.
            return CallFailed(status, text, retry_after=0.0)
        return failure(status, text)
    if not 0 <= meta.attachment_bytes <= len(payload):
        text = f"an answer of {len(payload)} bytes has no attachment of {meta.attachment_bytes}"
        return nonsense(text)
    message = payload[: len(payload) - meta.attachment_bytes]
    try:
        return decompress(meta.compression, message, MAX_MESSAGE_BYTES)
    except TooLarge as error:
        return failure(GrpcCode.RESOURCE_EXHAUSTED, f"the reply is too large: {error}")
    except RequestError as error:
        return nonsense(f"the reply cannot be read: {error}")


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
    """Make calls by baidu_std, without TLS.

    Args:
        endpoints: equal servers; calls are balanced over those that work.
        compression: how requests are compressed.

    Raises:
        UnknownEncoding: the compression is not supported.
    """
    return Channel(endpoints, None, baidu_std(compression))
