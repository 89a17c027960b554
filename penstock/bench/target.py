"""What is asked: a URL, and the requests that are sent to it in turn.

The URL names the protocol. ``http://HOST:PORT/PATH`` is a POST of JSON to any route. With
``/v2/models/NAME`` as its path it is the Open Inference Protocol, whose inputs can be made up from
what the model says of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orjson

from penstock.client.calls import feed_of
from penstock.errors import PenstockError

Field = tuple[str, str]
_JSON: Field = ("content-type", "application/json")


class BadTarget(PenstockError):
    """There is nothing to send, or nobody who answers."""


class Body(NamedTuple):
    """One request's content, and the fields of its head that belong to it."""

    content: bytes
    fields: tuple[Field, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go, and which.

    Attributes:
        url: as it was given.
        tls: whether the connection is encrypted; ``ca_file`` has certificates to trust.
        method: of HTTP.
        path: with the query.
        headers: of every request.
        bodies: sent in turn.
    """

    url: str
    host: str
    port: int
    tls: bool = False
    ca_file: str | None = None
    method: str = "POST"
    path: str = "/"
    headers: tuple[Field, ...] = ()
    bodies: tuple[Body, ...] = (Body(b""),)

    @property
    def authority(self) -> str:
        """The host and the port, as URLs write them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def status_url(self) -> str:
        """The server, as its status is asked for."""
        return f"{'https' if self.tls else 'http'}://{self.authority}"


def target_of(
    url: str,
    *,
    data: str | None = None,
    pairs: Sequence[str] = (),
    headers: Sequence[str] = (),
    ca_file: str | None = None,
) -> Target:
    """Read what is to be asked.

    Args:
        url: where; see the module.
        data: JSON, or the path of a file of JSON; the elements of a list are sent in turn. Without
            it, and without ``pairs``, the method is GET.
        pairs: a request of the pipeline protocol, as ``penstock client`` takes it.
        headers: ``name: value`` each.
        ca_file: certificates to trust instead of the well-known authorities.

    Raises:
        BadTarget: something of it cannot be read.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadTarget(f"{url!r} is no URL: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadTarget(f"{url!r} is no target: write http://HOST:PORT/PATH")
    values = requests_of(data, pairs)
    bodies = tuple(Body(orjson.dumps(value), (_JSON,)) for value in values)
    tls = parts.scheme == "https"
    path = parts.path or "/"
    return Target(
        url=url,
        host=parts.hostname,
        port=port or (443 if tls else 80),
        tls=tls,
        ca_file=ca_file,
        method="POST" if bodies else "GET",
        path=f"{path}?{parts.query}" if parts.query else path,
        headers=tuple(_header(text) for text in headers),
        bodies=bodies or (Body(b""),),
    )


def requests_of(data: str | None, pairs: Sequence[str]) -> list[Any]:
    """The values of the requests; none where nothing is given.

    Raises:
        BadTarget: the data is no JSON, or both are given.
    """
    if pairs:
        if data is not None:
            raise BadTarget("give either data or pairs")
        feed = feed_of([*pairs])
        return [{"key": [*feed], "value": [*feed.values()]}]
    if data is None:
        return []
    try:
        text = data if data.lstrip()[:1] in ("{", "[") else Path(data).read_bytes()
        value = orjson.loads(text)
    except OSError as error:
        raise BadTarget(f"{data} cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise BadTarget(f"the data is no JSON: {error}") from error
    if value == []:
        raise BadTarget("the list of requests is empty")
    return value if isinstance(value, list) else [value]


def _header(text: str) -> Field:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not text.isprintable():
        raise BadTarget(f"{text!r} is no header: write 'name: value'")
    return name.strip().lower(), value.strip()
