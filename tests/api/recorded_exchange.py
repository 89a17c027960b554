"""An exchange without a connection: what an application sends is kept for the test."""

from __future__ import annotations

from penstock.door.budget import ByteBudget
from penstock.door.exchange import Exchange
from penstock.protocols.heads import HTTP_1_1, HTTP_2, Headers, RequestHead


class RecordedExchange(Exchange):
    """Keeps everything: whole replies in ``replies``, blocks and pieces in ``sent``."""

    def __init__(
        self, head: RequestHead, budget: ByteBudget | None = None, whole: bytes | None = None
    ) -> None:
        super().__init__(head, budget or ByteBudget(1 << 20))
        self.whole = whole
        self.replies: list[tuple[int, Headers, bytes, bool]] = []
        self.sent: list[tuple[str, bytes]] = []
        self.waiting = 0
        self.paused = False

    def reply(
        self, status: int, headers: Headers, body: bytes = b"", *, close: bool = False
    ) -> None:
        self.replies.append((status, headers, body, close))

    def start(self, status: int, headers: Headers) -> None:
        self.sent.append(("start", b"%d" % status))

    def send(self, piece: bytes) -> None:
        self.sent.append(("send", piece))

    def finish(self, trailers: Headers = ()) -> None:
        self.sent.append(("finish", b""))

    def abort(self) -> None:
        self.sent.append(("abort", b""))

    @property
    def unsent(self) -> int:
        return self.waiting

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def reply_blocks(self, head: bytes, body: bytes, trailers: bytes | None) -> None:
        self.sent += [("head", head), ("body", body), ("trailers", trailers or b"")]

    def start_block(self, block: bytes) -> None:
        self.sent.append(("head", block))

    def finish_block(self, block: bytes) -> None:
        self.sent.append(("trailers", block))


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
