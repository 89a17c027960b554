"""What a door serves: gRPC to those who speak it, HTTP routes to everybody else."""

from __future__ import annotations

from penstock.api.grpc_service import GrpcService, Plan
from penstock.api.http import failure
from penstock.door.exchange import Application, Exchange, HttpReply, Receiver
from penstock.protocols import grpc
from penstock.protocols.heads import HTTP_2, RequestHead
from penstock.protocols.status import GRPC_OF_HTTP, GrpcCode

_GRPC = b"application/grpc"


class Frontend:
    """Both applications behind one door, so that either port speaks everything."""

    def __init__(self, grpc: GrpcService, http: Application) -> None:
        self._grpc = grpc
        self._http = http

    def begin(self, exchange: Exchange) -> Receiver | None:
        """Hand the exchange to the application that it is for."""
        head = exchange.head
        if type(head.route) is Plan or is_grpc(head):
            return self._grpc.begin(exchange)
        return self._http.begin(exchange)


def door_failure(head: RequestHead | None, status: int, text: str) -> HttpReply:
    """What the door answers by itself, in the form of whoever asked; see ``Door``."""
    if head is not None and is_grpc(head):
        if status == 431:
            code = GrpcCode.RESOURCE_EXHAUSTED
            return HttpReply(
                status, (*grpc.HEAD, *grpc.trailers(code, "the metadata is too large"))
            )
        return HttpReply(200, (*grpc.HEAD, *grpc.trailers(GRPC_OF_HTTP[status], text)))
    return failure(status, text)


def is_grpc(head: RequestHead) -> bool:
    """Whether the request is a gRPC call; ``application/grpc-web`` is another protocol."""
    kind = head.fields.get(b"content-type")
    return (
        kind is not None
        and kind.startswith(_GRPC)
        and (kind == _GRPC or kind[len(_GRPC) : len(_GRPC) + 1] in b"+; ")
        and head.version == HTTP_2
    )
