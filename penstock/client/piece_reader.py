"""The pieces of an HTTP answer: server-sent events, lines of JSON, or bytes. Pure.

An answer that was cut off is an error, never an end: its last chunk is missing, or it ends within
an event or a line. Comments in events show that the connection is alive and are dropped. The data
``[DONE]``, with which OpenAI's API ends its streams, is no piece; after it nothing can be missing.
OpenAI's and Triton's errors are events of the usual type, ``{"error": ...}``, which might be a
piece as well: one that is followed by the mark, or by an answer that was cut off, is the error. So
is one that ends a complete answer, as from Triton, if it has a text or an object and nothing else.

Source: the HTML standard, 9.2.6 (interpreting an event stream), the NDJSON specification.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from penstock.client.errors import CallFailed
from penstock.client.http_answer import AnswerHead, AnswerReader, BrokenAnswer
from penstock.protocols import media
from penstock.protocols.grpc import code_of_http
from penstock.protocols.pieces import EVENTS, LINES
from penstock.protocols.status import GrpcCode

Piece: TypeAlias = str | bytes
"""The data of an event, or a line, as text; or bytes as they arrived."""

MAX_PIECE_BYTES: Final = 256 << 20
"""Most bytes of a piece: four times the default limit of a request."""

_LINES: Final = frozenset({LINES, "application/jsonl", "application/jsonlines"})
_DONE: Final = "[DONE]"
_SUSPECT: Final = '{"error":'
_MOST_ERROR: Final = 64 << 10
_MOST_TEXT: Final = 1000


class Event(NamedTuple):
    """A server-sent event: its type, and its data."""

    kind: str
    data: str


class _Lines:
    """Splits bytes at line feeds, also those of long lines that arrive in many parts."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.held = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete, without their ends."""
        first, *others = data.split(b"\n")
        if others:
            lines = [b"".join((*self._parts, first)), *others[:-1]]
            self._parts, self.held, first = [], 0, others[-1]
        else:
            lines = []
        if first:
            self._parts.append(first)
            self.held += len(first)
        return lines

    def rest(self) -> bytes:
        """The line that has no end yet."""
        return b"".join(self._parts)


class EventReader:
    """Decodes server-sent events.

    Lines may end with LF, CR LF or CR. Fields other than ``event`` and ``data`` have no effect.
    """

    def __init__(self) -> None:
        self._lines = _Lines()
        self._data: list[bytes] = []
        self._kind = b""
        self._is_first = True
        self._after_cr = False
        self._size = 0

    @property
    def held(self) -> int:
        """Bytes of an event that is not complete."""
        return self._lines.held + self._size

    def feed(self, data: bytes) -> list[Event]:
        """Process received bytes; return the events that they complete."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        found = []
        for line in self._lines.feed(data):
            if self._is_first:
                self._is_first = False
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line:
                self._field(line)
                continue
            if self._data:
                text = b"\n".join(self._data).decode("utf-8", "replace")
                found.append(Event(self._kind.decode("utf-8", "replace") or "message", text))
                self._data, self._size = [], 0
            self._kind = b""
        return found

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value)
        elif name == b"event":
            self._kind = value.removeprefix(b" ")


class _Reader(Protocol):
    """From bytes to pieces; ``held``: bytes of a piece that is not complete."""

    @property
    def held(self) -> int: ...

    def feed(self, data: bytes) -> Sequence[Piece | Event]:
        """Process received bytes."""

    def finish(self, *, whole: bool) -> Sequence[Piece]:
        """The pieces at the end of the answer; ``whole``: the end cannot be that of a truncated
        one.
        """


class _OfEvents(EventReader):
    def finish(self, *, whole: bool) -> Sequence[Piece]:
        return ()


class _OfLines:
    def __init__(self) -> None:
        self._lines = _Lines()

    @property
    def held(self) -> int:
        return self._lines.held

    def feed(self, data: bytes) -> Sequence[Piece]:
        return [text for line in self._lines.feed(data) if (text := self._text(line))]

    def finish(self, *, whole: bool) -> Sequence[Piece]:
        if whole and (text := self._text(self._lines.rest())):  # writers may omit the last line end
            self._lines = _Lines()
            return [text]
        return ()

    @staticmethod
    def _text(line: bytes) -> str:
        return line.decode("utf-8", "replace").strip()


class _OfBytes:
    held = 0

    def feed(self, data: bytes) -> Sequence[Piece]:
        return (data,)

    def finish(self, *, whole: bool) -> Sequence[Piece]:
        return ()


class PieceReader:
    """Decodes one HTTP answer to its pieces.

    Args:
        url: for the texts of errors; empty to leave it out.

    Attributes:
        pieces: those that have arrived, until they are taken.
        end: None while further pieces may come; True after the last one, if the answer is complete;
            else why there are no further ones. The pieces before it are right.
    """

    def __init__(self, url: str) -> None:
        self.pieces: deque[Piece] = deque()
        self.end: CallFailed | Literal[True] | None = None
        self._url = url
        self._answer = AnswerReader()
        self._reader: _Reader | None = None
        self._error: list[bytes] | None = None  # the body of an error
        self._count = 0
        self._done = False
        self._suspect: str | None = None  # a piece that may be an error: what follows tells

    @property
    def status(self) -> int | None:
        """The answer's HTTP status; None before its head."""
        head = self._answer.head
        return None if head is None else head.status

    @property
    def reusable(self) -> bool:
        """Whether the connection stays open for another request after a complete answer."""
        head = self._answer.head
        return head is not None and head.reusable and not self._answer.ends_with_connection

    def receive(self, data: bytes) -> None:
        """Process received bytes; empty at the end of the connection."""
        if self.end is not None:
            return
        had_head = self._answer.head is not None
        try:
            parts = self._answer.receive(data) if data else []
            if not data:
                self._answer.eof()
        except BrokenAnswer as broken:
            if self._error is not None:
                self._fail_with_status()
            elif self._done:
                self.end = True
            elif self._answer.head is None and not data:
                self._fail(GrpcCode.UNAVAILABLE, "the connection was lost before the answer")
            elif data:
                self._fail(GrpcCode.UNKNOWN, f"no HTTP answer: {broken}")
            else:
                self.cut_off()
            return
        head = self._answer.head
        if head is None:
            return
        if not had_head:
            self._begin(head)
        if self._error is not None:
            self._error += parts
            if self._answer.ended or sum(map(len, self._error)) > _MOST_ERROR:
                self._fail_with_status()
        elif self._reader is not None:
            self.add(parts)
            if self._answer.ended:
                self.finish(whole=not self._answer.ends_with_connection)

    def _begin(self, head: AnswerHead) -> None:
        kind = media.essence(head.field("content-type"))
        packed = head.field("content-encoding")
        if not 200 <= head.status < 300:
            self._error = []
        elif packed not in ("", "identity"):
            self._fail(GrpcCode.UNKNOWN, f"the answer is packed with {packed[:100]}")
        elif kind == media.JSON or head.status == 204:
            text = f"the answer does not come in pieces, it is {kind or 'empty'}"
            self._fail(GrpcCode.UNIMPLEMENTED, text)
        else:
            self.begin(kind)

    def begin(self, kind: str) -> None:
        """Process the head of an answer that something else receives; ``kind``: its media type."""
        self._reader = (
            _OfEvents() if kind == EVENTS else _OfLines() if kind in _LINES else _OfBytes()
        )

    def add(self, parts: Sequence[bytes]) -> None:
        """Process parts of the body."""
        reader = self._reader
        assert reader is not None, "it has begun"
        for part in parts:
            self._take(reader.feed(part))
            if self.end is None and reader.held > MAX_PIECE_BYTES:
                self._fail(GrpcCode.RESOURCE_EXHAUSTED, f"{self._after()}a piece is too large")
            if self.end is not None:
                return

    def finish(self, *, whole: bool = True) -> None:
        """Process the end of the body; ``whole``: it cannot be that of a truncated one."""
        reader = self._reader
        assert reader is not None, "it has begun"
        if self.end is not None:
            return
        self._take(reader.finish(whole=whole))
        if reader.held or (self._suspect is not None and _is_error(self._suspect)):
            self.cut_off()
        else:
            self._pass_on()
            self.end = True

    def _take(self, found: Sequence[Piece | Event]) -> None:
        for piece in found:
            if isinstance(piece, Event):
                if piece.kind == "error":
                    self._fail(GrpcCode.UNKNOWN, f"{self._after()}{_message(piece.data)}")
                    return
                piece = piece.data
            if piece == _DONE:
                if self._suspect is not None:
                    self.cut_off()
                    return
                self._done = True
                continue
            self._pass_on()
            if isinstance(piece, str) and piece.startswith(_SUSPECT):
                self._suspect = piece
            else:
                self._count += 1
                self.pieces.append(piece)

    def _pass_on(self) -> None:
        """What might have been an error was a piece."""
        if self._suspect is not None:
            self._count += 1
            self.pieces.append(self._suspect)
            self._suspect = None

    def cut_off(self) -> None:
        """Process the end of an answer that lacks something."""
        if self._suspect is not None:
            self._fail(GrpcCode.UNKNOWN, f"{self._after()}{_message(self._suspect)}")
        else:
            self._fail(GrpcCode.UNAVAILABLE, f"{self._after()}the answer was cut off")

    def _after(self) -> str:
        return f"after {self._count} piece{'s' * (self._count != 1)}: "

    def _fail_with_status(self) -> None:
        head = self._answer.head
        assert head is not None, "its body has begun"
        body = b"".join(self._error or ()).decode("utf-8", "replace").strip()
        text = f"HTTP {head.status}: {_message(body)}".removesuffix(": ")
        self._fail(code_of_http(head.status), text)

    def _fail(self, code: GrpcCode, text: str) -> None:
        retryable = code is GrpcCode.UNAVAILABLE and not self._count
        place = f"{self._url}: " if self._url else ""
        self.end = CallFailed(code, place + text, retryable=retryable)


def _is_error(piece: str) -> bool:
    """Whether the last piece of a complete answer is an error."""
    try:
        found = json.loads(piece)
    except (ValueError, RecursionError):
        return False
    return len(found) == 1 and isinstance(found["error"], str | dict)


def _message(body: str) -> str:
    """The text of an error: of our form, OpenAI's, Triton's, or whatever it is."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return body[:_MOST_TEXT]
    if not isinstance(found, dict):
        return body[:_MOST_TEXT]
    inner = found.get("error")
    if isinstance(inner, dict):
        found = {**inner, "error": inner.get("code")}
    message = found.get("message", found.get("error"))
    if not isinstance(message, str):
        return body[:_MOST_TEXT]
    more = [str(found["error"])] if "message" in found and found.get("error") else []
    more += [f"id {found['id']}"] if "id" in found else []
    return (f"{message} ({', '.join(more)})" if more else message)[:_MOST_TEXT]


def value_of(piece: Piece) -> Any:
    """The value of a piece: of a text its JSON; bytes as they are.

    Raises:
        CallFailed: the text is no JSON.
    """
    if isinstance(piece, bytes):
        return piece
    try:
        return json.loads(piece)
    except (ValueError, RecursionError):
        text = f"a piece is no JSON: {piece[:100]!r}"
        raise CallFailed(GrpcCode.UNKNOWN, text) from None
