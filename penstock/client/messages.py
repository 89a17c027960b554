"""Encodes feed dicts to Request messages, and decodes Response messages. Pure.

A request has texts (the default; arrays as numpy prints them) or tensors. The caller's dict and
arrays are only read. Servers are not trusted: replies are decoded with the server's own decoders
and limits, and nothing in them is evaluated.
Source: ``docs/compatibility.md`` (pipeline client).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, EncodeError
from numpy.typing import NDArray

from penstock.client.errors import garbage
from penstock.errors import TooLarge
from penstock.protocols import pb, tensors
from penstock.protocols.array_text import format_array
from penstock.protocols.status import error_for
from penstock.tensor import LOD_SUFFIX

LOG_ID_KEY = "logid"
CLIENT_IP_KEY = "clientip"
PROFILE_KEY = "pipeline.profile"

MAX_MESSAGE_BYTES = 512 * 2**20
"""The original client's limit of requests and replies."""

_INT64 = np.iinfo(np.int64)


def pack_request(
    feed_dict: object,
    fetch: object = None,
    *,
    own_address: Callable[[], str],
    pack_tensor_format: bool = False,
    use_tensor_bytes: bool = False,
    profile: bool = False,
    log_id: int | None = None,
    name: str = "",
    method: str = "",
) -> pb.Request:
    """Make the message of one call; the options are those of ``PipelineClient.predict``.

    With tensors, ``x.lod`` (a flat list of offsets) is the lod of ``x``, and no key with ``.lod``
    in it is sent as a tensor. ``own_address`` is called if the feed has no ``clientip``. ``fetch``
    has no effect: replies are not filtered.

    Raises:
        TypeError: the feed is not a dict, fetch is not a list, or a value is neither a text nor an
            array of a supported type (nor a list, if texts are sent).
        ValueError: the log id is not an int64, or a list is ragged.
    """
    if not isinstance(feed_dict, dict):
        raise TypeError(f"feed_dict must be a dict of names to values, got {type(feed_dict)}")
    if fetch is not None and not isinstance(fetch, list):
        raise TypeError(f"fetch must be None or a list of names, got {type(fetch)}")
    request = pb.Request(name=name, method=method)
    request.logid = _log_id(feed_dict.get(LOG_ID_KEY) if log_id is None else log_id)
    client_ip = feed_dict.get(CLIENT_IP_KEY)
    if client_ip is None:
        client_ip = own_address()
    elif not isinstance(client_ip, str):
        raise TypeError(f"clientip must be a text, got {type(client_ip)}")
    request.clientip = client_ip
    feed = {}
    for key, value in feed_dict.items():
        if not isinstance(key, str):
            raise TypeError(f"names in feed_dict must be texts, got {type(key)}")
        if key not in (LOG_ID_KEY, CLIENT_IP_KEY):
            feed[key] = value
    if pack_tensor_format:
        _pack_tensors(request, feed, use_tensor_bytes)
    else:
        request.key.extend(feed)
        request.value.extend([_text(value) for value in feed.values()])
        if profile:
            request.key.append(PROFILE_KEY)
            request.value.append("1")
    return request


def encode_request(request: pb.Request) -> bytes:
    """Encode a message.

    Raises:
        TooLarge: the message is over ``MAX_MESSAGE_BYTES``.
    """
    too_large = TooLarge(f"the request is over {MAX_MESSAGE_BYTES} bytes")
    try:
        encoded = request.SerializeToString()
    except EncodeError as error:  # protobuf's own limit, 2 GiB
        raise too_large from error
    if len(encoded) > MAX_MESSAGE_BYTES:
        raise too_large
    return encoded


def decode_reply(reply: bytes) -> pb.Response:
    """Decode a reply.

    Raises:
        CallFailed: INTERNAL; the bytes are not a Response.
    """
    try:
        return pb.Response.FromString(reply)
    except DecodeError as error:
        raise garbage("its bytes are not a Response") from error


def raise_for_error(response: pb.Response) -> None:
    """Raise the error of a reply whose ``err_no`` is not 0.

    Raises:
        RequestError: the subclass of the number, with the reply's ``err_msg``; ``ProductError`` for
            an unknown number.
    """
    if response.err_no != 0:
        raise error_for(response.err_no, response.err_msg)


def response_arrays(response: pb.Response) -> dict[str, NDArray[Any] | str]:
    """Return the reply's tensors by name.

    Servers send tensors if the request had tensors. The lod of a tensor is under ``<name>.lod``:
    int32 offsets of shape ``(2, n)``. Of two tensors with one name the last wins.

    Raises:
        PackageError: a tensor is inconsistent or cannot be decoded.
    """
    results: dict[str, NDArray[Any] | str] = {}
    for tensor in response.tensors:
        value, lod = tensors.decode(tensor)
        results[tensor.name] = value
        if lod is not None:
            results[tensor.name + LOD_SUFFIX] = lod
    return results


def _log_id(value: object) -> int:
    if value is None:
        return 0
    # Texts are accepted as in the original's first versions.
    number = int(value) if isinstance(value, str) else index(value)  # type: ignore[arg-type]
    if not _INT64.min <= number <= _INT64.max:
        raise ValueError(f"a log id is an int64, got {number}")
    return number


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        value = np.array(value)
    if isinstance(value, np.ndarray):
        return format_array(value)
    raise _wrong_type(value)


def _pack_tensors(request: pb.Request, feed: dict[str, Any], as_bytes: bool) -> None:
    for key, value in feed.items():
        if LOD_SUFFIX in key:
            continue
        if not isinstance(value, str | np.ndarray):
            raise _wrong_type(value)
        lod = feed.get(key + LOD_SUFFIX)
        tensor = tensors.encode(key, value, lod=lod, as_bytes=as_bytes)
        request.tensors.append(tensor.message())


def _wrong_type(value: object) -> TypeError:
    return TypeError(f"only str and np.ndarray type is supported: {type(value)}")
