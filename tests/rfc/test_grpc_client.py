"""gRPC's documents, requirements on clients: the requests they send and the replies they accept.

*gRPC over HTTP2* with its sister documents on compression, statuses, health checking and keepalive;
tested with our client and a hand-made server."""

import gzip
import re
import socket
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from penstock.client import keepalive
from penstock.protocols import grpc
from penstock.protocols.status import GrpcCode
from tests.kit import frames as f
from tests.kit.frames import message
from tests.kit.grpc_server import HEAD, OK, ScriptedServer, answer, only, scripted_server, status
from tests.kit.http2 import GRPC
from tests.rfc.sentences import NO_TIME, Sentences, Step

table = Sentences()
rules, add = table.rules, table.add


def sends(
    body: bytes = b"ask", seconds: float | None = 5.0, check: Callable[..., bool] = bool
) -> Step:
    """A first call; ``check`` gets the fields of its head."""

    def step(peer: ScriptedServer) -> bool:
        peer.first(body, seconds)
        content = peer.request()
        assert content.messages == [body]
        return check(dict(content.heads[0]))

    return step


def succeeds(*parts: bytes, stream: int = 1) -> Step:
    """The call that gets this reply succeeds."""
    return lambda peer: peer.call_answered_with(*parts, stream=stream).reply() == b"good"


def fails(code: GrpcCode, *texts: str, by: bytes, stream: int = 1) -> Step:
    """The call that gets this reply fails with this status, and its message has these texts."""

    def step(peer: ScriptedServer) -> None:
        failure = peer.call_answered_with(by, stream=stream).failure()
        assert failure.status is code
        assert failure.args[1]
        for text in texts:
            assert text in failure.args[1]

    return step


def in_turn(rows: list[tuple[GrpcCode, Callable[[int], bytes]]]) -> list[Step]:
    """Failures on consecutive streams."""
    return [
        fails(code, by=make(2 * index + 1), stream=2 * index + 1)
        for index, (code, make) in enumerate(rows)
    ]


# Requests


def has_a_call_s_fields(head: dict[bytes, bytes]) -> bool:
    assert (head[b":method"], head[b":scheme"]) == (b"POST", b"http")
    assert re.fullmatch(rb"/[\w.]+/\w+", head[b":path"])
    assert head[b"te"] == b"trailers"  # codespell:ignore te
    assert head[b"content-type"].startswith(b"application/grpc")
    assert head[b"user-agent"].startswith(b"penstock")
    # It can decode no compressed message, and sends none.
    assert head[b"grpc-accept-encoding"] == b"identity"
    return not {b"grpc-timeout", b"grpc-encoding"} & set(head)


def has_a_timeout(head: dict[bytes, bytes]) -> bool:
    names = list(head)
    # Reserved fields come first, then the timeout.
    assert names.index(b"grpc-timeout") == sum(name.startswith(b":") for name in names)
    assert not any(name.startswith(b":") for name in names[4:])
    raw = head[b"grpc-timeout"]
    assert re.fullmatch(rb"[1-9][0-9]{0,7}[HMSmun]", raw)
    return 3.0 < grpc.parse_timeout(raw) <= 4.1


def ordered(*order: str) -> Step:
    return lambda peer: peer.request().order == list(order)


def whole_large_message(peer: ScriptedServer) -> None:
    order = peer.request().order
    assert order == ["HEADERS", *["DATA"] * (len(order) - 2), "END"]


rules(
    ("Requests: a client's head defines the call", sends(seconds=None, check=has_a_call_s_fields)),
    ("Requests: a client sends the remaining time", sends(seconds=4.0, check=has_a_timeout)),
    (
        "Requests: a client sends a message with its prefix and ends with it",
        sends(b"ask"),
        ordered("HEADERS", "DATA", "END"),
    ),
    ("Requests: a client sends an empty message, too", sends(b"")),
    (
        "Requests: a large message is sent as its windows allow",
        sends(b"x" * 100_000),
        whole_large_message,
    ),
)

# Responses

FIELDS = (
    (b":status", b"200"),
    (b"grpc-accept-encoding", b"gzip"),
    (b"content-type", b"application/grpc+proto"),
    (b"x-a", b"\xc3\xa4"),
    (b"x-a", b""),
    (b"x-bin", b"no base64!"),
)
BEGUN, END = f.headers(1, f.block(HEAD)), f.block(OK)
EIGHT_KIB = tuple((b"x-%d" % number, b"v" * 964) for number in range(8))
INTERIM = f.request(1, [(b":status", b"103"), (b"grpc-status", b"9")], end=False)
GZIP = (*HEAD, (b"grpc-encoding", b"gzip"))
IDENTITY = (*HEAD, (b"grpc-encoding", b"identity"))
PACKED = message(gzip.compress(b"good"), flag=1)
UNKNOWN = GrpcCode.UNKNOWN
rules(
    ("Responses: a client accepts a head, a message and trailers", succeeds(answer(1))),
    (
        "Responses: a client accepts any kind of application/grpc and any metadata",
        succeeds(answer(1, trailers=(*OK, *FIELDS[3:]), head=FIELDS)),
    ),
    (
        "Responses: a client accepts a message in frames of any size",
        succeeds(
            BEGUN,
            *[f.data(1, bytes([octet])) for octet in message(b"good")],
            f.headers(1, END, end=True),
        ),
    ),
    (
        "Responses: a client accepts trailers in CONTINUATION frames",
        succeeds(
            BEGUN + f.data(1, message(b"good")) + f.headers(1, END[:4], end=True, whole=False),
            f.continuation(1, END[4:]),
        ),
    ),
    (
        "Responses: a client accepts an error that is trailers only",
        fails(
            GrpcCode.FAILED_PRECONDITION,
            "no",
            by=only(1, *HEAD, *status(9, (b"grpc-message", b"no"))),
        ),
    ),
    (
        "Responses: a client accepts every status after messages",
        *in_turn(
            [
                (GrpcCode(code), lambda n, code=code: answer(n, trailers=status(code)))
                for code in range(1, 17)
            ]
        ),
    ),
    (
        "Responses: a status that cannot be parsed is UNKNOWN",
        *in_turn(
            [
                (UNKNOWN, lambda n, raw=raw: answer(n, trailers=((b"grpc-status", raw),)))
                for raw in (b"", b"17", b"-1", b"OK", b"0x0", b"999999999999")
            ]
        ),
    ),
    (
        "Responses: a message of a status is decoded, even if it is encoded wrongly",
        *[
            fails(
                GrpcCode.FAILED_PRECONDITION,
                text,
                by=only(2 * index + 1, *HEAD, *status(9, (b"grpc-message", raw))),
                stream=2 * index + 1,
            )
            for index, (raw, text) in enumerate(
                {
                    b"50 %25 of %C3%A4%0a": "50 % of ä\n",
                    b"100% %zz sure": "sure",
                    b"sure %": "sure",
                    b"%C3 sure": "sure",
                    b"\xff sure": "sure",
                    b"%c3%28 sure": "sure",
                }.items()
            )
        ],
    ),
    (
        "Responses: a reply without a status gets one from the client",
        fails(UNKNOWN, by=answer(1, trailers=((b"x", b"1"),))),
        fails(UNKNOWN, by=only(3, *HEAD), stream=3),
        fails(
            GrpcCode.INTERNAL,
            by=f.headers(5, f.block(HEAD)) + f.data(5, message(b"good"), end=True),
            stream=5,
        ),
    ),
    (
        "Responses: a reply that is not gRPC gets a status from the client",
        *[
            fails(
                UNKNOWN,
                kind.decode(),
                by=answer(
                    2 * index + 1, b"<html>", (), ((b":status", b"200"), (b"content-type", kind))
                ),
                stream=2 * index + 1,
            )
            for index, kind in enumerate((b"text/html", b"application/json", b""))
        ],
    ),
    ("Responses: interim responses are ignored", succeeds(INTERIM, INTERIM, answer(1))),
    (
        "Responses: an end in the middle of a message is a failure",
        fails(GrpcCode.INTERNAL, by=answer(1, message(b"good")[:-1])),
    ),
    (
        "Responses: heads of 8 KiB are accepted",
        succeeds(answer(1, trailers=(*OK, *EIGHT_KIB), head=(*HEAD, *EIGHT_KIB))),
    ),
    (
        "Compression: a compressed reply that was not offered is INTERNAL",
        # The message names the encoding that was used and the supported ones.
        fails(GrpcCode.INTERNAL, "gzip", "identity", by=answer(1, PACKED, head=GZIP)),
        fails(GrpcCode.INTERNAL, by=answer(3, PACKED), stream=3),
        fails(GrpcCode.INTERNAL, by=answer(5, PACKED, head=IDENTITY), stream=5),
    ),
    (
        "Compression: a plain message with an encoding in the head is plain",
        succeeds(answer(1, head=GZIP)),
    ),
)

# HTTP statuses

HTML = (b"content-type", b"text/html")
CODES = {
    400: GrpcCode.INTERNAL,
    401: GrpcCode.UNAUTHENTICATED,
    403: GrpcCode.PERMISSION_DENIED,
    404: GrpcCode.UNIMPLEMENTED,
    429: GrpcCode.UNAVAILABLE,
    502: GrpcCode.UNAVAILABLE,
    503: GrpcCode.UNAVAILABLE,
    504: GrpcCode.UNAVAILABLE,
    **dict.fromkeys((204, 301, 405, 408, 413, 418, 431, 500, 501, 505), UNKNOWN),
}
WITH_STATUS = f.block([(b":status", b"503"), GRPC, *status(7)])
rules(
    (
        "HTTP statuses: a reply without a grpc-status gets one from its HTTP status",
        *in_turn(
            [
                (code, lambda n, number=number: only(n, (b":status", b"%d" % number), HTML))
                for number, code in CODES.items()
            ]
        ),
    ),
    (
        "HTTP statuses: a body changes nothing",
        fails(
            GrpcCode.UNAVAILABLE,
            by=f.request(1, [(b":status", b"503"), HTML], end=False)
            + f.data(1, b"<html>", end=True),
        ),
    ),
    (
        "HTTP statuses: a grpc-status has priority, with a body and without",
        fails(GrpcCode.PERMISSION_DENIED, by=f.headers(1, WITH_STATUS, end=True)),
        fails(
            GrpcCode.PERMISSION_DENIED,
            by=f.headers(3, WITH_STATUS) + f.data(3, b"", end=True),
            stream=3,
        ),
    ),
)

# Errors, retries, cancellation

RESETS = {
    **dict.fromkeys(
        (
            f.NO_ERROR,
            f.PROTOCOL_ERROR,
            f.INTERNAL_ERROR,
            f.FLOW_CONTROL_ERROR,
            f.SETTINGS_TIMEOUT,
            f.FRAME_SIZE_ERROR,
            f.COMPRESSION_ERROR,
            f.CONNECT_ERROR,
        ),
        (GrpcCode.INTERNAL, ""),
    ),
    f.CANCEL: (GrpcCode.CANCELLED, ""),
    f.ENHANCE_YOUR_CALM: (GrpcCode.RESOURCE_EXHAUSTED, "bandwidth"),
    f.INADEQUATE_SECURITY: (GrpcCode.PERMISSION_DENIED, "secure"),
}
rules(
    (
        "Errors: each code of RST_STREAM means a status",
        *[
            fails(code, text, by=f.reset(2 * index + 1, reset), stream=2 * index + 1)
            for index, (reset, (code, text)) in enumerate(RESETS.items())
        ],
    ),
    (
        "Errors: RST_STREAM after a part of the reply ends the call",
        fails(
            GrpcCode.INTERNAL,
            by=BEGUN + f.data(1, message(b"good")) + f.reset(1, f.INTERNAL_ERROR),
        ),
    ),
    (
        "Health checking: a server without the health service is UNIMPLEMENTED",
        fails(GrpcCode.UNIMPLEMENTED, by=only(1, *HEAD, *status(12))),
    ),
)


@add("Early Server Closure: a client accepts a reply before its request has ended, and resets it")
def _(peer: ScriptedServer) -> None:
    outgoing = peer.start(b"x" * (1 << 25))  # more than the windows allow
    peer.accept()
    peer.link.until(lambda: len(peer.link.content(1).body) > 1 << 23)
    peer.link.send(only(1, *HEAD, *status(8)))
    assert outgoing.code() is GrpcCode.RESOURCE_EXHAUSTED
    assert peer.request().reset == f.NO_ERROR


@add("Idempotency and Retries: a refused stream is retried")
def _(peer: ScriptedServer) -> None:
    outgoing = peer.call_answered_with(f.reset(1, f.REFUSED_STREAM))
    peer.request(3)
    peer.link.send(answer(3))
    assert outgoing.reply() == b"good"


@add("Idempotency and Retries: a stream that is always refused is UNAVAILABLE")
def _(peer: ScriptedServer) -> None:
    outgoing = peer.first()
    stream = 1
    while outgoing.outcomes.empty() and stream < 20:
        peer.link.send(f.reset(stream, f.REFUSED_STREAM))
        stream += 2
        try:
            peer.link.socket.settimeout(NO_TIME)
            peer.request(stream)
        except TimeoutError:
            break
    failure = outgoing.failure()
    assert (failure.status, failure.sent) == (GrpcCode.UNAVAILABLE, False)


@add("Idempotency and Retries: a call that may have begun is not retried")
def _(peer: ScriptedServer) -> None:
    peer.call_answered_with(answer(1)).reply()
    outgoing = peer.start()
    peer.request(3)
    peer.link.socket.close()
    assert outgoing.code() is GrpcCode.UNAVAILABLE
    again = peer.start(b"again")
    peer.accept()
    assert peer.request(1).messages == [b"again"]
    peer.link.send(answer(1))
    assert again.reply() == b"good"


@add("Client Cancellation: a cancelled call sends RST_STREAM with CANCEL")
def _(peer: ScriptedServer) -> None:
    outgoing = peer.first()
    peer.channel.cancel(outgoing.call)
    assert outgoing.code() is GrpcCode.CANCELLED
    assert peer.link.reset(1) == f.CANCEL


@add("Client Cancellation: a passed deadline cancels the call; a later reply is dropped")
def _(peer: ScriptedServer) -> None:
    began = time.monotonic()
    outgoing = peer.first(seconds=0.2)
    assert outgoing.code() is GrpcCode.DEADLINE_EXCEEDED
    assert time.monotonic() - began >= 0.2
    assert peer.link.reset(1) == f.CANCEL
    peer.link.send(answer(1))
    peer.link.alive()
    assert outgoing.outcomes.empty()
    assert peer.call_answered_with(answer(3), stream=3).reply() == b"good"


# Connection management


@add("GOAWAY: calls that the server has not accepted are retried on another connection")
def _(peer: ScriptedServer) -> None:
    taken = peer.first()
    late = peer.start()
    peer.request(3)
    first = peer.link
    first.send(f.goaway(1))
    peer.accept()
    assert peer.request(1).messages == [b"ask"]
    peer.link.send(answer(1))
    assert late.reply() == b"good"
    first.send(answer(1))
    assert taken.reply() == b"good"
    first.until_closed()


@add("GOAWAY: no new call is sent on a connection after its GOAWAY")
def _(peer: ScriptedServer) -> None:
    taken = peer.first()
    first = peer.link
    first.send(f.goaway(f.MOST))
    first.alive()
    new = peer.start()
    peer.accept()
    peer.request(1)
    peer.link.send(answer(1))
    assert new.reply() == b"good"
    first.send(answer(1))
    assert taken.reply() == b"good"


@add("GOAWAY: with an error the calls that were not accepted are UNAVAILABLE or retried")
def _(peer: ScriptedServer) -> None:
    outgoing = peer.first()
    peer.link.send(f.goaway(0, f.ENHANCE_YOUR_CALM, b"too_many_pings"))
    peer.accept()
    peer.request(1)
    peer.link.send(answer(1))
    assert outgoing.reply() == b"good"


@add("PING: a client's acknowledgement has the same eight bytes")
def _(peer: ScriptedServer) -> None:
    peer.first()
    for payload in (b"\0" * 8, b"\xff" * 8, b"whatever"):
        peer.link.alive(payload)
    assert all(one.ack for one in peer.link.sent(f.PING))


@add("PING: calls fail with UNAVAILABLE if a ping is not acknowledged")
def _(peer: ScriptedServer) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keepalive, "PING_AFTER", (0.1,))
        patch.setattr(keepalive, "PING_TIMEOUT", 0.2)
        outgoing = peer.first()
        assert not peer.link.frame(f.PING).ack
        failure = outgoing.failure()
    assert failure.status is GrpcCode.UNAVAILABLE
    assert "silent" in failure.args[1]


@add("Keepalive: without calls there are no pings")
def _(peer: ScriptedServer) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keepalive, "PING_AFTER", (0.05,))
        assert peer.call_answered_with(answer(1)).reply() == b"good"
        peer.link.socket.settimeout(NO_TIME)
        with pytest.raises(TimeoutError):
            peer.link.frame(f.PING)


@add("Keepalive: pings without data between them are as rare as servers require")
def _(peer: ScriptedServer) -> None:
    keeper = keepalive.Keepalive(0.0)
    at = 0.0
    sent: list[float] = []
    while len(sent) < 6:
        step = keeper.poll(at)
        if step is keepalive.KeepaliveStep.PING:
            sent.append(at)
            keeper.last_received = at = at + 0.01
        else:
            assert isinstance(step, float)
            at += step
    assert sum(second - first < 300 for first, second in pairwise(sent)) <= 2


@add("Connection failure: every call of the connection is UNAVAILABLE")
def _(peer: ScriptedServer) -> None:
    calls = [peer.first(), peer.start()]
    peer.request(3)
    linger = b"\x01\0\0\0\0\0\0\0"
    peer.link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    peer.link.socket.close()
    assert {outgoing.code() for outgoing in calls} == {GrpcCode.UNAVAILABLE}


@add("User Agents: a client sends its user-agent")
def _(peer: ScriptedServer) -> None:
    peer.first()
    assert dict(peer.request().heads[0])[b"user-agent"] == b"penstock"


test_sentence = table.tested(scripted_server)
