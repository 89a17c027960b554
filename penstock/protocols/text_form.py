"""The text form of protobuf messages: parses files that people write, and says what is wrong where.

Source: the Protocol Buffers text format specification.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from warnings import catch_warnings, simplefilter

from google.protobuf import text_format
from google.protobuf.message import Message

PROBLEMS: Final = (text_format.ParseError, ValueError, RecursionError)
"""What ``parse`` raises: the text is not the message, or invalid, or too deeply nested."""

_WORD: Final = re.compile(
    r"""\n|\#[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[\w.+-]+|[{}<>\[\]:]"""
)

_MOST_TEXT: Final = 300  # characters; protobuf may repeat the whole line


def parse(text: str, message: Message) -> None:
    """Fill a message.

    Raises:
        ParseError, ValueError, RecursionError: see ``problem_of``.
    """
    with catch_warnings():
        simplefilter("ignore", DeprecationWarning)  # about invalid escapes
        text_format.Parse(text, message)


@dataclass(slots=True)
class Place:
    """Where a message or a field is, and the fields in it.

    Attributes:
        line: from 1.
        fields: their places by name, in their order.
    """

    line: int
    fields: dict[str, list[Place]] = field(default_factory=dict)

    def line_of(self, name: str) -> int | None:
        """The line of a field, in this message or one in it; None if it is not there."""
        if found := self.fields.get(name):
            return found[-1].line
        inner = (each for places in self.fields.values() for each in places)
        return next((line for each in inner if (line := each.line_of(name))), None)


def places_of(text: str) -> Place:
    """Where the fields are in a text that ``parse`` has accepted."""
    line = 1
    message = found = Place(line)
    name = ""
    is_value = is_list = False
    around: list[tuple[Place, str, bool]] = []
    for word in _WORD.findall(text):
        if word == "\n":
            line += 1
        elif word.startswith("#"):
            continue
        elif word == ":":
            is_value = True
        elif word == "[":
            is_list = True
            message.fields[name].pop()  # each of the values has a place of its own
        elif word == "]":
            is_list = is_value = False
        elif word in ("{", "<"):
            if is_list:
                message.fields[name].append(Place(line))
            around.append((message, name, is_list))
            message, is_list, is_value = message.fields[name][-1], False, False
        elif word in ("}", ">"):
            message, name, is_list = around.pop()
        elif is_list:
            message.fields[name].append(Place(line))
        elif is_value:
            is_value = False
        elif word.isidentifier():
            name = word
            message.fields.setdefault(name, []).append(Place(line))
    return found


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
