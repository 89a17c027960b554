"""One call from the shell: pairs in, a JSON-ready dict out."""

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
"""Of an HTTP reply; the largest that a server was ever configured to send, a guess."""

_MEMBERS = ("err_no", "err_msg", "key", "value", "tensors")
"""Of a reply, in the order in which the HTTP port writes them."""


def feed_of(pairs: list[str]) -> dict[str, str]:
    """``key=value`` texts as a dict; ``key=@path`` reads a file and gives its base64 text.

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
    """Ask over gRPC.

    Raises:
        CallFailed: no reply comes.
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
    """Ask over HTTP, where the URL needs a name.

    Without one it is ``-``, which a service without a name takes; one that refuses it is asked for
    its name, and called by that if it is the only one there.

    Raises:
        CallFailed: no reply comes, or it is not the JSON of a reply.
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
    """The name of the only service there; ``/status`` answers callers on the same machine only."""
    try:
        names = {graph["name"] for graph in _ask(target, "status", timeout)["graphs"]}
    except (CallFailed, KeyError, TypeError):
        return None
    return str(names.pop()) if len(names) == 1 else None


def _ask(target: str, path: str, timeout: float, body: bytes | None = None) -> dict[str, Any]:
    """The JSON object in an answer; see ``ask_http``."""
    request = urllib.request.Request(
        f"http://{target}/{path}", body, {"Content-Type": "application/json"}
    )
    # No proxy from the environment: the target is what was typed.
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
    """Whether a service refused a call for want of a name."""
    return not name and reply.get("err_no") == CustomExceptionCode.NO_SERVICE.value


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: the target is what was typed."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _check(target: str) -> None:
    try:
        parse_endpoints([target])
    except ValueError as error:
        raise NotConnected(str(error)) from error
