"""The blocks mean, to a decoder that is not ours, what they should."""

from __future__ import annotations

import hpack

from penstock.protocols.grpc import (
    OK_HEAD,
    OK_TRAILERS,
    encode_metadata,
    trailers_block,
    trailers_only_block,
)
from penstock.protocols.status import GrpcCode

HEAD = [(b":status", b"200"), (b"content-type", b"application/grpc")]


def fields(block: bytes) -> list[tuple[bytes, bytes]]:
    return [tuple(pair) for pair in hpack.Decoder().decode(block, raw=True)]


def test_a_call_that_succeeds_has_fixed_blocks() -> None:
    assert fields(OK_HEAD) == HEAD
    assert fields(OK_TRAILERS) == [(b"grpc-status", b"0")]


def test_trailers_tell_code_text_and_metadata() -> None:
    metadata = encode_metadata([("a-bin", b"\xff")])
    block = trailers_block(GrpcCode.NOT_FOUND, "no: é", metadata)
    status = [(b"grpc-status", b"5"), (b"grpc-message", b"no: %C3%A9"), (b"a-bin", b"/w")]
    assert fields(block) == status
    assert fields(trailers_only_block(GrpcCode.NOT_FOUND, "no: é", metadata)) == HEAD + status


def test_no_text_is_no_field() -> None:
    assert fields(trailers_block(GrpcCode.OK, "")) == [(b"grpc-status", b"0")]
