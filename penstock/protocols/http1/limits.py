"""Limits of what a client may send."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Http1Limits:
    """Bounds of one connection. What is beyond them is refused and the connection closed.

    Keys of the configuration have the same names (``docs/configuration.md``, ``door``). The bytes
    of a line are without its end, those of all headers with the ends and the empty line.

    Attributes:
        max_trailer_bytes: of the fields behind a chunked body.
        max_chunks: in one body, the last empty one not counted.
        max_kept_bytes: of requests that wait for their turn; with more than these the connection
            asks for a pause in reading. One read may go beyond it.
        smallest: bytes of a head that cannot be over any limit of bytes.
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
    """The client broke a rule of the protocol or a limit; ends the connection.

    Attributes:
        status: the answer's.
        text: may be told to the client.
        abuse: what there was too much of, where that is why and the status does not say it.
    """

    def __init__(self, status: int, text: str, abuse: str = "") -> None:
        self.status = status
        self.text = text
        self.abuse = abuse
        super().__init__(f"HTTP {status}: {text}")
