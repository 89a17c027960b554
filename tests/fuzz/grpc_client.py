"""The client's reading of an answer: heads, messages in pieces, trailers and resets of a server."""

from __future__ import annotations

from collections.abc import Hashable

from penstock.client import answers
from penstock.client.answers import Outcome
from penstock.client.call import Call
from penstock.client.errors import CallFailed
from penstock.protocols.grpc import encode_message
from penstock.protocols.heads import ResponseHead
from penstock.protocols.status import GrpcCode
from tests.fuzz.choices import Choices, pieces

STATUSES = (200, 200, 200, 204, 301, 400, 401, 403, 404, 429, 431, 500, 502, 503, 504, 599)
NAMES = (b"grpc-status", b"grpc-message", b"grpc-retry-pushback-ms", b"content-type", b"x-a")


def fields_of(choices: Choices) -> dict[bytes, bytes]:
    """Some fields; the likely ones can be had with one octet."""
    found = {}
    for _ in range(choices.octet() % 5):
        kind = choices.octet()
        if kind < 0x40:
            found[b"grpc-status"] = b"%d" % (kind % 20)
        elif kind < 0x60:
            found[b"content-type"] = (b"application/grpc", b"application/grpc+proto")[kind & 1]
        else:
            found[NAMES[kind % 5]] = choices.some(choices.octet() % 40)
    return found


def of_body(parts: list[bytes], trailers: dict[bytes, bytes] | None) -> Outcome | None:
    """What becomes of a call that hears this."""
    call = Call(b"", None, lambda outcome: None)
    for part in parts:
        failure = call.take(part)
        if failure is not None:
            return failure
    return None if trailers is None else call.outcome(trailers)


def same(one: Outcome | None, other: Outcome | None) -> bool:
    """Which of several faults of a body is found first may depend on the cut."""
    if isinstance(one, CallFailed) and isinstance(other, CallFailed):
        return (one.retryable, one.sent) == (other.retryable, other.sent)
    return one == other


def seen(outcome: Outcome | None) -> Hashable:
    """Check an outcome's own promises."""
    if isinstance(outcome, CallFailed):
        assert outcome.status is not GrpcCode.OK
        assert str(outcome)
        return outcome.status, outcome.retryable, outcome.sent
    return None if outcome is None else len(outcome) > 0


def run(data: bytes) -> Hashable:
    choices = Choices(data)
    how = choices.octet()
    if how & 3 == 3:
        code = int.from_bytes(choices.some(4), "big")
        return seen(answers.of_reset(code, "text", by_peer=bool(how & 4)))
    status = choices.of(STATUSES)
    fields = fields_of(choices)
    head = ResponseHead(status, tuple(fields.items()))
    if how & 3 == 2:
        return "head", seen(answers.of_whole_head(head))
    failure = answers.of_head(head)
    if failure is not None:
        return "no head", seen(failure)
    trailers = fields_of(choices)
    pattern = choices.octet()
    body = choices.rest()
    once = of_body([body], trailers)
    cut = of_body(pieces(body, pattern), trailers)
    assert same(once, cut), f"it depends on how the bytes are cut: {once!r} {cut!r}"
    if isinstance(once, bytes):
        assert encode_message(once) == body
        assert trailers[b"grpc-status"] == b"0"
    return "body", seen(once)


def seed(trailers: bytes, body: bytes, head: bytes = b"\x01\x40") -> bytes:
    return b"\x00\x00" + head + trailers + b"\x15" + body


SEEDS = [
    seed(b"\x01\x00", encode_message(b"abc")),
    seed(b"\x01\x00", encode_message(b"")),
    seed(b"\x01\x00", encode_message(b"abc", compressed=True)),
    seed(b"\x01\x00", encode_message(b"a") * 2),
    seed(b"\x01\x0e", b""),
    seed(b"\x02\x0e\x61\x06%41bc%", b""),
    seed(b"\x00", encode_message(b"a")),
    seed(b"\x01\x00", encode_message(b"abc")[:-1]),
    seed(b"\x01\x00", b"\x00\xff\xff\xff\xff"),
    b"\x00\x0d\x00",
    b"\x02\x00\x02\x05\x40",
    b"\x02\x00\x03\x05\x40\x62\x031000",
    b"\x03\x00\x00\x00\x07",
    b"\x07\x00\x00\x00\x08",
]
WORDS = [encode_message(b"a"), encode_message(b""), b"\x01\x00\x00\x00\x00", b"%41", b"\x00\x00"]
