"""Decodes multipart forms.

The parser is the package ``python-multipart``. Source: RFC 7578.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from penstock.errors import Undecodable

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MOST_PARTS: Final = 1000
_MOST_HEAD: Final = 4096  # maximum bytes of a part's head: long file names fit


class _Parts:
    """Collects the parts that the parser finds."""

    def __init__(self) -> None:
        self.found: list[tuple[dict[bytes, bytes], bytearray]] = []
        self.ended = False
        self._name = bytearray()
        self._value = bytearray()

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self.begin,
            "on_part_data": self.data,
            "on_header_field": self.field,
            "on_header_value": self.value,
            "on_header_end": self.header,
            "on_end": self.end,
        }

    def begin(self) -> None:
        if len(self.found) >= MOST_PARTS:
            raise Undecodable(f"the form has more than {MOST_PARTS} parts")
        self.found.append(({}, bytearray()))

    def data(self, piece: bytes, start: int, end: int) -> None:
        self.found[-1][1].extend(memoryview(piece)[start:end])

    def field(self, piece: bytes, start: int, end: int) -> None:
        self._name += piece[start:end]

    def value(self, piece: bytes, start: int, end: int) -> None:
        self._value += piece[start:end]
        if len(self._name) + len(self._value) > _MOST_HEAD:
            raise Undecodable("the head of a part of the form is too long")

    def header(self) -> None:
        self.found[-1][0][bytes(self._name).lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def end(self) -> None:
        self.ended = True


def read(body: bytes, kind: str) -> list[tuple[str, str | bytes, str]]:
    """Return the fields of a form in order: name, value, and the part's media type.

    Args:
        body: the whole form.
        kind: the value of Content-Type, with the boundary.

    Returns:
        Texts are ``str``; files, and parts of other media types than text, are ``bytes``. Empty
        file inputs of browsers, which have an empty file name and no content, are left out.

    Raises:
        Undecodable: the body is not a valid form.
    """
    _, options = parse_options_header(kind)
    boundary = options.get(b"boundary")
    if not boundary:
        raise Undecodable("the content-type of a form names its boundary")
    parts = _Parts()
    try:
        parser = MultipartParser(boundary, parts.callbacks())
        parser.write(body)
        parser.finalize()
    except (MultipartParseError, ValueError) as error:
        raise Undecodable(f"the body is no form: {error}") from None
    if not parts.ended:
        raise Undecodable("the form is cut off")
    found = (_field(head, data) for head, data in parts.found)
    return [each for each in found if each is not None]


def _field(head: dict[bytes, bytes], data: bytearray) -> tuple[str, str | bytes, str] | None:
    _, options = parse_options_header(head.get(b"content-disposition", b""))
    try:
        name = options[b"name"].decode()
    except (KeyError, UnicodeDecodeError):
        raise Undecodable("a part of the form has no name") from None
    kind = head.get(b"content-type", b"").decode("latin-1")
    if options.get(b"filename") == b"" and not data:
        return None
    if b"filename" in options or (kind and not kind.startswith(("text/", "application/json"))):
        return name, bytes(data), kind
    try:
        return name, data.decode(), kind
    except UnicodeDecodeError:
        raise Undecodable(f"the field {name!r} of the form is no UTF-8") from None
