"""The text form of protobuf messages: parses files that people write, and says what is wrong where.

Source: the Protocol Buffers text format specification.
"""

from __future__ import annotations

from typing import Final
from warnings import catch_warnings, simplefilter

from google.protobuf import text_format
from google.protobuf.message import Message

PROBLEMS: Final = (text_format.ParseError, ValueError, RecursionError)
"""What ``parse`` raises: the text is not the message, or invalid, or too deeply nested."""

_MOST_TEXT: Final = 300  # characters; protobuf may repeat the whole line


def parse(text: str, message: Message) -> None:
    """Fill a message.

    Raises:
        ParseError, ValueError, RecursionError: see ``problem_of``.
    """
    with catch_warnings():
        simplefilter("ignore", DeprecationWarning)  # about invalid escapes
        text_format.Parse(text, message)


def problem_of(error: Exception, source: str) -> str:
    """One of ``PROBLEMS`` for the file's author: the file ``source``, the line if known, and what
    is wrong.
    """
    if not isinstance(error, text_format.ParseError):
        return f"{source}: cannot be read: {str(error)[:_MOST_TEXT]}"
    line = error.GetLine()
    where = source if line is None else f"{source}:{line}"
    what = str(error).partition(" : ")[2] or str(error)
    return f"{where}: {what[:_MOST_TEXT]}"
