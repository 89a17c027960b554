"""One call for ``penstock client``: sends ``key=value`` pairs, returns a dict for JSON."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

from google.protobuf.json_format import MessageToDict

from penstock.client.client import PipelineClient
from penstock.client.endpoints import parse_endpoints
from penstock.client.errors import CallFailed, NotConnected
from penstock.errors import Undecodable
from penstock.protocols.status import CustomExceptionCode, GrpcCode

MAX_REPLY_BYTES = 256 << 20
"""Maximum bytes of an HTTP reply; a guess, above every configured server."""

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
    target: str, feed: dict[str, str], *, name: str, method: str, log_id: int, timeout: float
) -> dict[str, Any]:
    """Make a call over gRPC.

    Raises:
        CallFailed: there was no reply.
        NotConnected: ``target`` is not host:port.
    """
    _check(target)
    with PipelineClient() as client:
        client.connect([target])
        reply = client.predict(feed, log_id=log_id, timeout=timeout, name=name, method=method)
    answer = MessageToDict(
        reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {member: answer[member] for member in _MEMBERS}


def ask_http(
    target: str, feed: dict[str, str], *, name: str, method: str, log_id: int, timeout: float
) -> dict[str, Any]:
    """Make a call over HTTP, whose URL needs the service's name.

    Without ``name`` it is ``-``, which a service without a name accepts. If a service refuses it,
    its name is requested, and the call repeated if there is exactly one.

    Raises:
        CallFailed: there was no reply, or it is not valid JSON.
        NotConnected: ``target`` is not host:port.
    """
    _check(target)
    body = {"key": list(feed), "value": list(feed.values()), "logid": log_id}
    data = json.dumps(body).encode()
    reply = _ask(target, f"{quote(name or '-', safe='')}/{quote(method, safe='')}", timeout, data)
    if lacks_name(reply, name) and (only := _only_name(target, timeout)):
        path = f"{quote(only, safe='')}/{quote(method, safe='')}"
        reply = _ask(target, path, timeout, data)
    return reply


def _only_name(target: str, timeout: float) -> str | None:
    """Return the name of the only service; ``/status`` answers callers on the same machine only."""
    try:
        names = {graph["name"] for graph in _ask(target, "status", timeout)["graphs"]}
    except (CallFailed, KeyError, TypeError):
        return None
    return str(names.pop()) if len(names) == 1 else None


def _ask(target: str, path: str, timeout: float, body: bytes | None = None) -> dict[str, Any]:
    """Send a request; return the JSON object of its response. Errors as in ``ask_http``."""
    request = urllib.request.Request(
        f"http://{target}/{path}", body, {"Content-Type": "application/json"}
    )
    # Without the environment's proxy: call exactly the given target.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
    try:
        with opener.open(request, timeout=timeout) as reply:
            data = reply.read(MAX_REPLY_BYTES + 1)
    except urllib.error.HTTPError as error:
        text = error.read(4096).decode(errors="replace").strip()
        raise CallFailed(GrpcCode.UNKNOWN, f"HTTP {error.code}: {text}") from error
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


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes redirects errors: call exactly the given target."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _check(target: str) -> None:
    try:
        parse_endpoints([target])
    except ValueError as error:
        raise NotConnected(str(error)) from error
