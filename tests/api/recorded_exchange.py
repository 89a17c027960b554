"""An exchange without a connection, which records everything."""

from __future__ import annotations

from typing import Any

from penstock.door.budget import ByteBudget
from penstock.door.exchange import Exchange, Peer
from penstock.protocols.heads import HTTP_1_1, HTTP_2, Headers, RequestHead


class RecordedExchange(Exchange):
    """Records everything: whole replies in ``replies``, parts of streamed ones in ``sent``."""

    peer = Peer("127.0.0.1", 1, None)

    def __init__(
        self, head: RequestHead, budget: ByteBudget | None = None, whole: bytes | None = None
    ) -> None:
        super().__init__(head, budget or ByteBudget(1 << 20))
        self.whole = whole
        self.receiver: Any = None
        self.replies: list[tuple[int, Headers, bytes, bool]] = []
        self.sent: list[tuple[str, bytes]] = []
        self.heads: list[Headers] = []
        self.trailers: Headers = ()
        self.waiting = 0
        self.paused = False

    def reply(
        self,
        status: int,
        headers: Headers,
        body: bytes = b"",
        trailers: Headers = (),
        *,
        close: bool = False,
    ) -> None:
        if self.ended:
            return
        headers = (*headers, *self.added)
        self.replies.append((status, headers, body, close))
        self.heads.append(headers)
        self.trailers = trailers

    def start(self, status: int, headers: Headers) -> None:
        self.sent.append(("start", b"%d" % status))
        self.heads.append((*headers, *self.added))

    def send(self, piece: bytes) -> None:
        self.sent.append(("send", piece))

    def finish(self, trailers: Headers = ()) -> None:
        if self.ended:
            return
        self.sent.append(("finish", b""))
        self.trailers = trailers

    def abort(self) -> None:
        self.sent.append(("abort", b""))

    @property
    def unsent(self) -> int:
        return self.waiting

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    @property
    def answered(self) -> bool:
        """Whether any part of a reply was sent."""
        return bool(self.replies or self.sent)

    @property
    def ended(self) -> bool:
        """Whether the reply is complete."""
        return bool(self.replies or ("finish", b"") in self.sent)

    @property
    def body(self) -> bytes:
        """The body of the reply."""
        return b"".join(
            [body for _, _, body, _ in self.replies]
            + [piece for what, piece in self.sent if what == "send"]
        )

    def fields(self) -> dict[bytes, bytes]:
        """The fields of head and trailers."""
        return dict([field for headers in self.heads for field in headers] + [*self.trailers])


def post(
    path: str, *headers: tuple[bytes, bytes], length: int | None = None, method: str = "POST"
) -> RequestHead:
    """The head of a request over HTTP/1.1."""
    return RequestHead(
        method,
        path.encode(),
        headers,
        version=HTTP_1_1,
        authority=b"localhost",
        content_length=length,
    )


def grpc_head(path: str, *headers: tuple[bytes, bytes]) -> RequestHead:
    """The head of a gRPC call."""
    usual = ((b"content-type", b"application/grpc"), (b"te", b"trailers"))
    return RequestHead(
        "POST",
        path.encode(),
        (*usual, *headers),
        version=HTTP_2,
        authority=b"localhost",
        content_length=None,
    )
