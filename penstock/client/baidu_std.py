"""Calls by baidu_std, the protocol of brpc's servers, over one connection for each endpoint.

``over_baidu_std`` gives ``ModelClient`` its calls, for threads; ``baidu_std`` gives any channel its
connections. Many calls are in flight on a connection, and answers may come in any order. The
protocol has no cancellation: the answer to a call that was given up is dropped. The loop's thread
only, but for ``over_baidu_std``.

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
"""Seconds without a call after which a connection is replaced: a server may close an idle one
without notice, and the next call would be lost. A guess, below the idle timeouts of servers."""

_SILENT_MS: Final = 20_000
"""Milliseconds after which a peer that acknowledges nothing is gone (TCP_USER_TIMEOUT)."""

_JOINED: Final = 16 << 10
"""Bytes of a request that are copied behind its header, to be written as one piece."""


class BaiduStdConnection(asyncio.Protocol):
    """One connection; the attributes are those of ``endpoint_channel.Connection``.

    Args:
        compression: how requests are packed.
        owner: the channel that it belongs to.
        loop: of the channel.
        name: the endpoint's, for messages.
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
        self._pieces: list[bytes] = []  # written at the end of the turn
        self._leaving = False
        self._used_at = time.monotonic()
        self.opened = 0
        self.problem = "the connection was closed"
        self.dismissed = False
        self.proved = False
        self.settled: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()

    @property
    def usable(self) -> bool:
        """Whether it takes calls; False before it is connected and as soon as it is to end."""
        transport = self._transport
        return transport is not None and not (self._leaving or transport.is_closing())

    def open(self, call: Call) -> bool:
        """Send one call; False when it is to go over another connection."""
        now = time.monotonic()
        if self.opened and not self._calls and now - self._used_at > IDLE:
            self._leave()
            return False
        self._used_at = now
        self.opened += 1
        number = self.opened
        told = _method_call(call.method, self._owner.left_ms(call) or 0)
        try:
            head = encode_request(told, number, len(call.request), self._compression)
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
        """Forget a call: its answer will be dropped."""
        self._calls.pop(call.stream, None)
        call.detach()
        self._after()

    def close(self, failed: CallFailed | None = None) -> None:
        """Disconnect; calls end with ``failed``, or with UNAVAILABLE."""
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
        """The protocol has no greeting: it takes calls from now on."""
        self._transport = cast(asyncio.Transport, transport)
        link = transport.get_extra_info("socket")
        with suppress(OSError):  # not every system's sockets know it
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_MS)
        self.settled.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Give each call whose answer is complete its outcome."""
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
        """The transport is closed: by the peer, by us, or by the network. Only once."""
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
        self.proved = True
        call = self._calls.pop(meta.correlation_id, None)
        if call is None or call.ended:  # it was given up
            return
        outcome = outcome_of(meta, payload)
        call.detach()
        self._owner.heard(outcome)
        if meta.result is not None and meta.result.error_code == BrpcCode.ELOGOFF:
            # brpc says so before it has looked at the request.
            self.problem = "the server is stopping"
            self._leave()
            self._owner.untouched(call)
            return
        call.end(outcome if isinstance(outcome, bytes) else outcome.at(self._name))

    def _leave(self) -> None:
        """Take no more calls, and disconnect after the last one."""
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
    """What an answer means. Pure."""
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
    """Calls by baidu_std.

    Args:
        compression: how requests are packed; answers may be packed in any way that is spoken here.

    Raises:
        UnknownEncoding: it is not spoken here.
    """
    compress(compression, b"")
    return CallProtocol(partial(compress, compression), partial(BaiduStdConnection, compression))


def over_baidu_std(
    endpoints: Sequence[Endpoint], compression: Compression = Compression.NONE
) -> Channel:
    """Calls by baidu_std, in clear text, for ``ModelClient``::

        client = ModelClient(ModelFeeds(conf), variants, over_baidu_std)
        client.predict({"x": array}, ["price"], timeout=20.0)

    Args:
        endpoints: of servers with the same model; calls take turns between those that work.
        compression: how requests are packed; ``partial(over_baidu_std, compression=...)`` chooses.

    Raises:
        UnknownEncoding: the compression is not spoken here.
    """
    return Channel(endpoints, None, baidu_std(compression))
