from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols.grpc import (
    code_of_http,
    decode_status_message,
    encode_metadata,
    encode_status_message,
    read_status,
    trailers,
)
from penstock.protocols.status import GrpcCode


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("plain text, with ~ and !", b"plain text, with ~ and !"),
        ("100%", b"100%25"),
        ("a\nb\0\x7f", b"a%0Ab%00%7F"),
        ("é", b"%C3%A9"),
        ("", b""),
    ],
)
def test_a_text_is_percent_encoded(text: str, raw: bytes) -> None:
    assert encode_status_message(text) == raw
    assert decode_status_message(raw) == text


@given(st.text(max_size=500))
def test_an_encoded_text_is_decoded_to_the_same(text: str) -> None:
    raw = encode_status_message(text)
    assert all(0x20 <= byte < 0x7F for byte in raw)
    assert decode_status_message(raw) == text.encode("utf-8", "replace").decode()


@given(st.binary(max_size=100))
def test_any_bytes_decode_to_some_text(raw: bytes) -> None:
    decode_status_message(raw)


@pytest.mark.parametrize("raw", [b"%", b"%2", b"%zz", b"50%!"])
def test_an_invalid_escape_is_kept(raw: bytes) -> None:
    assert decode_status_message(raw) == raw.decode()


@pytest.mark.parametrize("lead", range(5))
def test_a_very_long_text_is_truncated_between_escapes(lead: int) -> None:
    raw = encode_status_message("a" * lead + "%" * 5000)
    assert 4090 < len(raw) <= 4096
    assert decode_status_message(raw).strip("a").strip("%") == ""


def test_the_status_of_trailers_is_read() -> None:
    fields = {b"grpc-status": b"5", b"grpc-message": b"no%21"}
    assert read_status(fields) == (GrpcCode.NOT_FOUND, "no!")
    assert read_status({b"grpc-status": b"0"}) == (GrpcCode.OK, "")
    assert read_status({}) is None


@pytest.mark.parametrize("raw", [b"17", b"-1", b"00", b"x", b"", b"1" * 5000])
def test_an_invalid_status_is_unknown(raw: bytes) -> None:
    assert read_status({b"grpc-status": raw}) == (GrpcCode.UNKNOWN, "")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, GrpcCode.INTERNAL),
        (401, GrpcCode.UNAUTHENTICATED),
        (403, GrpcCode.PERMISSION_DENIED),
        (404, GrpcCode.UNIMPLEMENTED),
        (429, GrpcCode.UNAVAILABLE),
        (502, GrpcCode.UNAVAILABLE),
        (503, GrpcCode.UNAVAILABLE),
        (504, GrpcCode.UNAVAILABLE),
        (500, GrpcCode.UNKNOWN),
        (200, GrpcCode.UNKNOWN),
    ],
)
def test_an_http_status_becomes_a_grpc_code(status: int, code: GrpcCode) -> None:
    assert code_of_http(status) is code


def test_trailers_have_code_text_and_metadata() -> None:
    metadata = encode_metadata([("a-bin", b"\xff")])
    status = ((b"grpc-status", b"5"), (b"grpc-message", b"no: %C3%A9"))
    assert trailers(GrpcCode.NOT_FOUND, "no: é", metadata) == (*status, (b"a-bin", b"/w"))
    assert trailers(GrpcCode.OK, "") == ((b"grpc-status", b"0"),)
