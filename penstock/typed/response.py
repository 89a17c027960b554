"""Response and File: answers with a status, header fields and a media type of their own.

    def make(item: Item) -> Response[Item]:
        return Response(item, status=201, headers={"location": "/items/7"})

The status must be declared with the route, so that its description is complete.
Source: RFC 9110 (fields, validators), RFC 6265 (cookies), RFC 6266 and 8187 (file names).
"""

from __future__ import annotations

import mimetypes
import re
import types
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from os import PathLike, stat_result
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar, Union, get_args, get_origin
from urllib.parse import quote

from penstock.protocols.heads import Headers, is_lower_token, is_trimmed_value
from penstock.typed.annotations import unnamed

T = TypeVar("T")

STATUSES: Final = range(200, 600)
"""The statuses that an answer can have."""

BODILESS: Final = frozenset((204, 205, 304))
"""The statuses of answers without a body."""

_OURS: Final = frozenset((
    "connection", "content-length", "date", "keep-alive", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
))  # fmt: skip
"""Fields that the connection sets."""

_COOKIE_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
_COOKIE_VALUE: Final = re.compile(r"[!#-+\--:<-\[\]-~]*").fullmatch
_COOKIE_PART: Final = re.compile(r"[ -:<-~]*").fullmatch
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9.+-]+/[A-Za-z0-9.+-]+(?:\s*;[ -~]*)?").fullmatch
_ETAG: Final = re.compile(r"[!#-~]*").fullmatch


class Response(Generic[T]):
    """An answer with its value, status and header fields.

    Args:
        value: of the type ``T``; None for an answer without a body, if the status allows that.
        status: of those that the route declares; None for its usual one.
        headers: names and values; a dict, or pairs if a name occurs several times.
        media_type: the value is bytes, or a text, which are sent as they are, with this media type;
            without one the value is sent as JSON or msgpack.
        etag: identifies this version of the answer, without quotes: a GET whose ``If-None-Match``
            has it gets 304 without a body.
        last_modified: the same by time, for ``If-Modified-Since``; with a time zone.

    Attributes:
        value, status, media_type: as given.
        headers: pairs, with names in lower case.

    Raises:
        TypeError: a field is no text.
        ValueError: a field cannot be sent: it has a line break, or belongs to the connection.
    """

    def __init__(
        self,
        value: T = None,  # type: ignore[assignment]  # of Response[None]
        *,
        status: int | None = None,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        media_type: str | None = None,
        etag: str | None = None,
        last_modified: datetime | None = None,
    ) -> None:
        self.value = value
        self.status = status
        self.media_type = media_type
        self.headers: list[tuple[str, str]] = []
        if status is not None and (type(status) is not int or status not in STATUSES):
            raise ValueError(f"a status is 200 to 599, not {status!r}")
        if media_type is not None and not _MEDIA_TYPE(media_type):
            raise ValueError(f"a media type is such as 'text/csv', not {media_type!r}")
        for name, text in headers.items() if isinstance(headers, Mapping) else headers:
            self.add_header(name, text)
        if etag is not None:
            if not _ETAG(etag):
                raise ValueError(f"an etag has visible ASCII characters, without quotes: {etag!r}")
            self.headers.append(("etag", f'"{etag}"'))
        if last_modified is not None:
            if last_modified.tzinfo is None:
                raise ValueError("last_modified has no time zone: give tzinfo=UTC")
            text = format_datetime(last_modified.astimezone(UTC), usegmt=True)
            self.headers.append(("last-modified", text))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.status or ''} {self.value!r}>"

    def add_header(self, name: str, value: str) -> None:
        """Add a header field.

        Raises:
            TypeError, ValueError: see the class.
        """
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TypeError(f"a header's name and value are texts, not {name!r}: {value!r}")
        lower = name.lower()
        try:
            good = is_lower_token(lower.encode()) and is_trimmed_value(value.encode("latin-1"))
        except UnicodeEncodeError:
            good = None
        if not good:
            raise ValueError(f"the header {name!r} cannot be sent: {value[:100]!r}")
        if lower in _OURS:
            raise ValueError(f"the header {name!r} belongs to the connection: it is set for you")
        if lower == "content-type":
            raise ValueError("the header 'content-type' is set by media_type=...")
        self.headers.append((lower, value))

    def set_cookie(
        self,
        name: str,
        value: str,
        *,
        max_age: int | None = None,
        path: str = "/",
        domain: str | None = None,
        secure: bool = False,
        http_only: bool = True,
        same_site: Literal["lax", "strict", "none"] = "lax",
    ) -> None:
        """Set a cookie at the caller.

        Args:
            name: a token.
            value: visible ASCII characters, without quotes, commas, semicolons and backslashes:
                encode others, such as by ``urllib.parse.quote``.
            max_age: seconds; 0 deletes the cookie; None: until the browser is closed.
            path: the paths below which it is sent.
            domain: the domain to which, with those below it, it is sent; None: the service's host.
            secure: over TLS only.
            http_only: scripts of pages do not see it.
            same_site: ``none`` needs ``secure``.

        Raises:
            ValueError: a part cannot be sent.
        """
        if not (_COOKIE_NAME(name) and _COOKIE_VALUE(value)):
            raise ValueError(f"the cookie {name!r} cannot be sent: {value[:100]!r}")
        if not (_COOKIE_PART(path) and _COOKIE_PART(domain or "")):
            raise ValueError(f"the path or the domain of the cookie {name!r} cannot be sent")
        if same_site not in ("lax", "strict", "none") or (same_site == "none" and not secure):
            raise ValueError("same_site is 'lax', 'strict', or 'none' with secure=True")
        parts = [f"{name}={value}", f"Path={path}", f"SameSite={same_site.capitalize()}"]
        parts += [] if max_age is None else [f"Max-Age={int(max_age)}"]
        parts += [f"Domain={domain}"] if domain else []
        parts += ["Secure"] if secure else []
        parts += ["HttpOnly"] if http_only else []
        self.headers.append(("set-cookie", "; ".join(parts)))

    @property
    def fields(self) -> Headers:
        """The header fields as they are sent."""
        return tuple((name.encode(), text.encode("latin-1")) for name, text in self.headers)

    def content(self) -> T:
        """The value. May block: called in the route's worker."""
        return self.value


class File(Response[bytes]):
    """An answer that is a file, read when it is sent, as a whole.

    It has ``ETag`` and ``Last-Modified``, by the file's size and time of change: a GET of an
    unchanged file gets 304. A GET may also ask for a part of it (``Range``).

    Args:
        path: of the file.
        media_type: by default that of the name's ending.
        name: the name under which a browser saves it, instead of showing it.
        status: see ``Response``.
        headers: see ``Response``.

    Raises:
        OSError: there is no such file.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        media_type: str | None = None,
        name: str | None = None,
        status: int | None = None,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    ) -> None:
        self._path = Path(path)
        kind = media_type or mimetypes.guess_type(self._path.name)[0] or "application/octet-stream"
        seen = self._path.stat()
        super().__init__(
            b"",
            status=status,
            headers=headers,
            media_type=kind,
            etag=_etag(seen),
            last_modified=datetime.fromtimestamp(int(seen.st_mtime), UTC),
        )
        self.headers.append(("accept-ranges", "bytes"))
        if name is not None:
            self.headers.append(("content-disposition", _attachment(name)))

    def content(self) -> bytes:
        """The bytes of the file."""
        return self._path.read_bytes()


def _etag(seen: stat_result) -> str:
    return f"{seen.st_mtime_ns:x}-{seen.st_size:x}"


def _attachment(name: str) -> str:
    """``Content-Disposition`` with a file's name, which may have any characters."""
    plain = re.sub(r'[^ !#-\[\]-~]|["\\]', "_", name)
    text = f'attachment; filename="{plain}"'
    return text if plain == name else f"{text}; filename*=UTF-8''{quote(name, safe='')}"


def redirect(url: str, *, status: int = 307) -> Response[None]:
    """Send the caller to another URL.

    Args:
        url: absolute, or relative to the route's; with characters outside ASCII percent-encoded
            here.
        status: one that the route declares: 303 for a GET of the other URL, 307 for the same
            request again, 302, or 301 and 308 for good.

    Raises:
        ValueError: it is no URL, or no status of a redirection.
    """
    if status not in (301, 302, 303, 307, 308):
        raise ValueError(f"the status of a redirection is 301, 302, 303, 307 or 308, not {status}")
    if not url or re.search(r"[\x00-\x1f\x7f\\]", url):
        raise ValueError(f"this is no URL to redirect to: {url[:100]!r}")
    location = quote(url, safe="%/:?#[]@!$&'()*+,;=~")
    return Response(None, status=status, headers={"location": location})


def answer_type(annotation: Any) -> tuple[Any, bool]:
    """The type of the values behind ``Response[T]``, also in a union, and whether there is one."""
    kind = unnamed(annotation)
    origin = get_origin(kind)
    if kind is Response:
        return Any, True
    if origin is Response:
        return get_args(kind)[0], True
    if kind is File:
        return bytes, True
    if origin in (Union, types.UnionType):
        parts = [answer_type(each) for each in get_args(kind)]
        if any(found for _, found in parts):
            return Union[tuple(each for each, _ in parts)], True  # noqa: UP007 - of a tuple
    return annotation, False
