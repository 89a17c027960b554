"""A feed dict to a Request message. Pure: it decides every byte that ``predict`` sends.

Two forms: texts (the default; arrays as the text numpy prints) and tensors. The caller's dict and
arrays are only read. Source: ``docs/compatibility.md`` (pipeline client).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np
from google.protobuf.message import EncodeError

from penstock.errors import TooLarge
from penstock.protocols import pb, tensors
from penstock.protocols.array_text import format_array
from penstock.tensor import LOD_SUFFIX

LOG_ID_KEY = "logid"
CLIENT_IP_KEY = "clientip"
PROFILE_KEY = "pipeline.profile"

MAX_MESSAGE_BYTES = 512 * 2**20
"""The original client's limit, for requests and for replies."""

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
    """Make the message of one call.

    Args:
        feed_dict: names to values. ``logid`` and ``clientip`` are not values but the call's own
            fields. In the tensor form ``x.lod`` (a flat list of offsets) is the lod of ``x``, and
            no key with ``.lod`` in it is sent as a tensor.
        fetch: None or a list; checked and otherwise without effect: no reply is ever filtered.
        own_address: asked for the caller's address when the feed has no ``clientip``.
        pack_tensor_format: send typed tensors instead of texts.
        use_tensor_bytes: with tensors, send each array as ``.npy`` bytes.
        profile: with texts, ask the server for its profile.
        log_id: int64; None means the feed's ``logid``, or else 0.
        name: the service's name; empty is accepted by every service.
        method: the method's name; most services ignore it.

    Raises:
        TypeError: the feed is not a dict, fetch is not a list, or a value is neither text nor an
            array of a type the wire can carry (the text form also takes lists).
        ValueError: the log id is no int64, or a list is ragged.
    """
    if not isinstance(feed_dict, dict):
        raise TypeError(f"feed_dict must be a dict of names to values, got {type(feed_dict)}")
    if fetch is not None and not isinstance(fetch, list):
        raise TypeError(f"fetch must be None or a list of names, got {type(fetch)}")
    request = pb.Request(name=name, method=method)
    request.logid = _log_id(feed_dict.get(LOG_ID_KEY) if log_id is None else log_id)
    request.clientip = _client_ip(feed_dict.get(CLIENT_IP_KEY), own_address)
    feed = {
        _checked_name(key): value
        for key, value in feed_dict.items()
        if key not in (LOG_ID_KEY, CLIENT_IP_KEY)
    }
    if pack_tensor_format:
        _pack_tensors(request, feed, use_tensor_bytes)
    else:
        _pack_texts(request, feed, profile)
    return request


def encode_request(request: pb.Request) -> bytes:
    """The message's bytes.

    Raises:
        TooLarge: over ``MAX_MESSAGE_BYTES``.
    """
    try:
        encoded = request.SerializeToString()
    except EncodeError as error:  # protobuf's own limit, 2 GiB
        raise TooLarge(f"the request is over {MAX_MESSAGE_BYTES} bytes") from error
    if len(encoded) > MAX_MESSAGE_BYTES:
        raise TooLarge(f"the request is over {MAX_MESSAGE_BYTES} bytes")
    return encoded


def _log_id(value: object) -> int:
    if value is None:
        return 0
    # Texts are taken because the original's first versions did.
    number = int(value) if isinstance(value, str) else index(value)  # type: ignore[arg-type]
    if not _INT64.min <= number <= _INT64.max:
        raise ValueError(f"a log id is an int64, got {number}")
    return number


def _client_ip(value: object, own_address: Callable[[], str]) -> str:
    if value is None:
        return own_address()
    if not isinstance(value, str):
        raise TypeError(f"clientip must be a text, got {type(value)}")
    return value


def _checked_name(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"names in feed_dict must be texts, got {type(key)}")
    return key


def _pack_texts(request: pb.Request, feed: dict[str, Any], profile: bool) -> None:
    for key, value in feed.items():
        request.key.append(key)
        request.value.append(_text(value))
    if profile:
        request.key.append(PROFILE_KEY)
        request.value.append("1")


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
        sent = tensors.encode(key, value, lod=lod, as_bytes=as_bytes)
        request.tensors.append(sent.message())


def _wrong_type(value: object) -> TypeError:
    return TypeError(f"only str and np.ndarray type is supported: {type(value)}")
