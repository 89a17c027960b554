"""The protocol's document below "Responses": what our client must do on a connection."""

import socket
import time
from itertools import pairwise

import pytest
from hyperframe import frame as frames

from penstock.client import keepalive
from penstock.protocols.status import GrpcCode
from tests.rfc import wire
from tests.rfc.grpc_link import NO_TIME, Case, Heard, Sentences, message
from tests.rfc.grpc_peer import HEAD, Called, answer, called, only, status

table = Sentences()
add = table.add


@add("Early Server Closure: a client takes an answer before its request has ended")
def _(peer: Called) -> None:
    asked = peer.start(b"x" * (1 << 25))  # more than the windows
    peer.accept()
    peer.link.until(lambda: len(peer.link.streams.get(1, Heard()).data) > 1 << 23)
    peer.link.send(only(1, *HEAD, *status(8)))
    assert asked.code() is GrpcCode.RESOURCE_EXHAUSTED
    assert peer.asked().reset is not None


@add(
    "Early Server Closure: a client resets it with NO_ERROR",
)
def _(peer: Called) -> None:
    peer.start(b"x" * (1 << 25))
    peer.accept()
    peer.link.until(lambda: len(peer.link.streams.get(1, Heard()).data) > 1 << 23)
    peer.link.send(only(1, *HEAD, *status(8)))
    assert peer.asked().reset == wire.NO_ERROR


RESETS = {
    wire.NO_ERROR: GrpcCode.INTERNAL,
    wire.PROTOCOL_ERROR: GrpcCode.INTERNAL,
    wire.INTERNAL_ERROR: GrpcCode.INTERNAL,
    wire.FLOW_CONTROL_ERROR: GrpcCode.INTERNAL,
    wire.SETTINGS_TIMEOUT: GrpcCode.INTERNAL,
    wire.FRAME_SIZE_ERROR: GrpcCode.INTERNAL,
    wire.CANCEL: GrpcCode.CANCELLED,
    wire.COMPRESSION_ERROR: GrpcCode.INTERNAL,
    wire.CONNECT_ERROR: GrpcCode.INTERNAL,
    wire.ENHANCE_YOUR_CALM: GrpcCode.RESOURCE_EXHAUSTED,
    wire.INADEQUATE_SECURITY: GrpcCode.PERMISSION_DENIED,
}


@add("Errors: each code of RST_STREAM means a status")
def _(peer: Called) -> None:
    for index, (reset, code) in enumerate(RESETS.items()):
        stream = 2 * index + 1
        assert peer.played(wire.reset(stream, reset), stream=stream).code() is code


@add("Errors: RST_STREAM behind a part of the answer closes the call")
def _(peer: Called) -> None:
    parts = wire.headers(1, wire.block(HEAD)), wire.data(1, message(b"good"))
    assert peer.played(*parts, wire.reset(1, wire.INTERNAL_ERROR)).code() is GrpcCode.INTERNAL


@add(
    "Errors: ENHANCE_YOUR_CALM and INADEQUATE_SECURITY say more",
)
def _(peer: Called) -> None:
    calm = peer.played(wire.reset(1, wire.ENHANCE_YOUR_CALM)).failure()
    assert "bandwidth" in calm.args[1]
    insecure = peer.played(wire.reset(3, wire.INADEQUATE_SECURITY), stream=3).failure()
    assert "secure" in insecure.args[1]


@add("Idempotency and Retries: a refused stream is called again")
def _(peer: Called) -> None:
    asked = peer.played(wire.reset(1, wire.REFUSED_STREAM))
    peer.asked(3)
    peer.link.send(answer(3))
    assert asked.reply() == b"good"


@add("Idempotency and Retries: a stream that is always refused is UNAVAILABLE")
def _(peer: Called) -> None:
    asked = peer.first()
    stream = 1
    while asked.outcomes.empty() and stream < 20:
        peer.link.send(wire.reset(stream, wire.REFUSED_STREAM))
        stream += 2
        try:
            peer.link.socket.settimeout(NO_TIME)
            peer.asked(stream)
        except TimeoutError:
            break
    failure = asked.failure()
    assert (failure.status, failure.sent) == (GrpcCode.UNAVAILABLE, False)


@add("Idempotency and Retries: a call that may have begun is not made again")
def _(peer: Called) -> None:
    peer.played(answer(1)).reply()
    asked = peer.start()
    peer.asked(3)
    peer.link.socket.close()
    assert asked.code() is GrpcCode.UNAVAILABLE
    again = peer.start(b"again")
    peer.accept()
    assert peer.asked(1).messages == [b"again"]
    peer.link.send(answer(1))
    assert again.reply() == b"good"


@add("Client Cancellation: it is RST_STREAM with CANCEL")
def _(peer: Called) -> None:
    asked = peer.first()
    peer.channel.cancel(asked.call)
    assert asked.code() is GrpcCode.CANCELLED
    assert peer.link.reset(1) == wire.CANCEL


@add("Client Cancellation: a passed deadline is one, and DEADLINE_EXCEEDED to the caller")
def _(peer: Called) -> None:
    began = time.monotonic()
    asked = peer.first(seconds=0.2)
    assert asked.code() is GrpcCode.DEADLINE_EXCEEDED
    assert time.monotonic() - began >= 0.2
    assert peer.link.reset(1) == wire.CANCEL


@add("Client Cancellation: what comes after the deadline is thrown away")
def _(peer: Called) -> None:
    asked = peer.first(seconds=0.2)
    assert asked.code() is GrpcCode.DEADLINE_EXCEEDED
    peer.link.send(answer(1))
    peer.link.alive()
    assert asked.outcomes.empty()
    other = peer.played(answer(3), stream=3)
    assert other.reply() == b"good"


# Connection management


@add("GOAWAY: calls that the server has not taken are made on another connection")
def _(peer: Called) -> None:
    taken = peer.first()
    late = peer.start()
    peer.asked(3)
    first = peer.link
    first.send(wire.goaway(1))
    peer.accept()
    assert peer.asked(1).messages == [b"ask"]
    peer.link.send(answer(1))
    assert late.reply() == b"good"
    first.send(answer(1))
    assert taken.reply() == b"good"
    first.until_closed()


@add("GOAWAY: no new call goes to a server that leaves")
def _(peer: Called) -> None:
    taken = peer.first()
    first = peer.link
    first.send(wire.goaway(wire.MOST))
    first.alive()
    new = peer.start()
    peer.accept()
    peer.asked(1)
    peer.link.send(answer(1))
    assert new.reply() == b"good"
    first.send(answer(1))
    assert taken.reply() == b"good"


@add("GOAWAY: with an error the calls that were not taken are UNAVAILABLE or made again")
def _(peer: Called) -> None:
    asked = peer.first()
    peer.link.send(wire.goaway(0, wire.ENHANCE_YOUR_CALM, b"too_many_pings"))
    peer.accept()
    peer.asked(1)
    peer.link.send(answer(1))
    assert asked.reply() == b"good"


@add("PING: a client's answer is the same eight bytes")
def _(peer: Called) -> None:
    peer.first()
    for payload in (b"\0" * 8, b"\xff" * 8, b"whatever"):
        peer.link.alive(payload)
    found = [one for one in peer.link.others if isinstance(one, frames.PingFrame)]
    assert all("ACK" in one.flags for one in found)


@add("PING: calls whose server does not answer one are UNAVAILABLE")
def _(peer: Called) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keepalive, "PAUSES", (0.1,))
        patch.setattr(keepalive, "PATIENCE_SECONDS", 0.2)
        asked = peer.first()
        assert "ACK" not in peer.link.frame(frames.PingFrame).flags
        failure = asked.failure()
    assert failure.status is GrpcCode.UNAVAILABLE
    assert "silent" in failure.args[1]


@add("Keepalive: without calls there are no pings")
def _(peer: Called) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keepalive, "PAUSES", (0.05,))
        assert peer.played(answer(1)).reply() == b"good"
        peer.link.socket.settimeout(NO_TIME)
        with pytest.raises(TimeoutError):
            peer.link.frame(frames.PingFrame)


@add("Keepalive: pings without data between them keep to what servers bear")
def _(peer: Called) -> None:
    keeper = keepalive.Keepalive(0.0)
    at = 0.0
    sent: list[float] = []
    while len(sent) < 6:
        step = keeper.poll(at)
        if step is keepalive.Ask.PING:
            sent.append(at)
            keeper.heard = at = at + 0.01
        else:
            assert isinstance(step, float)
            at += step
    assert sum(second - first < 300 for first, second in pairwise(sent)) <= 2


@add("Connection failure: every call of the connection is UNAVAILABLE")
def _(peer: Called) -> None:
    calls = [peer.first(), peer.start()]
    peer.asked(3)
    linger = b"\x01\0\0\0\0\0\0\0"
    peer.link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    peer.link.socket.close()
    assert {asked.code() for asked in calls} == {GrpcCode.UNAVAILABLE}


@add("Connection failure: a server that cannot be reached is UNAVAILABLE")
def _(peer: Called) -> None:
    asked = peer.start()
    peer.close()
    assert asked.code() in (GrpcCode.UNAVAILABLE, GrpcCode.CANCELLED)


@add("Health checking: a server that lacks the service is UNIMPLEMENTED to who asks")
def _(peer: Called) -> None:
    assert peer.played(only(1, *HEAD, *status(12))).code() is GrpcCode.UNIMPLEMENTED


@pytest.mark.parametrize("case", table.cases, ids=lambda case: case.name)
def test_a_client_does_what_the_document_says_of_connections(
    case: Case, request: pytest.FixtureRequest
) -> None:
    if case.missing:
        request.applymarker(pytest.mark.xfail(reason=case.missing, strict=True))
    with called() as peer:
        case.play(peer)
