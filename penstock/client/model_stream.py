"""A request to a model whose answer comes in pieces, by ``ModelStreamInfer``. Pure.

Source: the Open Inference Protocol over gRPC, with Triton's extension for decoupled models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from penstock.client.errors import CallFailed
from penstock.errors import RequestError, WrongType
from penstock.protocols import oip, oip_message
from penstock.protocols.http2 import encode_block
from penstock.protocols.protobuf import LENGTH, Walker, decode_text
from penstock.protocols.standard_messages import INFERENCE
from penstock.protocols.status import GrpcCode

METHOD: Final = f"/{INFERENCE}/ModelStreamInfer"

FIELDS: Final = encode_block([(b"triton_grpc_error", b"true")])
"""An error is the call's status, instead of the text of a message."""

_MOST_FIELDS: Final = 100_000


def encode_feed(
    feed: Mapping[str, Any], name: str, request_id: str, outputs: Sequence[str] = ()
) -> bytes:
    """Encode a request.

    Args:
        feed: the model's inputs: arrays, or texts, numbers and lists of them. A text or a number
            becomes a tensor of the shape [1], a list of them one with as many elements.
        name: the model's name.
        request_id: for the server's log.
        outputs: those that are requested; empty for all.

    Raises:
        TypeError: the feed is not a dict of names, or a value is no tensor.
    """
    return oip_message.encode_request(request_id, name, inputs_of(feed), outputs)


def inputs_of(feed: object) -> list[oip.OutTensor]:
    """The tensors of a feed; see ``encode_feed``.

    Raises:
        TypeError: the feed is not a dict of names, or a value is no tensor.
    """
    if not isinstance(feed, dict) or not all(isinstance(each, str) for each in feed):
        raise TypeError(f"feed_dict must be a dict of names to values, got {type(feed)}")
    try:
        return [oip.sent(key, _array(key, value)) for key, value in feed.items()]
    except WrongType as error:
        raise TypeError(str(error)) from error


def _array(name: str, value: object) -> NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value
    listed = value if isinstance(value, list) else [value]
    if listed and all(isinstance(each, str | bytes) for each in listed):
        texts = np.empty(len(listed), object)
        texts[:] = listed
        return texts
    try:
        array = np.asarray(listed)
    except ValueError:  # a ragged list
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: write an array, a text, a number, or a list of them")
    return array


def decode_piece(message: bytes) -> dict[str, NDArray[Any]] | None:
    """Decode a ``ModelStreamInferResponse``: the outputs by name; None if it only ends the answer.

    Raises:
        CallFailed: it is an error, or cannot be decoded.
    """
    try:
        found = b""
        for number, wire_type, begin, end in Walker(message, _MOST_FIELDS).fields(0, len(message)):
            if number == 1 and wire_type == LENGTH and end > begin:
                raise CallFailed(GrpcCode.UNKNOWN, decode_text(message, begin, end))
            if number == 2 and wire_type == LENGTH:
                found = message[begin:end]
        outputs = oip_message.decode_response(found)
    except (ValueError, IndexError, RequestError) as error:
        text = f"the server's answer cannot be read: {error}"
        raise CallFailed(GrpcCode.INTERNAL, text) from error
    return {name: as_texts(value) for name, value in outputs.items()} or None


def as_texts(value: oip.Array) -> oip.Array:
    """Decode the elements of BYTES to texts if all are UTF-8; other arrays stay."""
    if value.dtype != object:
        return value
    texts = np.empty(value.size, object)
    try:
        texts[:] = [each.decode() for each in value.reshape(-1).tolist()]
    except UnicodeDecodeError:
        return value
    return texts.reshape(value.shape)


def explained(failed: CallFailed) -> CallFailed:
    """Say what a server lacks that has no streams."""
    if failed.status is not GrpcCode.UNIMPLEMENTED:
        return failed
    text = f"{failed.args[1]}; answers in pieces need a server with ModelStreamInfer"
    return CallFailed(failed.status, text)


class _Options(TypedDict):
    """Arguments of ``Channel.stream``."""

    method: str
    fields: bytes
    decode: Callable[[bytes], dict[str, NDArray[Any]] | None]
    explain: Callable[[CallFailed], CallFailed]


BY_MODEL_STREAM: Final = _Options(
    method=METHOD, fields=FIELDS, decode=decode_piece, explain=explained
)
