"""Reads the lines of a head or of trailers while they come in, and finds the first that is wrong.

A verdict falls at the end of a line or where its limit is passed, in the order of the bytes. So it
does not depend on how the bytes were chopped, and nothing is looked at twice. Source: RFC 9112,
sections 2 to 5, without its leave to be lenient.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.protocols.http1.limits import BrokenRule, Http1Limits

TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
# Bytes beyond ASCII mean different things to different readers, so they are left out.
FIELD: Final = rb"%b++:[\t -~]*+\r\n" % TOKEN
REQUEST_LINE: Final = rb"(%b++) ([!-~]++) HTTP/1\.([01])\r\n" % TOKEN

_TOKEN = re.compile(TOKEN)
_FIELD = re.compile(FIELD)
_REQUEST_LINE = re.compile(REQUEST_LINE)
_OTHER_VERSION = re.compile(rb"%b++ [!-~]++ HTTP/[0-9]\.[0-9]\r\n" % TOKEN)
_END = b"\r\n"


class FieldLines:
    """The fields up to the empty line.

    Args:
        most_bytes: of all together, the line ends counted.
        most_field: bytes of one, its line end not counted.
        most_fields: how many.
        status: the answer when there is more.
    """

    __slots__ = (
        "_fields",
        "_line",
        "_most_bytes",
        "_most_field",
        "_most_fields",
        "_seen",
        "_status",
    )

    def __init__(self, most_bytes: int, most_field: int, most_fields: int, status: int) -> None:
        self._most_bytes = most_bytes
        self._most_field = most_field
        self._most_fields = most_fields
        self._status = status
        self._line = 0  # where the open line begins, and how far an end was looked for;
        self._seen = 0  # both counted from the section's begin, because buffers move
        self._fields = 0

    def advance(self, buffer: bytes | bytearray, at: int) -> int | None:
        """Look at what has come since the last call.

        Args:
            buffer: holds the section as far as it is there.
            at: where the section begins in it.

        Returns:
            The section's length with the empty line; None while that has not come.

        Raises:
            BrokenRule: a line is no field, or there are too many bytes.
        """
        while True:
            room = min(self._most_field, self._most_bytes - self._line - len(_END))
            stop = at + self._line + room + len(_END)
            end = buffer.find(b"\n", at + self._seen, max(stop, 0)) + 1
            if not end:
                if len(buffer) >= stop:
                    raise BrokenRule(self._status, "the header fields are too large")
                self._seen = len(buffer) - at
                return None
            line = buffer[at + self._line : end]
            self._line = self._seen = end - at
            if line == _END:
                return self._line
            if _FIELD.fullmatch(line) is None:
                raise BrokenRule(400, "malformed header field")
            self._fields += 1
            if self._fields > self._most_fields:
                raise BrokenRule(self._status, f"more than {self._most_fields} header fields")


class HeadLines:
    """A request's first line and its fields, up to the empty line."""

    __slots__ = ("_fields", "_limits", "_line", "_seen")

    def __init__(self, limits: Http1Limits) -> None:
        self._limits = limits
        self._seen = 0
        self._line = 0  # the length of the first line, once it is whole
        self._fields = FieldLines(
            limits.max_header_bytes, limits.max_header_field, limits.max_header_fields, 431
        )

    def advance(self, buffer: bytes | bytearray, at: int) -> int | None:
        """Look at what has come since the last call; as ``FieldLines.advance``.

        Raises:
            BrokenRule: the first line that is wrong, or the first limit that is passed.
        """
        if not self._line and not self._request_line(buffer, at):
            return None
        length = self._fields.advance(buffer, at + self._line)
        return None if length is None else self._line + length

    def _request_line(self, buffer: bytes | bytearray, at: int) -> bool:
        """Whether the first line is there."""
        # At once, because another protocol's greeting may never have an end of a line.
        if not self._seen and len(buffer) > at and _TOKEN.match(buffer, at) is None:
            raise BrokenRule(400, "malformed request line")
        stop = at + self._limits.max_request_line + len(_END)
        end = buffer.find(b"\n", at + self._seen, stop) + 1
        if not end:
            if len(buffer) >= stop:
                raise BrokenRule(414, "the request line is too long")
            self._seen = len(buffer) - at
            return False
        line = buffer[at:end]
        if _REQUEST_LINE.fullmatch(line) is None:
            if _OTHER_VERSION.fullmatch(line) is not None:
                raise BrokenRule(505, "the version of HTTP must be 1.0 or 1.1")
            raise BrokenRule(400, "malformed request line")
        self._line = end - at
        return True
