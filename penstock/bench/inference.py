"""Requests of the Open Inference Protocol: given as JSON, or random from the model's metadata.

Random numbers are small, so that they are valid indices for models with lookups. They differ
between requests, because equal requests would hit every cache.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import numpy as np
import orjson
import uvloop

from penstock.bench.target import BadTarget, Body, Field, Target
from penstock.client.channels import AsyncChannel
from penstock.client.endpoints import Endpoint
from penstock.client.errors import CallFailed
from penstock.client.tls import Tls
from penstock.client.token import NoRedirects, hint
from penstock.errors import RequestError
from penstock.protocols import oip, oip_json, oip_message
from penstock.protocols.oip import OutTensor
from penstock.protocols.protobuf import varint
from penstock.protocols.standard_messages import INFERENCE, inference_messages
from penstock.protocols.status import GrpcCode

_PATH: Final = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/infer)?/?")
_REQUESTS: Final = 16
"""Number of different random requests, if they fit into ``_MOST_BYTES``."""
_MOST_BYTES: Final = 64 << 20
_TIMEOUT: Final = 10.0
_JSON: Final[Field] = ("content-type", "application/json")
_BINARY: Final[Field] = ("content-type", "application/octet-stream")


class Model(NamedTuple):
    """A model's name and version; the version may be empty."""

    name: str
    version: str

    @property
    def path(self) -> str:
        """The path of the model's metadata."""
        version = f"/versions/{quote(self.version, safe='')}" if self.version else ""
        return f"/v2/models/{quote(self.name, safe='')}{version}"


class Input(NamedTuple):
    """The metadata of an input; variable sizes are negative."""

    name: str
    datatype: str
    shape: tuple[int, ...]


def model_of(path: str) -> Model | None:
    """Return the model in the path of a URL; None if there is none."""
    match = _PATH.fullmatch(path)
    return match and Model(unquote(match[1]), unquote(match[2] or ""))


def target_of(
    place: Target,
    model: Model,
    values: Sequence[Any],
    shapes: Sequence[str],
    *,
    grpc: bool,
    binary: bool,
) -> Target:
    """Make the target of requests to a model.

    Args:
        place: the service.
        model: the model.
        values: requests as JSON; random requests if empty.
        shapes: shapes of random inputs, such as ``INPUT:1,3,224,224``.
        grpc: send over gRPC.
        binary: send raw bytes over HTTP.

    Raises:
        BadTarget: the model's metadata cannot be requested, or the requests are invalid.
    """
    if values and not (grpc or binary):
        bodies = [Body(orjson.dumps(value), (_JSON,)) for value in values]
        return place.with_requests(None, f"{model.path}/infer", bodies)
    if values:
        tensors = [_given(value) for value in values]
    else:
        found = uvloop.run(_metadata(place, model)) if grpc else _get(place, model)
        tensors = random_tensors(inputs_of(found), shapes_of(shapes))
    if grpc:
        messages = [Body(_message(model, each)) for each in tensors]
        return place.with_requests("inference", f"/{INFERENCE}/ModelInfer", messages)
    return place.with_requests(
        None, f"{model.path}/infer", [_body(each, binary) for each in tensors]
    )


def inputs_of(found: Mapping[str, Any]) -> list[Input]:
    """Return the inputs in a model's metadata.

    Raises:
        BadTarget: the metadata is invalid.
    """
    try:
        inputs = [
            Input(each["name"], each["datatype"], tuple(map(int, each["shape"])))
            for each in found["inputs"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise BadTarget("the model's metadata has no readable inputs") from error
    for each in inputs:
        if each.datatype not in oip.DTYPES:
            raise BadTarget(f"input {each.name!r} has the datatype {each.datatype!r}: give --data")
    return inputs


def shapes_of(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Parse shapes such as ``INPUT:1,3,224,224``.

    Raises:
        BadTarget: a text is not a shape.
    """
    found = {}
    for text in texts:
        name, _, sizes = text.rpartition(":")
        try:
            found[name] = tuple(map(int, sizes.split(",")))
        except ValueError:
            found[name] = (-1,)
        if not name or min(found[name]) < 0:
            raise BadTarget(f"{text!r} is no shape: write INPUT:1,3,224,224")
    return found


def random_tensors(
    inputs: Sequence[Input], shapes: Mapping[str, tuple[int, ...]]
) -> list[list[OutTensor]]:
    """Make several requests with random values.

    Args:
        inputs: the model's inputs. A variable first axis has size 1.
        shapes: shapes of inputs, by name.

    Raises:
        BadTarget: another axis is variable, or a shape's input does not exist.
    """
    if unknown := shapes.keys() - {each.name for each in inputs}:
        known = ", ".join(each.name for each in inputs)
        raise BadTarget(f"the model has no input {', '.join(sorted(unknown))}, but {known}")
    sized = []
    for each in inputs:
        shape = shapes.get(each.name, (*(abs(size) for size in each.shape[:1]), *each.shape[1:]))
        if min(shape, default=0) < 0:
            sizes = ",".join(map(str, each.shape))
            raise BadTarget(
                f"input {each.name!r} has the shape {sizes}: give --shape {each.name}:1,…"
            )
        sized.append(each._replace(shape=shape))
    size = sum(8 * prod(each.shape) for each in sized)
    random = np.random.default_rng(0)
    return [
        [_random(each, random) for each in sized]
        for _ in range(max(1, min(_REQUESTS, _MOST_BYTES // max(1, size))))
    ]


def _random(of: Input, random: np.random.Generator) -> OutTensor:
    dtype = oip.DTYPES[of.datatype]
    array: oip.Array
    if dtype.kind == "O":
        array = np.empty(of.shape, object)
        array[...] = f"text {random.integers(1000)}"
    elif dtype.kind == "f":
        array = random.random(of.shape).astype(dtype)
    else:
        array = random.integers(2 if dtype.kind == "b" else 10, size=of.shape).astype(dtype)
    return OutTensor(of.name, of.datatype, array)


def _given(value: Any) -> list[OutTensor]:
    try:
        found = oip_json.decode(orjson.dumps(value))
    except RequestError as error:
        raise BadTarget(f"the data is no request of the Open Inference Protocol: {error}") from None
    return [OutTensor(name, found.datatypes[name], array) for name, array in found.feed.items()]


def _body(tensors: Sequence[OutTensor], binary: bool) -> Body:
    content, size = oip_json.encode_request(tensors, binary=binary)
    if size is None:
        return Body(content, (_JSON,))
    return Body(content, (_BINARY, ("inference-header-content-length", str(size))))


def _message(model: Model, tensors: Sequence[OutTensor]) -> bytes:
    message = oip_message.encode_request("", model.name, tensors, ())
    version = model.version.encode()
    # The field model_version; the last one of repeated fields counts.
    return message + b"\x12" + varint(len(version)) + version if version else message


def _get(place: Target, model: Model) -> dict[str, Any]:
    """Request the model's metadata over HTTP."""
    url = f"{place.status_url}{model.path}"
    handlers: list[Any] = [urllib.request.ProxyHandler({}), NoRedirects()]
    if place.ca_file is not None:
        context = ssl.create_default_context(cafile=place.ca_file)
        handlers.append(urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)
    opener.addheaders = [*place.headers]
    try:
        with opener.open(url, timeout=_TIMEOUT) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        error.close()
        why = f"HTTP {error.code}{hint(error.code, place.token)}"
        raise BadTarget(f"{url} has no metadata of the model: {why}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise BadTarget(f"{url} has no metadata of the model: {error}") from error
    return found


async def _metadata(place: Target, model: Model) -> dict[str, Any]:
    """Request the model's metadata over gRPC."""
    request, response = inference_messages("ModelMetadata")
    message = request(name=model.name, version=model.version).SerializeToString()
    endpoint = Endpoint(host=place.host, port=place.port)
    tls = Tls(ca_file=place.ca_file) if place.tls else None
    channel = AsyncChannel([endpoint], tls, token=place.token)
    deadline = time.monotonic() + _TIMEOUT
    try:
        reply = await channel.call(message, deadline=deadline, method=f"/{INFERENCE}/ModelMetadata")
    except CallFailed as error:
        more = hint(401 if error.status is GrpcCode.UNAUTHENTICATED else 0, place.token)
        raise BadTarget(f"{place.url} has no metadata of the model: {error}{more}") from error
    finally:
        await channel.close()
    found = response.FromString(reply)
    return {
        "inputs": [
            {"name": each.name, "datatype": each.datatype, "shape": each.shape}
            for each in found.inputs
        ]
    }
