"""Heads of HTTP messages and the validation of header fields, for HTTP/1.1 and HTTP/2.

Source: RFC 9110, sections 5.1, 5.3, 5.5, 7.2 and 8.6.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Pairs in order; names in lower case, values without surrounding blanks."""

HTTP_1_0: Final = "1.0"
HTTP_1_1: Final = "1.1"
HTTP_2: Final = "2"
BAIDU_STD: Final = "baidu_std"
"""The ``version`` of a baidu_std call, which has no HTTP head."""

BLANKS: Final = b" \t"
TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
VALUE: Final = rb"[\t -~\x80-\xff]"
"""Allowed bytes of a field's value, including "obs-text": clients send names in UTF-8."""

is_token: Final = re.compile(rb"%b++" % TOKEN).fullmatch
is_lower_token: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]++").fullmatch
is_value: Final = re.compile(rb"%b*+" % VALUE).fullmatch
is_trimmed_value: Final = re.compile(
    rb"(?:[!-~\x80-\xff](?:%b*[!-~\x80-\xff])?)?" % VALUE
).fullmatch
"""A value without surrounding blanks."""
is_host: Final = re.compile(
    rb"(?:\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+)(?::[0-9]{0,5})?"
).fullmatch
"""A valid authority of a request: no user, at most five digits of a port."""

_LONGEST_LENGTH: Final = 18
"""Maximum digits of a content-length."""


def parse_length(digits: bytes) -> int | None:
    """Parse a content-length; None if it is invalid."""
    # isdigit() of bytes accepts ASCII digits only.
    return int(digits) if digits.isdigit() and len(digits) <= _LONGEST_LENGTH else None


def checked(headers: Headers) -> Headers:
    """Validate the fields of an answer.

    Raises:
        ValueError: a name is not a lower-case token, or a value has control characters.
    """
    for name, value in headers:
        if is_lower_token(name) is None or is_value(value) is None:
            raise ValueError(f"the header {name!r} cannot be sent")
    return headers


class RequestHead:
    """The head of a request; immutable.

    Attributes:
        method: as sent, such as ``POST``.
        path: the raw path before the ``?``; ``*`` for the asterisk form.
        query: the raw query after the ``?``; empty if there is none.
        authority: the valid Host or ``:authority``; may be empty with HTTP/1.0.
        version: ``1.0``, ``1.1`` or ``2``; ``baidu_std`` for a call by that protocol.
        headers: the fields without pseudo-headers.
        fields: the same as a dict; of repeated names the last one.
        content_length: the announced content-length; None without one.
    """

    __slots__ = (
        "authority",
        "content_length",
        "fields",
        "headers",
        "method",
        "path",
        "query",
        "version",
    )

    def __init__(
        self,
        method: str,
        target: bytes,
        headers: Headers,
        *,
        version: str,
        authority: bytes,
        content_length: int | None,
    ) -> None:
        self.method = method
        self.path, _, self.query = target.partition(b"?")
        self.version = version
        self.authority = authority
        self.headers = headers
        self.fields = dict(headers)
        self.content_length = content_length

    def __repr__(self) -> str:
        return f"<RequestHead {self.method} {self.path!r} HTTP/{self.version}>"


class ResponseHead:
    """The head of a response.

    Attributes:
        status: 200 to 599; interim responses are dropped.
        headers: the fields without pseudo-headers.
        fields: the same as a dict; of repeated names the last one.
    """

    __slots__ = ("fields", "headers", "status")

    def __init__(self, status: int, headers: Headers) -> None:
        self.status = status
        self.headers = headers
        self.fields = dict(headers)

    def __repr__(self) -> str:
        return f"<ResponseHead {self.status}>"


def joined(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return fields by name; those of one name are a list with commas (RFC 9110, 5.3)."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        found[name] = found[name] + b", " + value if name in found else value
    return found
