"""A baidu_std call, as handlers see it, and the names of such methods.

The payload is handled like an HTTP body: within the limits, in pieces, decompressed. An attachment
is ignored, as in the original's model server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import ClassVar

from penstock.api.body import SMALL
from penstock.api.body_call import BodyCall
from penstock.api.call import Shared
from penstock.door.baidu_std import BaiduStdExchange
from penstock.door.exchange import Exchange, Receiver
from penstock.errors import RequestError, Undecodable
from penstock.protocols.baidu_std import Compression, decompress
from penstock.protocols.heads import Headers
from penstock.protocols.status import (
    BrpcCode,
    GrpcCode,
    brpc_code_of,
    brpc_code_of_grpc,
)


class BaiduStdCall(BodyCall):
    """One call.

    Attributes:
        exchange: its exchange, from the door.
        route: the called method.
    """

    __slots__ = ("route",)

    exchange: BaiduStdExchange
    is_grpc = False

    def __init__(self, exchange: BaiduStdExchange, shared: Shared, method: BaiduStd) -> None:
        call = exchange.meta.call
        assert call is not None, "the door begins no exchange without it"
        self.exchange = exchange
        self.shared = shared
        self.timeout = call.timeout_ms / 1000 if call.timeout_ms > 0 else None
        self.inbox = self.partial = None
        self.started = False
        self.route = method

    @property
    def label(self) -> str:
        return self.route.path

    @property
    def log_id(self) -> int:
        """The caller's trace id; 0 by default."""
        call = self.exchange.meta.call
        return 0 if call is None else call.log_id

    def begin(self) -> Receiver | None:
        """Begin the call. An announced body is reserved before it is read."""
        exchange = self.exchange
        meta = exchange.meta
        whole = exchange.whole
        size = exchange.head.content_length or 0
        plain = not (
            meta.compression or meta.attachment_bytes or meta.is_chunk or meta.opens_stream
        )
        small = size <= min(SMALL, self.shared.most)
        if whole is not None and plain and small and exchange.try_small(size):
            # The fast path of nearly every call.
            self.route.whole(self, whole)
            return None
        problem = ""
        if meta.is_chunk or meta.opens_stream:
            problem = "messages in chunks, and streams, are not supported"
        elif not 0 <= meta.attachment_bytes <= size:
            problem = f"a payload of {size} bytes has no attachment of {meta.attachment_bytes}"
        if problem:
            self.refuse(Undecodable(problem))
            return None
        if self.timeout is not None:
            exchange.deadline = monotonic() + self.timeout
        return self if self.expect(size) else None

    def data(self, exchange: Exchange, piece: bytes, ended: bool) -> None:
        try:
            if exchange.to_come:
                exchange.arrive(len(piece))
            if ended:
                exchange.body_deadline = inf
            body = self.collect(piece, ended)
        except RequestError as error:
            self.give_up(error)
            return
        if body is not None:
            self.take(body)

    def late(self, exchange: Exchange) -> None:
        """See ``Receiver``: the payload took too long to arrive."""
        self.stop()
        self.exchange.fail_call(BrpcCode.ERPCTIMEDOUT, "the request took too long to arrive")

    def reply(self, message: bytes) -> None:
        """Answer."""
        self.exchange.respond(message)

    def fail_with(self, error: RequestError, text: str | None = None) -> None:
        """End the call with the code of an error, and its text or another."""
        self.exchange.fail_call(brpc_code_of(error), str(error) if text is None else text)

    def fail(self, code: GrpcCode, text: str, metadata: Headers = ()) -> None:
        self.exchange.fail_call(brpc_code_of_grpc(code), text)

    def finish(self) -> None:
        self.exchange.finish()

    @property
    def is_packed(self) -> bool:
        """See ``BodyCall``; this includes removing an attachment."""
        meta = self.exchange.meta
        return bool(meta.compression or meta.attachment_bytes)

    def unpack(self, body: bytes) -> bytes:
        meta = self.exchange.meta
        message = body[: len(body) - meta.attachment_bytes]
        if meta.compression == Compression.NONE:
            return message
        return decompress(meta.compression, message, self.shared.most)

    def take(self, body: bytes) -> None:
        self.route.whole(self, body)

    def refuse(self, error: RequestError) -> None:
        self.count_refusal(error)
        self.route.failed(self, error)


@dataclass(frozen=True, slots=True)
class BaiduStd:
    """A method for baidu_std.

    Attributes:
        service: its full name.
        method: its name.
        whole: called with each call and its message.
        failed: answers errors before that (a refused caller, too many bytes in flight).
    """

    always: ClassVar[bool] = False
    admin: ClassVar[bool] = False
    open: ClassVar[bool] = False
    service: str
    method: str
    whole: Callable[[BaiduStdCall, bytes], None]
    failed: Callable[[BaiduStdCall, RequestError], None] = BaiduStdCall.fail_with

    @property
    def path(self) -> str:
        """Its name in lists, as of a gRPC method."""
        return f"/{self.service}/{self.method}"
