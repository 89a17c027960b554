"""Reply bytes to a Response message, and what to do with one. Pure.

A server is not trusted more than a client: replies go through the decoders, and the limits, that
guard the server. Nothing in a reply is evaluated. Source: ``docs/compatibility.md``.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from penstock.client.errors import CallFailed
from penstock.protocols import pb, tensors
from penstock.protocols.status import GrpcCode, error_for
from penstock.tensor import LOD_SUFFIX


def decode_reply(reply: bytes) -> pb.Response:
    """The message in the bytes.

    Raises:
        CallFailed: INTERNAL; the bytes are no Response. A retry hardly helps.
    """
    try:
        return pb.Response.FromString(reply)
    except DecodeError as error:
        raise CallFailed(GrpcCode.INTERNAL, "the reply's bytes are not a Response") from error


def raise_for_error(response: pb.Response) -> None:
    """Do nothing when the reply is good, else raise what the server meant by its ``err_no``.

    Raises:
        RequestError: the subclass that the number stands for, with the reply's ``err_msg``; a
            number of no known meaning is a ``ProductError``.
    """
    if response.err_no != 0:
        raise error_for(response.err_no, response.err_msg)


def response_arrays(response: pb.Response) -> dict[str, NDArray[Any] | str]:
    """The typed results by name.

    Servers send them when the request carried tensors. A result with a lod has its int32 offsets,
    of shape ``(2, n)``, beside it under ``<name>.lod``. Of two results with one name the last wins.

    Raises:
        PackageError: a tensor contradicts itself or cannot be read.
    """
    results: dict[str, NDArray[Any] | str] = {}
    for tensor in response.tensors:
        value, lod = tensors.decode(tensor)
        results[tensor.name] = value
        if lod is not None:
            results[tensor.name + LOD_SUFFIX] = lod
    return results
