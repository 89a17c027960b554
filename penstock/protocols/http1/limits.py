"""Limits of a client's requests."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Http1Limits:
    """Limits of one connection. Beyond them, a request is refused and the connection closed.

    They are configuration keys of the same names (``docs/configuration.md``, ``door``). The size of
    a line excludes its line end; the size of all headers includes line ends and the empty line.

    Attributes:
        max_trailer_bytes: bytes of the trailers of a chunked body.
        max_chunks: chunks of one body, without the last, empty one.
        max_kept_bytes: bytes of buffered further requests above which reading pauses; one read may
            exceed it.
        smallest: a head of at most so many bytes exceeds no limit of bytes.
    """

    max_request_line: int = 8 << 10
    max_header_bytes: int = 16 << 10
    max_header_fields: int = 100
    max_header_field: int = 8 << 10
    max_trailer_bytes: int = 8 << 10
    max_chunks: int = 65_536
    max_kept_bytes: int = 64 << 10
    smallest: int = field(init=False)

    def __post_init__(self) -> None:
        smallest = min(self.max_request_line, self.max_header_bytes, self.max_header_field)
        object.__setattr__(self, "smallest", smallest)


class BrokenRule(Exception):
    """The client broke the protocol or a limit; ends the connection.

    Attributes:
        status: the status of the answer.
        text: the reason; may be sent to the client.
        abuse: the kind of abuse, if the status does not determine it.
    """

    def __init__(self, status: int, text: str, abuse: str = "") -> None:
        self.status = status
        self.text = text
        self.abuse = abuse
        super().__init__(f"HTTP {status}: {text}")
