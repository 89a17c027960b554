"""The heads of HTTP messages, the same for HTTP/1.1 and HTTP/2.

A head is made once and never changed. Connections of one door share equal heads (the same bytes
give the same object), so whoever answers requests may keep what it worked out from a head in
``route``: a handler, a timeout, the application itself.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Pairs in their order; names in lower case, values without blanks around them."""

HTTP_1_0: Final = "1.0"
HTTP_1_1: Final = "1.1"
HTTP_2: Final = "2"


class RequestHead:
    """What a request says before its body.

    Attributes:
        method: as sent, such as ``POST``.
        path: raw, before the ``?``; ``*`` for the asterisk form.
        query: raw, behind the ``?``; empty when there is none.
        authority: the one valid Host or ``:authority``; empty when HTTP/1.0 gave none.
        version: ``1.0``, ``1.1`` or ``2``.
        headers: without pseudo-headers.
        fields: the same as a dict; of repeated names the last one.
        content_length: as announced; None when it is not.
        route: cached by the application; None at first. Only what follows from the head alone.
    """

    __slots__ = (
        "authority",
        "content_length",
        "fields",
        "headers",
        "method",
        "path",
        "query",
        "route",
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
        self.route: Any = None

    def __repr__(self) -> str:
        return f"<RequestHead {self.method} {self.path!r} HTTP/{self.version}>"


class ResponseHead:
    """What a response says before its body.

    Attributes:
        status: 200 to 599; interim responses are not shown.
        headers: without pseudo-headers.
        fields: the same as a dict; of repeated names the last one.
    """

    __slots__ = ("fields", "headers", "status")

    def __init__(self, status: int, headers: Headers) -> None:
        self.status = status
        self.headers = headers
        self.fields = dict(headers)

    def __repr__(self) -> str:
        return f"<ResponseHead {self.status}>"
