"""Makes a target from a URL and data. The URL selects the protocol:

- ``http://HOST:PORT/PATH``: a POST of JSON to any route, or a GET if there is no data;
- ``http://HOST:PORT/v2/models/NAME``: the Open Inference Protocol; without data, inputs are random,
  by the model's metadata;
- ``grpc://HOST:PORT/NAME/METHOD``: the pipeline protocol, with the same JSON as over HTTP;
- ``grpc://HOST:PORT/v2/models/NAME``: the Open Inference Protocol.

``https`` and ``grpcs`` are the same over TLS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlencode, urlsplit

import orjson
from google.protobuf.json_format import ParseDict, ParseError

from penstock.bench import inference
from penstock.bench.target import BadTarget, Body, Field, Target
from penstock.client.call import METHOD
from penstock.client.calls import feed_of
from penstock.client.endpoints import own_address
from penstock.client.http_request import form, header, read_items
from penstock.client.token import with_token
from penstock.protocols import pb

_JSON: Final[Field] = ("content-type", "application/json")


class _Scheme(NamedTuple):
    grpc: bool
    tls: bool


_SCHEMES: Final = {
    "http": _Scheme(False, False),
    "https": _Scheme(False, True),
    "grpc": _Scheme(True, False),
    "grpcs": _Scheme(True, True),
}


def target_of(
    url: str,
    *,
    data: str | None = None,
    pairs: Sequence[str] = (),
    fields: Sequence[str] = (),
    as_json: bool = False,
    method: str | None = None,
    shapes: Sequence[str] = (),
    binary: bool = False,
    headers: Sequence[str] = (),
    ca_file: str | None = None,
    token: str | None = None,
    in_pieces: bool = False,
) -> Target:
    """Make a target. For random inputs, the model's metadata is requested.

    Args:
        url: see the module.
        data: JSON, or the path of a JSON file; the elements of a list are sent in turn.
        pairs: items of a request, see ``client/http_request.py``. If all are ``KEY=VALUE``, they
            are a request of the pipeline protocol for a path ``/NAME/METHOD``, and over gRPC.
        fields: fields and files of a multipart form.
        as_json: items are members of a JSON object for every path.
        method: the HTTP method; by default POST with a body, else GET.
        shapes: shapes of random inputs, such as ``INPUT:1,3,224,224``.
        binary: send a model's inputs as raw bytes also over HTTP; over gRPC they always are.
        headers: header fields, ``name: value`` each; over gRPC metadata.
        ca_file: trusted certificates instead of the system's authorities.
        token: a key or token for the service; ``headers`` take precedence.
        in_pieces: the answers come in pieces, whose times are measured; over HTTP.

    Raises:
        BadTarget: an argument is invalid, or the model's metadata cannot be requested.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadTarget(f"{url!r} is no URL: {error}") from error
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None or not parts.hostname:
        raise BadTarget(f"{url!r} is no target: write http://HOST:PORT/PATH, or grpc://")
    model = inference.model_of(parts.path)
    if model is None and (binary or shapes):
        raise BadTarget("shapes and raw bytes are for models: the path is /v2/models/NAME")
    if scheme.grpc and (fields or method or as_json):
        raise BadTarget("forms, methods and JSON members are for HTTP")
    if in_pieces and (scheme.grpc or model is not None):
        raise BadTarget(
            "pieces are measured over HTTP: of a function that yields, or of"
            " /v2/models/NAME/generate_stream"
        )
    if (data is not None) + bool(pairs) + bool(fields) > 1:
        raise BadTarget("give either data, items or a form")
    values, query = requests_of(data, pairs, members=as_json or not is_pipeline(parts.path, scheme))
    place = Target(
        url=url,
        host=parts.hostname,
        port=port or (443 if scheme.tls else 80),
        tls=scheme.tls,
        ca_file=ca_file,
        headers=with_token([header(text) for text in headers], token),
        token=token,
        in_pieces=in_pieces,
    )
    if model is not None:
        return inference.target_of(place, model, values, shapes, grpc=scheme.grpc, binary=binary)
    path = parts.path or "/"
    if scheme.grpc:
        return place.with_requests("pipeline", METHOD, _messages(path, values))
    bodies = [Body(orjson.dumps(value), (_JSON,)) for value in values]
    if fields:
        content, media = form(fields)
        bodies = [Body(content, (("content-type", media),))]
    parameters = "&".join(filter(None, (parts.query, urlencode(query))))
    found = place.with_requests(None, f"{path}?{parameters}" if parameters else path, bodies)
    return found if method is None else replace(found, method=method.upper())


def is_pipeline(path: str, scheme: _Scheme) -> bool:
    """Whether items are a request of the pipeline protocol, unless they say otherwise."""
    return scheme.grpc or len(path.strip("/").split("/")) == 2


def requests_of(
    data: str | None, pairs: Sequence[str], *, members: bool = False
) -> tuple[list[Any], list[tuple[str, str]]]:
    """Return the values of the requests, none if none are given, and the query.

    Args:
        data: JSON, or the path of a JSON file.
        pairs: items.
        members: whether items are members of a JSON object even if all are ``KEY=VALUE``.

    Raises:
        BadTarget: the data is not JSON.
    """
    if pairs:
        items = read_items(pairs)
        if items.is_plain and not members:
            feed = feed_of([*pairs])
            return [{"key": [*feed], "value": [*feed.values()]}], []
        return ([] if items.members is None else [items.members]), items.query
    if data is None:
        return [], []
    try:
        text = data if data.lstrip()[:1] in ("{", "[") else Path(data).read_bytes()
        value = orjson.loads(text)
    except OSError as error:
        raise BadTarget(f"{data} cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise BadTarget(f"the data is no JSON: {error}") from error
    if value == []:
        raise BadTarget("the list of requests is empty")
    return (value if isinstance(value, list) else [value]), []


def _messages(path: str, values: Sequence[Any]) -> list[Body]:
    """Encode messages of the pipeline protocol, with the names in the path."""
    if not values:
        raise BadTarget("the pipeline protocol needs a request: --data, or KEY=VALUE")
    name, _, method = unquote(path.strip("/")).partition("/")
    address = own_address()
    found = []
    for value in values:
        try:
            message = ParseDict(value, pb.Request(name=name, method=method, clientip=address))
        except (ParseError, AttributeError, TypeError) as error:
            raise BadTarget(f"the data is no request of the pipeline protocol: {error}") from None
        message.ClearField("logid")  # each call adds its own
        found.append(Body(message.SerializeToString()))
    return found
