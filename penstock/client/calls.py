"""One call for ``penstock client``: of the pipeline protocol, or to any HTTP route."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from google.protobuf.json_format import MessageToDict

from penstock.client.client import PipelineClient
from penstock.client.endpoints import parse_endpoints
from penstock.client.errors import CallFailed, NotConnected
from penstock.client.http_request import Encoded
from penstock.client.tls import Tls
from penstock.client.token import NoRedirects, Token, hint, with_token
from penstock.errors import Undecodable
from penstock.protocols.status import CustomExceptionCode, GrpcCode

MAX_REPLY_BYTES = 256 << 20
"""Maximum bytes of an HTTP reply: four times the default limit of a request."""

_TLS = "https://"  # before the address of a service that uses TLS

_MEMBERS = ("err_no", "err_msg", "key", "value", "tensors")
"""Members of a reply, in the HTTP port's order."""


def feed_of(pairs: list[str]) -> dict[str, str]:
    """Convert ``key=value`` texts to a dict; ``key=@path`` is the file's contents as base64.

    Raises:
        Undecodable: a text has no ``=``, or a file cannot be read.
    """
    feed: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise Undecodable(f"{pair!r} is no pair: write key=value, or key=@file")
        if value.startswith("@"):
            try:
                value = base64.b64encode(Path(value[1:]).read_bytes()).decode()
            except OSError as error:
                raise Undecodable(f"{value[1:]} cannot be read: {error.strerror}") from error
        feed[key] = value
    return feed


def ask_grpc(
    target: str,
    feed: dict[str, str],
    *,
    name: str,
    method: str,
    log_id: int,
    timeout: float,
    ca_file: str | None = None,
    token: Token | None = None,
) -> dict[str, Any]:
    """Make a call over gRPC, to ``host:port``, or with TLS to ``https://host:port``.

    ``ca_file`` has certificates to trust instead of the system's authorities; ``token`` is a key or
    token for a service with ``security``.

    Raises:
        CallFailed: there was no reply.
        NotConnected: ``target`` is not host:port, or the file cannot be read.
    """
    tls = Tls(ca_file=ca_file) if target.startswith(_TLS) else None
    endpoint = target.removeprefix(_TLS)
    _check(endpoint)
    with PipelineClient(tls=tls, token=token) as client:
        try:
            client.connect([endpoint])
        except OSError as error:
            raise NotConnected(f"{ca_file}: {error}") from error
        try:
            reply = client.predict(feed, log_id=log_id, timeout=timeout, name=name, method=method)
        except CallFailed as error:
            if error.status is not GrpcCode.UNAUTHENTICATED:
                raise
            raise CallFailed(error.status, f"{error.args[1]}{hint(401, token)}") from error
    answer = MessageToDict(
        reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {member: answer[member] for member in _MEMBERS}


def ask_http(
    target: str,
    feed: dict[str, str],
    *,
    name: str,
    method: str,
    log_id: int,
    timeout: float,
    ca_file: str | None = None,
    token: Token | None = None,
) -> dict[str, Any]:
    """Make a call over HTTP, whose URL needs the service's name.

    Without ``name`` it is ``-``, which a service without a name accepts. If a service refuses it,
    its name is requested, and the call repeated if there is exactly one.

    ``target``, ``ca_file``, ``token`` and errors as in ``ask_grpc``; CallFailed also if the reply
    is no JSON.
    """
    _check(target.removeprefix(_TLS))
    opener = _opener(ca_file)
    body = {"key": list(feed), "value": list(feed.values()), "logid": log_id}
    data = json.dumps(body).encode()
    path = f"{quote(name or '-', safe='')}/{quote(method, safe='')}"
    reply = _ask(opener, target, path, timeout, data, token)
    if lacks_name(reply, name) and (only := _only_name(opener, target, timeout, token)):
        path = f"{quote(only, safe='')}/{quote(method, safe='')}"
        reply = _ask(opener, target, path, timeout, data, token)
    return reply


class RouteAnswer(NamedTuple):
    """The answer of a route."""

    status: int
    media: str
    body: bytes


def ask_route(
    url: str,
    body: Encoded | None,
    *,
    method: str | None = None,
    headers: Sequence[tuple[str, str]] = (),
    timeout: float,
    ca_file: str | None = None,
    token: Token | None = None,
) -> RouteAnswer:
    """Send a request to any route, such as one of a typed function.

    Args:
        url: an http or https URL.
        body: the body; None for none.
        method: by default POST with a body, else GET.
        headers: further header fields.
        timeout: seconds for the answer.
        ca_file: as for ``ask_grpc``.
        token: as for ``ask_grpc``; not sent if ``headers`` have a key or token.

    Raises:
        CallFailed: there was no answer, or it is too large.
        NotConnected: the URL is invalid.
    """
    fields = {"Accept": "*/*"} if body is None else {"Accept": "*/*", "Content-Type": body.media}
    try:
        request = urllib.request.Request(  # noqa: S310 - the caller's own URL, as checked below
            url, None if body is None else body.content, fields, method=method
        )
        if request.type not in ("http", "https") or not request.host:
            raise ValueError("write http://HOST:PORT/PATH")
        for name, value in with_token(headers, token):
            request.add_header(name, value)
    except ValueError as error:
        raise NotConnected(f"{url}: {error}") from error
    try:
        with _opener(ca_file).open(request, timeout=timeout) as reply:
            data, status = reply.read(MAX_REPLY_BYTES + 1), reply.status
            media = reply.headers.get_content_type()
    except urllib.error.HTTPError as error:
        with error:
            return RouteAnswer(error.code, error.headers.get_content_type(), error.read())
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise CallFailed(GrpcCode.UNAVAILABLE, f"{url}: {reason}") from error
    if len(data) > MAX_REPLY_BYTES:
        raise CallFailed(GrpcCode.RESOURCE_EXHAUSTED, f"{url}: the reply is too large")
    return RouteAnswer(status, media, data)


def _opener(ca_file: str | None) -> urllib.request.OpenerDirector:
    """Calls exactly the given target: without the environment's proxy, and without redirects."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise NotConnected(f"{ca_file}: {error}") from error
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPSHandler(context=context),
        NoRedirects(),
    )


def _only_name(
    opener: urllib.request.OpenerDirector, target: str, timeout: float, token: Token | None
) -> str | None:
    """Return the name of the only service; ``/status`` answers callers on the same machine only."""
    try:
        names = {
            graph["name"]
            for graph in _ask(opener, target, "status", timeout, None, token)["graphs"]
        }
    except (CallFailed, KeyError, TypeError):
        return None
    return str(names.pop()) if len(names) == 1 else None


def _ask(
    opener: urllib.request.OpenerDirector,
    target: str,
    path: str,
    timeout: float,
    body: bytes | None,
    token: Token | None,
) -> dict[str, Any]:
    """Send a request; return the JSON object of its response. Errors as in ``ask_http``."""
    place = target if target.startswith(_TLS) else f"http://{target}"
    request = urllib.request.Request(  # noqa: S310 - it begins with http:// or https://
        f"{place}/{path}", body, dict(with_token([("Content-Type", "application/json")], token))
    )
    try:
        with opener.open(request, timeout=timeout) as reply:
            data = reply.read(MAX_REPLY_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            text = error.read(4096).decode(errors="replace").strip()
        text = f"HTTP {error.code}: {text}{hint(error.code, token)}"
        raise CallFailed(GrpcCode.UNKNOWN, text) from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise CallFailed(GrpcCode.UNAVAILABLE, f"{target}: {reason}") from error
    if len(data) > MAX_REPLY_BYTES:
        raise CallFailed(GrpcCode.RESOURCE_EXHAUSTED, f"{target}: the reply is too large")
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CallFailed(GrpcCode.UNKNOWN, f"{target}: the reply is no JSON") from error
    if not isinstance(answer, dict):
        raise CallFailed(GrpcCode.UNKNOWN, f"{target}: the reply is no JSON object")
    return answer


def lacks_name(reply: dict[str, Any], name: str) -> bool:
    """Whether a service refused a call because it had no name."""
    return not name and reply.get("err_no") == CustomExceptionCode.NO_SERVICE.value


def _check(target: str) -> None:
    try:
        parse_endpoints([target])
    except ValueError as error:
        raise NotConnected(str(error)) from error
