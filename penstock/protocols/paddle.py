"""The Paddle pipeline protocol: what goes over its HTTP and gRPC doors, and what ops make of it.

Bytes become a ``Call``, a ``Call`` becomes a feed dict; an op's result becomes a ``Reply``, and a
``Reply`` becomes bytes. The usual ones, of texts only, take shorter ways. Nothing here knows
servers, and nothing a caller sends is ever evaluated.
Source: ``docs/compatibility.md``.

Pure; safe from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from penstock.errors import InputMismatch, PackageError, RequestError
from penstock.protocols import tensors
from penstock.protocols.array_text import format_value, text_width
from penstock.protocols.paddle_json import decode_json, encode_json, gateway_error, write_json
from penstock.protocols.paddle_message import decode_message, encode_message
from penstock.protocols.paddle_records import PROFILE_KEY, Call, Reply, TakesLong
from penstock.protocols.paddle_texts import write_texts
from penstock.protocols.pb import Request, Tensor
from penstock.protocols.status import CustomExceptionCode
from penstock.protocols.tensors import WireTensor
from penstock.request import Feed
from penstock.tensor import LOD_SUFFIX

__all__ = [
    "PROFILE_KEY",
    "Call",
    "Reply",
    "TakesLong",
    "decode_json",
    "decode_message",
    "encode_json",
    "encode_message",
    "gateway_error",
    "pack",
    "prepare",
    "reply_size",
    "takes_long",
    "unpack",
    "write_json",
    "write_texts",
]

_AT_ONCE = 4096
"""Numbers that are written without thinking twice: in some milliseconds."""
_MAX_NAME = 256


def unpack(request: Call | Request) -> tuple[Feed, bool]:
    """The feed that a request's pairs and tensors make, and whether it asked for a profile.

    Texts stay texts. A tensor's lod stands beside it as ``<name>.lod``. Of two entries with one
    name the last wins, and a tensor wins over a text.

    Raises:
        PackageError: fewer values than keys, or a tensor that contradicts itself.
        InputMismatch: a tensor's name is empty or over 256 characters.
    """
    if isinstance(request, Call) and request.problem is not None:
        raise request.problem
    key, value = request.key, request.value
    if len(value) < len(key):
        raise PackageError(f"there are {len(key)} keys, but only {len(value)} values")
    feed: Feed
    if len(key) == 1:  # as most have; the general way takes four times as long
        feed = {key[0]: value[0]}
    else:
        feed = dict(zip(key, value))  # noqa: B905 - there may be more values
    if request.tensors:
        _add_tensors(feed, request.tensors)
    if PROFILE_KEY not in feed:
        return feed, False
    asked: Any = feed.pop(PROFILE_KEY)
    return feed, isinstance(asked, str) and asked == "1"


def prepare(call: Call) -> None:
    """Make the feed of a large call ahead, where the loop need not wait for it."""
    try:
        call.feed, _ = unpack(call)
    except RequestError as error:
        error.__traceback__ = None
        call.problem = error


def _add_tensors(feed: Feed, given: Iterable[Tensor | WireTensor]) -> None:
    for tensor in given:
        name = tensor.name
        if not 0 < len(name) <= _MAX_NAME:
            raise InputMismatch(
                f"a tensor's name has 1 to {_MAX_NAME} characters, got one of {len(name)}"
            )
        feed[name], lod = tensors.decode(tensor)
        if lod is not None:
            feed[name + LOD_SUFFIX] = lod


def pack(value: Feed, *, typed: bool, keep_text: bool) -> Reply:
    """The reply that carries an op's result.

    A result of arrays and of lists of texts is written as numpy's ``repr``. In any other, every
    value must be a text; the first that is not makes the reply an error 7000 that keeps the pairs
    before it.

    Args:
        value: names to values; read, never kept.
        typed: send arrays as tensors, those that the wire can carry. Texts stay pairs.
        keep_text: of arrays that went into tensors, send the text as well.

    Raises:
        PackageError: a name is not a text.
    """
    for name, item in value.items():
        if type(name) is not str or type(item) is not str:
            break
    else:
        return Reply(0, "", [*value], [*value.values()])
    return _pack_arrays(value, typed, keep_text)


def takes_long(value: Feed | None) -> bool:
    """Whether it takes long to ``pack`` and encode this: arrays are written whole, and the text of
    a number takes one or two microseconds.
    """
    if type(value) is not dict:  # a user's own kind of dict may do anything
        return False
    size = 0
    for item in value.values():
        if type(item) is np.ndarray:
            size += item.size
        elif type(item) is str:
            size += len(item) >> 6
    return size > _AT_ONCE


def reply_size(value: Feed, *, typed: bool, keep_text: bool) -> int:
    """About how many bytes the reply that carries this takes; more rather than fewer."""
    size = 0
    for item in value.values():
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, np.ndarray):
            wire = item.itemsize if item.dtype.kind == "f" else 10
            size += item.size * (typed * wire + keep_text * (text_width(item.dtype) + 2))
    return size


def _pack_arrays(value: Feed, typed: bool, keep_text: bool) -> Reply:
    """A result that is not of texts alone."""
    for name in value:
        if not isinstance(name, str):
            raise PackageError(f"the names of a result must be texts, got {type(name).__name__}")
    sent = _tensors_of(value) if typed else {}
    reply = Reply(tensors=list(sent.values()))
    as_repr = _is_arrays(value)
    for name, item in value.items():
        if not keep_text and _is_sent(name, sent):
            continue
        if as_repr:
            text = format_value(item)
        elif isinstance(item, str):
            text = item
        else:
            reply.err_no = CustomExceptionCode.TYPE_ERROR.value
            reply.err_msg = _refusal(item, value)
            reply.tensors = []
            break
        reply.key.append(name)
        reply.value.append(text)
    return reply


def _is_arrays(value: Feed) -> bool:
    return all(map(_is_array, value.values()))


def _is_array(item: Any) -> bool:
    return isinstance(item, np.ndarray) or (
        isinstance(item, list) and bool(item) and isinstance(item[0], str)
    )


def _refusal(item: Any, value: Feed) -> str:
    """Why ``item`` cannot be sent. Clients know the first sentence; the second is ours.

    An array that could be sent among arrays is not what is wrong with the result.
    """
    text = f"@DAGExecutor fetch var type must be str({type(item)})."
    if _is_array(item):
        for name, other in value.items():
            if not (isinstance(other, str) or _is_array(other)):
                return f"{text} {name!r} is neither a text nor an array: {type(other)}."
    return text


def _tensors_of(value: Feed) -> dict[str, WireTensor]:
    """The tensors of a result by name; a lod goes with the array that it belongs to."""
    sent: dict[str, WireTensor] = {}
    for name, item in value.items():
        if not isinstance(item, np.ndarray) or _is_lod(name, value):
            continue
        lod = value.get(f"{name}{LOD_SUFFIX}")
        try:
            sent[name] = tensors.encode(name, item, lod=lod)
        except TypeError:
            continue  # complex numbers, texts in arrays: those have only the text form
    return sent


def _is_lod(name: str, value: Feed) -> bool:
    base = name.removesuffix(LOD_SUFFIX)
    return base != name and isinstance(value.get(base), np.ndarray)


def _is_sent(name: str, sent: dict[str, WireTensor]) -> bool:
    if name in sent:
        return True
    base = name.removesuffix(LOD_SUFFIX)
    return base != name and base in sent and bool(sent[base].lod.size)
