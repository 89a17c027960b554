"""What a door serves: gRPC to those who speak it, HTTP routes to everybody else."""

from __future__ import annotations

from penstock.api.grpc_service import GrpcService, Plan
from penstock.door.exchange import Application, Exchange, Receiver
from penstock.protocols.heads import HTTP_2, RequestHead

_GRPC = b"application/grpc"


class Frontend:
    """Both applications behind one door, so that either port speaks everything."""

    def __init__(self, grpc: GrpcService, http: Application) -> None:
        self._grpc = grpc
        self._http = http

    def begin(self, exchange: Exchange) -> Receiver | None:
        """Hand the exchange to the application that it is for."""
        head = exchange.head
        if type(head.note) is Plan or (head.version == HTTP_2 and is_grpc(head)):
            # Of an Http2Exchange, as nothing else brings gRPC.
            return self._grpc.begin(exchange)  # type: ignore[arg-type]
        return self._http.begin(exchange)


def is_grpc(head: RequestHead) -> bool:
    """Whether the request is a gRPC call; ``application/grpc-web`` is another protocol."""
    kind = head.fields.get(b"content-type")
    return kind is not None and (
        kind == _GRPC or (kind.startswith(_GRPC) and kind[len(_GRPC) : len(_GRPC) + 1] in b"+; ")
    )
