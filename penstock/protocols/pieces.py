"""Formats of an answer in pieces over HTTP: events, lines, a JSON list, and bytes as they are.

An answer that is cut off never looks complete: the last chunk of HTTP/1.1, or END_STREAM of HTTP/2,
is missing, and so is the ``]`` of a list.

Source: the HTML standard, 9.2 (server-sent events), the NDJSON specification, RFC 8259.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.protocols import media
from penstock.protocols.heads import Headers

EVENTS: Final = "text/event-stream"
LINES: Final = "application/x-ndjson"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How pieces are written.

    Attributes:
        kind: the media type of the answer.
        begin, between, end: before the first piece, between two pieces, and after the last one.
        before, after: around each piece.
        before_error: before an error that ends the answer after its first piece; None if such an
            error cannot be told from a piece.
        filler: what may be sent between pieces after the head, and has no meaning; empty if there
            is no such thing.
        idle: the same, also without any piece; sent where nothing else has been sent for a while.
    """

    kind: str
    begin: bytes = b""
    between: bytes = b""
    end: bytes = b""
    before: bytes = b""
    after: bytes = b""
    before_error: bytes | None = None
    filler: bytes = b""
    idle: bytes = b""

    @property
    def headers(self) -> Headers:
        """The header fields of the answer: proxies neither keep nor hold back the pieces."""
        return (
            (b"content-type", self.kind.encode()),
            (b"cache-control", b"no-store, no-transform"),
            (b"x-accel-buffering", b"no"),
            (b"x-content-type-options", b"nosniff"),
        )

    def piece(self, body: bytes, *, first: bool) -> bytes:
        """A piece, which is JSON without line breaks, or bytes."""
        lead = self.begin if first else self.between
        return b"%b%b%b%b" % (lead, self.before, body, self.after)

    def pieces(self, bodies: Sequence[bytes], *, first: bool) -> bytes:
        """The same for one or more pieces."""
        between = self.after + self.between + self.before
        return self.piece(between.join(bodies), first=first)

    def last(self, *, empty: bool) -> bytes:
        """The end of an answer with or without pieces."""
        return self.begin + self.end if empty else self.end

    def error(self, body: bytes) -> bytes:
        """An error that ends the answer after its first piece; empty if it cannot be sent."""
        return b"" if self.before_error is None else self.before_error + body + self.after


OF_EVENTS: Final = Format(
    kind=EVENTS,
    before=b"data: ",
    after=b"\n\n",
    before_error=b"event: error\ndata: ",
    filler=b": keep-alive\n\n",
    idle=b": keep-alive\n\n",
)
OF_GENERATE: Final = replace(
    OF_EVENTS, kind=f"{EVENTS}; charset=utf-8", before_error=OF_EVENTS.before
)
"""Events of Triton's ``generate_stream``, whose errors are events like others."""
OF_LINES: Final = Format(kind=LINES, after=b"\n")
OF_LIST: Final = Format(kind=media.JSON, begin=b"[", between=b",", end=b"]", filler=b" ")
_FORMATS: Final = {each.kind: each for each in (OF_EVENTS, OF_LINES, OF_LIST)}


def list_of(bodies: Sequence[bytes]) -> bytes:
    """All pieces of an answer as a JSON list."""
    return b"[%b]" % b",".join(bodies)


def format_for(accept: str | None, files: tuple[str, ...] = ()) -> Format:
    """The format of an answer.

    Args:
        accept: the value of Accept; events are the default.
        files: the types of pieces that are bytes, sent as they are, which is their default.
    """
    kind = media.first_accepted(accept, (*files, *_FORMATS))
    return _FORMATS.get(kind) or Format(kind=kind)
