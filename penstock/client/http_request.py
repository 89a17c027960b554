"""What a caller writes on a command line, as the body and the query of an HTTP request.

Pure but for reading files. Items:

    name=value    a member of a JSON object, as text        name=@FILE   a file as base64
    name:=JSON    a member, as JSON                         name==value  a query parameter
"""

from __future__ import annotations

import base64
import json
import mimetypes
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.errors import Undecodable

_ITEM: Final = re.compile(r"([^=:]+|[^=]+?)(:=|==|=)(.*)", re.DOTALL)


class Items(NamedTuple):
    """The items of a request.

    Attributes:
        members: of the JSON object; None if there are none.
        query: the parameters, in their order.
        is_plain: whether there are only items ``name=value``.
    """

    members: dict[str, Any] | None
    query: list[tuple[str, str]]
    is_plain: bool


class Encoded(NamedTuple):
    """A body and its media type."""

    content: bytes
    media: str


def read_items(texts: Sequence[str]) -> Items:
    """Read items as the module lists them.

    Raises:
        Undecodable: one is none of them, its JSON is invalid, or its file cannot be read.
    """
    members: dict[str, Any] = {}
    query, is_plain = [], True
    for text in texts:
        found = _ITEM.fullmatch(text)
        if found is None:
            raise Undecodable(f"{text!r} is no item: write name=value, name:=json or name==value")
        name, sign, value = found.groups()
        is_plain = is_plain and sign == "="
        if sign == "==":
            query.append((name, value))
        elif sign == "=":
            file = value.startswith("@")
            members[name] = base64.b64encode(_read(value[1:])).decode() if file else value
        else:
            try:
                members[name] = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise Undecodable(f"{text!r}: {value!r} is no JSON: {error}") from error
    return Items(members or None, query, is_plain)


def form(texts: Sequence[str]) -> Encoded:
    """Encode a multipart form of fields ``name=value`` and files ``name=@FILE`` (RFC 7578).

    Raises:
        Undecodable: a text is no field, or a file cannot be read.
    """
    boundary = secrets.token_hex(16)
    parts = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Undecodable(f"{text!r} is no field of a form: write name=value, or name=@file")
        head = f'Content-Disposition: form-data; name="{_quoted(name)}"'
        content = value.encode()
        if value.startswith("@"):
            content = _read(value[1:])
            media = mimetypes.guess_type(value[1:])[0] or "application/octet-stream"
            head += f'; filename="{_quoted(Path(value[1:]).name)}"\r\nContent-Type: {media}'
        parts.append(f"--{boundary}\r\n{head}\r\n\r\n".encode() + content + b"\r\n")
    end = f"--{boundary}--\r\n".encode()
    return Encoded(b"".join(parts) + end, f"multipart/form-data; boundary={boundary}")


def json_text(text: str) -> Encoded:
    """Read JSON, or a file, which is sent as it is with the media type of its name.

    Raises:
        Undecodable: it is no JSON, or the file cannot be read.
    """
    if text.lstrip()[:1] not in ("{", "["):
        media = mimetypes.guess_type(text)[0] or "application/json"
        return Encoded(_read(text), media)
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"the data is no JSON: {error}") from error
    return Encoded(text.encode(), "application/json")


def header(text: str) -> tuple[str, str]:
    """Read a header field ``name: value``.

    Raises:
        Undecodable: it is none.
    """
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not text.isprintable():
        raise Undecodable(f"{text!r} is no header: write 'name: value'")
    return name.strip().lower(), value.strip()


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Undecodable(f"{path} cannot be read: {error.strerror}") from error


def _quoted(text: str) -> str:
    """Escape as browsers do."""
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
