"""Encoding and decoding of baidu_std."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import TooLarge, Undecodable, UnknownEncoding
from penstock.protocols import baidu_std as codec
from penstock.protocols.baidu_std import (
    MAX_META_BYTES,
    Compression,
    MessageBegun,
    Meta,
    MethodCall,
    ProtocolBroken,
    Reader,
)
from tests.kit import baidu_std as kit

# Bytes sent by paddle_serving_client 0.9.0, which contains brpc, for
# predict(feed={"x": numpy.arange(13, dtype="float32") / 13}, fetch=["price"], log_id=77).
RECORDED = bytes.fromhex(
    "50525043000000a6000000590a4f0a4062616964752e706164646c655f73657276696e672e707265646963746f722e"
    "67656e6572616c5f6d6f64656c2e47656e6572616c4d6f64656c536572766963651209696e666572656e6365180018"
    "002082808080200a42123400000000d9899d3dd9891d3ec54e6c3ed9899d3e4fecc43ec54eec3e9ed8093fd9891d3f"
    "143b313f4fec443f8a9d583fc54e6c3f50015a02010d6a017872017812057072696365204d"
)

# Answers of a server of that package's brpc to requests with the numbers 2**40 and 9.
RECORDED_GOOD = bytes.fromhex(
    "50525043000000380000000d120208001800208080808080200a290a16120400002a4250015a0201016a0179720570"
    "72696365120f67656e6572616c5f696e6665725f30"
)
RECORDED_BAD = bytes.fromhex(
    "50525043000000380000003812320"
    "8e907122d5b3132372e302e302e313a31383737395d5b45313030315d4661696c20746f2066696e64207365727669"
    "63653d18002009"
)


def read(pieces: Sequence[bytes]) -> tuple[list[tuple[Meta, bytes]], str]:
    """The messages in these pieces, and the error after them."""
    reader = Reader()
    found: list[tuple[Meta, bytes]] = []
    try:
        for piece in pieces:
            reader.receive(piece)
            while (event := reader.next_event()) is not None:
                if isinstance(event, MessageBegun):
                    found.append((event.meta, event.payload or b""))
                    assert event.payload is None or len(event.payload) == event.size
                    missing = event.size if event.payload is None else 0
                else:
                    meta, payload = found[-1]
                    found[-1] = (meta, payload + event.data)
                    missing -= len(event.data)
                    assert event.ended == (not missing)
                assert reader.missing == missing
    except ProtocolBroken as error:
        return found, str(error)
    return found, ""


def only(data: bytes) -> tuple[Meta, bytes]:
    ((meta, payload),), problem = read([data])
    assert not problem
    return meta, payload


def test_a_request_recorded_from_the_original_client_is_read() -> None:
    meta, payload = only(RECORDED)
    assert meta.call == MethodCall(kit.GENERAL, "inference", 0, 0)
    assert (meta.correlation_id, meta.compression, meta.attachment_bytes) == (0x200000002, 0, 0)
    assert (meta.result, meta.is_chunk, meta.opens_stream) == (None, False, False)
    assert payload == RECORDED[12 + 89 :]


def test_answers_recorded_from_a_brpc_server_are_read() -> None:
    meta, payload = only(RECORDED_GOOD)
    assert (meta.call, meta.result, meta.correlation_id) == (None, (0, ""), 2**40)
    assert payload == RECORDED_GOOD[12 + 13 :]
    meta, payload = only(RECORDED_BAD)
    text = "[127.0.0.1:18779][E1001]Fail to find service="
    assert (meta.result, meta.correlation_id, payload) == ((1001, text), 9, b"")


def test_all_fields_of_a_request_are_read() -> None:
    encoded = kit.request(
        b"body",
        service="a.B",
        method="c",
        id=2**64 - 1,
        compress=2,
        attachment=3,
        log_id=-5,
        timeout_ms=250,
        more=kit.field(7, b"secret") + kit.field(9, b"fields of the user's") + kit.field(100, 1),
    )
    meta, payload = only(encoded)
    assert meta.call == MethodCall("a.B", "c", -5, 250)
    assert (meta.correlation_id, meta.compression, meta.attachment_bytes) == (2**64 - 1, 2, 3)
    assert payload == b"body"
    assert only(kit.request(more=kit.field(6, b"")))[0].is_chunk
    assert only(kit.request(more=kit.field(8, b"")))[0].opens_stream
    assert only(kit.request(attachment=-1))[0].attachment_bytes == -1
    assert only(kit.request(timeout_ms=-1))[0].call == MethodCall(kit.GENERAL, "inference", 0, -1)


def test_answers_and_requests_are_distinguished() -> None:
    meta, payload = only(kit.answer(7, b"", 1001, "no such service"))
    assert (meta.call, meta.correlation_id, payload) == (None, 7, b"")
    assert meta.result == (1001, "no such service")
    assert only(kit.frame(kit.field(2, b"") + kit.field(4, 1)))[0].result == (0, "")


def test_encoded_messages_have_the_documented_fields() -> None:
    call = MethodCall("a.B", "c", 9, 1500)
    written = kit.parse(*split(codec.encode_request(call, 2**40, 5, Compression.GZIP) + b"abcde"))
    assert written.call == {1: b"a.B", 2: b"c", 3: 9, 8: 1500}
    assert (written.id, written.fields[3], written.payload) == (2**40, 2, b"abcde")
    plain = kit.parse(*split(codec.encode_request(MethodCall("S", "m"), 0, 0)))
    assert (plain.call, plain.fields.get(3), plain.id) == ({1: b"S", 2: b"m"}, None, 0)
    good = kit.parse(*split(codec.encode_response(2**64 - 1, 3) + b"abc"))
    assert (good.id, good.code, good.text, good.payload) == (2**64 - 1, 0, "", b"abc")
    bad = kit.parse(*split(codec.encode_failure(4, 2003, "stopping\ud800")))
    assert (bad.id, bad.code, bad.text, bad.payload) == (4, 2003, "stopping?", b"")
    long = kit.parse(*split(codec.encode_failure(4, 1003, "é" * 20_000)))
    assert 1000 < len(long.text) < MAX_META_BYTES
    assert {*long.text} == {"é"}


def split(message: bytes) -> tuple[bytes, bytes]:
    return message[:12], message[12:]


@pytest.mark.parametrize("size", [2**31, 2**32])
def test_a_message_that_is_too_large_is_not_encoded(size: int) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        codec.encode_response(1, size)
    with pytest.raises(ValueError, match="cannot be sent"):
        codec.encode_request(MethodCall("S", "m" * MAX_META_BYTES), 1, 0)


MESSAGES = st.lists(
    st.builds(
        kit.request,
        st.binary(max_size=40),
        id=st.integers(0, 2**64 - 1),
        timeout_ms=st.none() | st.integers(1, 9),
        attachment=st.none() | st.integers(0, 50),
    ),
    max_size=4,
)


@given(MESSAGES, st.data())
def test_messages_split_at_any_offsets_are_read(messages: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(messages)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=9)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert read([each for each in pieces if each]) == read([whole])
    assert len(read([whole])[0]) == len(messages)
    assert read([bytes([octet]) for octet in whole]) == read([whole])


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda meta: kit.frame(meta, b"ab")))
def test_any_bytes_are_read_as_messages_or_one_error(data: bytes) -> None:
    found, problem = read([data])
    assert (found, problem) == read([bytes([octet]) for octet in data])


NO_NAME = "the meta is malformed: it does not name a service and a method"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"GET / HTTP/1.1\r\n", "a message does not begin with PRPC"),
        (b"PRPX", "a message does not begin with PRPC"),
        (kit.request() + b"PR\0", "a message does not begin with PRPC"),
        (b"PRPC\0\0\0\1\0\0\0\2", "a meta of 2 bytes is too large"),
        (b"PRPC\0\1\0\0\0\0\x40\1", "a meta of 16385 bytes is too large"),
        (kit.frame(b"\xff"), "the meta is malformed: the message is cut off"),
        (kit.frame(kit.field(1, b"\x0a\x05ab")), "the meta is malformed: the message is cut off"),
        (kit.request(service=None), NO_NAME),
        (kit.request(method=None), NO_NAME),
        (kit.frame(kit.field(1, b"\x0a\x01\xff\x12\x01m")), "the meta is malformed: 'utf-8' codec"),
        (kit.frame(b"\x48\x01" * 1001), "the meta is malformed: there are too many fields"),
    ],
)
def test_bytes_that_are_no_message_are_an_error(data: bytes, problem: str) -> None:
    good = kit.request(b"good")
    found, encoded = read([good + data])
    assert encoded.startswith(problem)
    assert found[0][1] == b"good"
    assert (found, encoded) == read([bytes([octet]) for octet in good + data])


def test_a_meta_at_the_limit_and_an_empty_message_are_read() -> None:
    unused = MAX_META_BYTES - len(kit.request_meta(more=kit.field(100, b"x" * 9000)))
    meta, _ = only(kit.request(more=kit.field(100, b"x" * (9000 + unused))))
    assert meta.call is not None
    assert only(kit.frame(b"")) == (Meta(), b"")


@pytest.mark.parametrize("size", [10, 4_000_000_000])
def test_memory_is_used_for_received_bytes_only(size: int) -> None:
    reader = Reader()
    meta = kit.request_meta()
    reader.receive(kit.frame(meta, body=len(meta) + size))
    event = reader.next_event()
    assert isinstance(event, MessageBegun)
    assert (event.size, event.payload, reader.kept, reader.missing) == (size, None, 0, size)
    assert reader.next_event() is None
    assert not reader.is_between
    reader.receive(b"0123")
    assert reader.next_event() == (b"0123", False)
    assert (reader.kept, reader.missing) == (0, size - 4)


# Compression.


@pytest.mark.parametrize("kind", [0, 2, 3])
def test_payloads_are_compressed_and_decompressed(kind: int) -> None:
    data = b"some text " * 1000
    compressed = codec.compress(Compression(kind), data)
    assert codec.decompress(kind, compressed, 20_000) == data
    assert {0: bytes, 2: gzip.decompress, 3: zlib.decompress}[kind](compressed) == data
    by_library = {0: bytes, 2: gzip.compress, 3: zlib.compress}[kind](data)
    assert codec.decompress(kind, by_library, 20_000) == data


@pytest.mark.parametrize(
    ("kind", "data", "error", "text"),
    [
        (4, b"", UnknownEncoding, "the compression 4 is not supported"),
        (-1, b"", UnknownEncoding, "the compression -1 is not supported"),
        (2, b"no", Undecodable, "gzip"),
        (3, b"no", Undecodable, "the data is not zlib"),
        (2, gzip.compress(b"a", mtime=0)[:-1], Undecodable, "the gzip data is cut short"),
        (3, zlib.compress(b"a") + b"b", Undecodable, "the zlib data has bytes behind its end"),
        (3, zlib.compress(b"a" * 2_000), TooLarge, "the message expands beyond the limit of 1000"),
        (2, gzip.compress(bytes(9 << 20), mtime=0), TooLarge, "the message expands"),
    ],
)
def test_invalid_or_too_large_compressed_data_is_refused(
    kind: int, data: bytes, error: type[Exception], text: str
) -> None:
    most = 64 << 20 if len(data) > 1000 else 1000
    with pytest.raises(error, match=text):
        codec.decompress(kind, data, most)


def test_snappy_is_supported_if_its_library_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Made by hand: 20 bytes, a literal of two of them, and copies from two bytes before.
    compressed = b"\x14" + b"\x04ab" + b"\x46\x02\x00"
    assert codec.decompress(1, compressed, 20) == b"ab" * 10
    data = b"some text " * 1000
    assert codec.decompress(1, codec.compress(Compression.SNAPPY, data), 10_000) == data
    for bad in (b"", b"\xff", b"\x14\x04a", compressed + b"\x00"):
        with pytest.raises(Undecodable, match="snappy"):
            codec.decompress(1, bad, 100)
    with pytest.raises(TooLarge, match="expands beyond the limit of 19"):
        codec.decompress(1, compressed, 19)
    with pytest.raises(TooLarge, match="expands to more than 200 times"):
        codec.decompress(1, b"\xff\xff\xff\x7f" + compressed, 1 << 40)
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(UnknownEncoding, match=r"penstock-serving\[snappy\]"):
        codec.decompress(1, compressed, 20)


def test_lz4_is_refused_for_compression() -> None:
    with pytest.raises(UnknownEncoding, match="lz4"):
        codec.compress(Compression.LZ4, b"")
