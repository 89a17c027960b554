"""gRPC's own layer: messages in pieces, time-outs, metadata, status messages, heads of calls."""

from __future__ import annotations

import gzip
from collections.abc import Hashable

from penstock.protocols import grpc
from penstock.protocols.heads import RequestHead
from tests.fuzz.choices import Choices, pieces

MOST = 1000


def messages(parts: list[bytes], encoding: bytes | None) -> tuple[list[bytes], str]:
    """What a reader gives before it ends, and how it ends."""
    reader = grpc.MessageReader(MOST, encoding)
    found: list[bytes] = []
    try:
        for part in parts:
            found += reader.feed(part)
        reader.finish()
    except grpc.GrpcError as error:
        return found, str(error)
    return found, ""


def of_messages(choices: Choices) -> Hashable:
    encoding = choices.of((None, grpc.IDENTITY, grpc.GZIP))
    pattern = choices.octet()
    data = choices.rest()
    whole, end = messages([data], encoding)
    cut, cut_end = messages(pieces(data, pattern), encoding)
    assert end == cut_end
    assert whole == cut if not end else whole == cut[: len(whole)]
    assert all(len(message) <= MOST for message in cut)
    if not end and encoding is None:
        assert b"".join(map(grpc.encode_message, whole)) == data
    single = grpc.unary_message(data, MOST)
    if single is not None:
        assert ([single], "") == (whole, end)
    return end, len(whole) > 0


def of_timeout(choices: Choices) -> Hashable:
    try:
        seconds = grpc.parse_timeout(choices.rest())
    except grpc.GrpcError as error:
        return str(error)
    assert 0 <= seconds < 1e9 * 3600
    grpc.parse_timeout(grpc.encode_timeout(seconds))
    return True


def of_metadata(choices: Choices) -> Hashable:
    headers = []
    while choices:
        name = choices.of((b"x-bin", b"x", b"grpc-x", b"user-agent", b"\xff-bin", b"y-bin"))
        headers.append((name, choices.some(choices.octet() % 32)))
    try:
        found = grpc.decode_metadata(tuple(headers))
    except grpc.GrpcError as error:
        return str(error)
    try:
        again = grpc.decode_metadata(grpc.encode_metadata(found))
    except ValueError as error:
        return type(error).__name__
    # Commas join values, and texts lose nothing.
    assert again == found
    return len(found) > 0


def of_status(choices: Choices) -> Hashable:
    raw = choices.rest()
    text = grpc.decode_status_message(raw)
    encoded = grpc.encode_status_message(text)
    again = grpc.decode_status_message(encoded)
    # A long text is cut, perhaps within its last letter.
    assert again == text or (len(encoded) > 4000 and text.startswith(again.rstrip("\ufffd")))
    status = grpc.read_status({b"grpc-status": raw[:3], b"grpc-message": raw[3:]})
    return None if status is None else status[0]


def of_request(choices: Choices) -> Hashable:
    fields = [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
    names = (b"content-type", b"te", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding")
    method = choices.of(("POST", "GET"))
    path = b"/" + choices.some(choices.octet() % 32)
    while choices:
        fields.append((choices.of(names), choices.some(choices.octet() % 32)))
    head = RequestHead(
        method, path, tuple(fields), version="2", authority=b"a", content_length=None
    )
    try:
        grpc.check_request(head)
    except grpc.GrpcError as error:
        return str(error)[:40]
    return True


PARTS = (of_messages, of_timeout, of_metadata, of_status, of_request)


def run(data: bytes) -> Hashable:
    choices = Choices(data)
    part = choices.of(PARTS)
    return part.__name__, part(choices)


SEEDS = [
    b"\x00\x00\x00" + grpc.encode_message(b"abc") + grpc.encode_message(b""),
    b"\x00\x02\x11" + grpc.encode_message(b"abc" * 100, compressed=True),
    b"\x00\x02\x22" + b"\x01\x00\x00\x00\x3c" + gzip.compress(bytes(100_000)),
    b"\x00\x01\x33" + b"\x00\xff\xff\xff\xff",
    b"\x01100m",
    b"\x0199999999H",
    b"\x02\x00\x04YWJj\x01\x03abc",
    b"\x03%e2%82%ac %",
    b"\x030okay",
    b"\x04\x00\x0apkg.S/Call\x02\x0310S\x03\x04gzip",
]
WORDS = [
    b"gzip",
    b"identity",
    b"YQ==",
    b"YQ,YQ",
    b"%25",
    b"%zz",
    b"/",
    b"H",
    b"m",
    b"\x01\x00\x00\x00",
]
