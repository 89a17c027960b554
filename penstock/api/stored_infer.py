"""``penstock.ExternalStore/ModelInfer``: requests of other Penstocks whose large tensors are in an
external store that both use; see ``protocols/stored_infer.py``.

A request that cannot be served because of the store is refused before anything runs, in an answer
that says why: its caller then sends the values themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final

import numpy as np

from penstock.api.application import Applications, Route
from penstock.api.body import LARGE
from penstock.api.decoding import what_is_left
from penstock.api.errors import text_for_caller
from penstock.api.grpc import Grpc, GrpcCall
from penstock.api.oip_call import Decoded, GrpcInfer, InferCall
from penstock.api.threads import run_aside
from penstock.engine.engine import Engine
from penstock.errors import RequestError, TooLarge
from penstock.executors.external_store.server import ServerStore
from penstock.executors.external_store.store import StoreFailed
from penstock.protocols import oip, oip_message, stored_infer
from penstock.protocols.oip import BF16, BYTES
from penstock.protocols.standard_messages import INFERENCE
from penstock.protocols.status import GrpcCode, status_of
from penstock.protocols.stored_infer import METHOD, StoredRequest, StoredResponse
from penstock.request import Feed

_NOT_THE_CALLERS: Final = "its shared_secret (external_store_options) is not that of the caller"
_RETRIED: Final = frozenset(
    (GrpcCode.UNIMPLEMENTED, GrpcCode.UNAUTHENTICATED, GrpcCode.PERMISSION_DENIED)
)
"""Statuses that mean to a caller that nothing has run; an op's own error may have one."""


class StoredInferApplication:
    """The method. Belongs to the engine's loop.

    Args:
        engine: answers requests.
        store: where the values are.
        decode: decodes the message of a call, in any thread; raises RequestError.
        make: makes a request of a kind, with the caller's timeout in seconds.
        applications: those of the service, which may admit callers.
    """

    def __init__(
        self,
        engine: Engine,
        store: ServerStore,
        decode: Callable[[GrpcCall, bytes], Decoded],
        make: Callable[[type[InferCall], Decoded, float | None], InferCall],
        applications: Applications,
    ) -> None:
        self._engine = engine
        self._store = store
        self._decode = decode
        self._make = make
        self._applications = applications
        # A rule for the usual method applies here, too.
        self._usual = Grpc(f"/{INFERENCE}/ModelInfer")

    def routes(self) -> list[Route]:
        """What to serve."""
        return [Grpc(METHOD, self._call)]

    def _call(self, call: GrpcCall, message: bytes) -> None:
        readmit = self._applications.readmit
        try:
            if readmit is not None:
                call.exchange.caller = readmit(self._usual, call.exchange)
        except RequestError as error:
            call.count_refusal(error)
            call.fail_with(error)
            return
        call.aside(self._run(call, message))

    def _marked(self, message: bytes) -> StoredRequest | None:
        """The request, if it has the mark; in any thread."""
        request = stored_infer.decode_request(message)
        return request if self._store.is_marked(request) else None

    async def _run(self, call: GrpcCall, message: bytes) -> None:
        begun = monotonic()
        most = call.shared.most
        with self._engine.arriving():
            try:
                if len(message) > LARGE:
                    request = await run_aside(call.shared.threads, self._marked, message)
                else:
                    request = self._marked(message)
                if request is None:
                    _refuse(call, _NOT_THE_CALLERS)
                    return
                size = sum(map(_size, request.raws))
                if size > most:
                    raise TooLarge(f"the values of the request are over {most} bytes")
                call.exchange.take(size)
                call.exchange.decode(size)
                places = request.places
                octets = iter(
                    await run_aside(self._store.threads, self._store.fetch, places)
                    if places
                    else ()
                )
                raws = [
                    next(octets) if isinstance(each, stored_infer.Place) else each
                    for each in request.raws
                ]
                decoded = await run_aside(
                    call.shared.threads, self._decoded, call, request.message, raws
                )
            except StoreFailed as error:
                _refuse(call, f"its external store {error}")
                return
            except RequestError as error:
                call.count_refusal(error)
                call.fail_with(error)
                return
            infer = self._make(StoredInfer, decoded, what_is_left(call.timeout, begun))
            assert isinstance(infer, StoredInfer)
            infer.store = self._store
            infer.key = request.answer
            infer.least = max(1, request.least)
            infer.run(call)

    def _decoded(
        self, call: GrpcCall, message: bytes, raws: list[bytearray | memoryview]
    ) -> Decoded:
        whole = stored_infer.whole_request(message, map(memoryview, raws))
        return self._decode(call, whole)


class StoredInfer(GrpcInfer):
    """A request, whose large outputs go to the store.

    Attributes:
        store: the store.
        key: for large outputs; empty for none.
        least: the bytes of a large output.
    """

    __slots__ = ("key", "least", "store")

    store: ServerStore
    key: str
    least: int

    def is_large(self, value: Feed) -> bool:
        """See ``GraphCall``: the store is not asked on the loop."""
        return super().is_large(value) or (
            self.key != "" and any(_most_bytes(each) >= self.least for each in dict.values(value))
        )

    def reply_aside(self, value: Feed) -> None:
        if self.key:
            self.threads = self.store.threads
        super().reply_aside(value)

    def reserve(self, value: Feed) -> None:
        """See ``GraphCall``: raw bytes, which are as long as their arrays."""
        self.held.take(sum(map(_nbytes, dict.values(value))))

    def encode(self, value: Feed) -> bytes:
        tensors = self.tensors(value)
        raws = [oip.to_raw(each) for each in tensors]
        large = [
            each.datatype not in (BF16, BYTES) and len(raw) >= self.least
            for each, raw in zip(tensors, raws, strict=True)
        ]
        kept: list[stored_infer.Raw] = [*raws]
        if self.key and any(large):
            kept = self.store.keep(self.key, raws, large, self.deadline, self._is_gone)
        message = oip_message.encode_response_apart(self.head(None), tensors)
        return stored_infer.encode_response(StoredResponse(message=message, raws=kept))

    def fail(self, error: RequestError) -> None:
        status = status_of(error).grpc
        if status in _RETRIED:
            self.call.fail(GrpcCode.INTERNAL, text_for_caller(error, self.log_id))
        else:
            super().fail(error)

    def _is_gone(self) -> bool:
        return bool(self.call.exchange.over)


def _refuse(call: GrpcCall, why: str) -> None:
    call.reply(stored_infer.encode_response(StoredResponse(refusal=why)))


def _size(raw: stored_infer.Raw) -> int:
    return raw.nbytes if isinstance(raw, stored_infer.Place) else len(raw)


def _most_bytes(value: object) -> float:
    """The most raw bytes that a value can have in the store, as far as is known without making an
    array of it. Texts are not put there.
    """
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, (str, bytes)):
        return 0
    return 8 if isinstance(value, (int, float)) else inf


def _nbytes(value: object) -> int:
    return value.nbytes if isinstance(value, np.ndarray) else 0
