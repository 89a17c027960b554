"""One call from the shell: pairs in, a JSON-ready dict out."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

from google.protobuf.json_format import MessageToDict

from penstock.client.client import PipelineClient
from penstock.client.errors import CallFailed
from penstock.errors import Undecodable
from penstock.protocols.status import GrpcCode


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
    """Ask over gRPC. Raises CallFailed when no reply comes."""
    with PipelineClient() as client:
        client.connect([target])
        reply = client.predict(feed, log_id=log_id, timeout=timeout, name=name, method=method)
    return MessageToDict(
        reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def ask_http(
    target: str, feed: dict[str, str], *, name: str, method: str, log_id: int, timeout: float
) -> dict[str, Any]:
    """Ask over HTTP. Raises CallFailed when no reply comes."""
    body = {"key": list(feed), "value": list(feed.values()), "logid": log_id}
    url = f"http://{target}/{quote(name or '-', safe='')}/{quote(method, safe='')}"
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    # No proxy from the environment: the target is what was typed.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as reply:
            answer: dict[str, Any] = json.load(reply)
            return answer
    except urllib.error.HTTPError as error:
        text = error.read(4096).decode(errors="replace").strip()
        raise CallFailed(GrpcCode.UNKNOWN, f"HTTP {error.code}: {text}") from error
    except (OSError, ValueError) as error:
        raise CallFailed(GrpcCode.UNAVAILABLE, f"{target}: {error}") from error
