"""The protocol's document, "Responses" and below: what a server must say and do.

With it what its sister documents on health, pings and the mapping of statuses ask of servers.
"""

import re
import threading
import time

import pytest
from hyperframe import frame as frames

from penstock.protocols import grpc
from tests.rfc import wire
from tests.rfc.grpc_link import NO_TIME, PATIENCE, Case, Heard, Sentences, call, message
from tests.rfc.grpc_service import TEXT, Served, served

OK, DEADLINE_EXCEEDED, NOT_FOUND, RESOURCE_EXHAUSTED = 0, 4, 5, 8
FAILED_PRECONDITION, ABORTED, UNIMPLEMENTED, UNAVAILABLE = 9, 10, 12, 14
SERVING, NOT_SERVING, SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
CHECK, WATCH = b"/grpc.health.v1.Health/Check", b"/grpc.health.v1.Health/Watch"

table = Sentences()
add = table.add


def opened(door: Served, path: bytes, *more: wire.Field, stream: int = 1) -> Heard:
    """A call without its end; what comes on it is heard."""
    door.link.send(wire.headers(stream, wire.block(call(path, *more))))
    return door.link.streams.setdefault(stream, Heard())


def asleep(door: Served, stream: int = 1) -> Heard:
    """A call whose handler waits for ever."""
    heard = opened(door, b"/a.B/Sleeps", stream=stream)
    assert door.service.entered.acquire(timeout=PATIENCE)
    return heard


def text_of(fields: dict[bytes, bytes]) -> str:
    """Percent-encoded UTF-8."""
    raw = fields[b"grpc-message"]
    assert re.fullmatch(rb"([ -$&-~]|%[0-9A-F]{2})*", raw)
    decode = re.compile(rb"%(..)").sub(lambda found: bytes.fromhex(found[1].decode()), raw)
    return decode.decode()


# Responses


@add("Responses: a head, messages and trailers")
def _(door: Served) -> None:
    heard = door.link.ask(1)
    head, trailers = heard.heads
    assert dict(head) == {b":status": b"200", b"content-type": b"application/grpc"}
    assert heard.order == ["HEADERS", "DATA", "HEADERS", "END"]
    assert trailers == [(b"grpc-status", b"0")]


@add("Responses: the status is in the trailers even if it is OK")
def _(door: Served) -> None:
    for stream, body in ((1, b""), (3, message() * 3)):
        heard = door.link.ask(stream, call(b"/a.B/Echoes"), body)
        assert len(heard.heads) == 2
        assert b"grpc-status" not in dict(heard.heads[0])
        assert heard.status == OK


@add("Responses: an immediate error is trailers only, in one block that ends the stream")
def _(door: Served) -> None:
    for stream, path in ((1, b"/a.B/Fails"), (3, b"/a.B/Nothing")):
        heard = door.link.ask(stream, call(path))
        assert heard.order[:2] == ["HEADERS", "END"]
        assert heard.fields[b":status"] == b"200"
        assert heard.fields[b"content-type"] == b"application/grpc"
        assert heard.status in (FAILED_PRECONDITION, UNIMPLEMENTED)


@add("Responses: an error behind messages is in the trailers")
def _(door: Served) -> None:
    heard = door.link.ask(1, call(b"/a.B/FailsLate"))
    assert heard.messages == [b"some"]
    assert heard.status == ABORTED
    assert b":status" not in heard.fields
    assert text_of(heard.fields) == TEXT


@add("Responses: a status is decimal without zeros before it")
def _(door: Served) -> None:
    raw = [door.link.ask(1).fields, door.link.ask(3, call(b"/a.B/FailsLate")).fields]
    assert [fields[b"grpc-status"] for fields in raw] == [b"0", b"10"]


@add("Responses: a message of a status is UTF-8 and percent-encoded")
def _(door: Served) -> None:
    heard = door.link.ask(1, call(b"/a.B/Fails"))
    assert heard.fields[b"grpc-message"] == b"50 %25 of %C3%A4%0A%7F~"
    assert text_of(heard.fields) == TEXT


@add(
    "Responses: a message of a status that is cut stays UTF-8",
)
def _(door: Served) -> None:
    for before in range(3):
        raw = grpc.encode_status_message("a" * before + "ä" * 4096)
        re.compile(rb"%(..)").sub(lambda found: bytes.fromhex(found[1].decode()), raw).decode()


@add("Responses: every answer to a call has the HTTP status 200")
def _(door: Served) -> None:
    paths = (b"/a.B/Echo", b"/a.B/Fails", b"/a.B/FailsLate", b"/a.B/Nothing", b"/x")
    for index, path in enumerate(paths):
        heard = door.link.ask(2 * index + 1, call(path))
        assert dict(heard.heads[0])[b":status"] == b"200"


@add("Responses: metadata may stand in the head and, beside OK, in the trailers")
def _(door: Served) -> None:
    for stream, path, told in ((1, b"/a.B/Tells", b"told"), (3, b"/a.B/TellsOnce", b"abc")):
        heard = door.link.ask(stream, call(path))
        head, trailers = heard.heads
        assert head[2:] == [(b"x-a", b"1"), (b"x-b-bin", b"+/+/AA")]  # without padding
        assert heard.messages == [told]
        behind = [(b"x-c", b"some ~ text"), (b"x-c", b"again")]
        assert trailers == [(b"grpc-status", b"0"), *behind]


@add("Responses: metadata stands behind the status and its message")
def _(door: Served) -> None:
    heard = door.link.ask(1, call(b"/a.B/Echo", (b"grpc-encoding", b"own")))
    names = [b"grpc-status", b"grpc-message", b"grpc-accept-encoding"]
    assert list(heard.fields)[2:] == names


# Early server closure, errors, cancellation


@add("Early Server Closure: trailers before the caller's end are followed by RST_STREAM 0")
def _(door: Served) -> None:
    for stream, path in ((1, b"/a.B/Nothing"), (3, b"/a.B/Answers")):
        heard = opened(door, path, stream=stream)
        assert door.link.reset(stream) == wire.NO_ERROR
        assert heard.order[-3:] == ["HEADERS", "END", "RSTSTREAM"]


@add("Early Server Closure: a caller that has ended gets no RST_STREAM")
def _(door: Served) -> None:
    heard = door.link.ask(1, call(b"/a.B/Fails"))
    door.link.alive()
    assert heard.reset is None


@add("Early Server Closure: messages that were under way do no harm")
def _(door: Served) -> None:
    opened(door, b"/a.B/Nothing")
    door.link.send(*[wire.data(1, message()) for _ in range(50)], wire.data(1, b"", end=True))
    assert door.link.answer(1).status == UNIMPLEMENTED
    assert door.link.ask(3).status == OK


@add("Errors: RST_STREAM of a caller closes its call at once, whatever the code")
def _(door: Served) -> None:
    codes = (wire.NO_ERROR, wire.PROTOCOL_ERROR, wire.INTERNAL_ERROR, wire.CANCEL, 99)
    for index, code in enumerate(codes):
        stream = 2 * index + 1
        heard = asleep(door, stream)
        door.link.send(wire.reset(stream, code))
        assert door.service.cancelled.acquire(timeout=PATIENCE)
        door.link.alive(b"%08d" % index)
        assert heard.order == []


@add("Client Cancellation: a server keeps the caller's deadline")
def _(door: Served) -> None:
    began = time.monotonic()
    heard = opened(door, b"/a.B/Sleeps", (b"grpc-timeout", b"100m"))
    assert door.link.answer(1) is heard
    assert time.monotonic() - began >= 0.1
    assert door.service.cancelled.acquire(timeout=PATIENCE)
    assert heard.status == DEADLINE_EXCEEDED
    assert heard.reset in (None, wire.NO_ERROR)


# Connection management


@add("GOAWAY: a server that leaves says which streams it has taken")
def _(door: Served) -> None:
    heard = asleep(door)
    closing = threading.Thread(target=door.site.run, args=(door.site.door.close(PATIENCE),))
    closing.start()
    door.link.until(lambda: len(goaways(door)) == 2 or goaways(door)[-1:] == [1])
    assert goaways(door)[-1] == 1
    door.call(door.service.grpc.end_streams)
    assert door.link.answer(1) is heard
    assert heard.status == UNAVAILABLE
    door.link.until_closed()
    closing.join(PATIENCE)


@add("GOAWAY: calls that were taken go on, and later ones are not begun")
def _(door: Served) -> None:
    heard = opened(door, b"/a.B/Echoes")
    door.link.alive()
    door.call(door.site.door.drain)
    door.link.until(lambda: bool(goaways(door)))
    ping = door.link.frame(frames.PingFrame)
    door.link.send(wire.ping(ping.opaque_data, ack=True))
    door.link.until(lambda: goaways(door)[-1] == 1)
    door.link.send(wire.headers(3, wire.block(call())), wire.data(3, message(), end=True))
    door.link.send(wire.data(1, message(), end=True))
    assert door.link.answer(1).messages == [b"abc"]
    assert heard.status == OK
    door.link.until_closed()
    assert 3 not in door.link.streams


def goaways(door: Served) -> list[int]:
    """The last streams that were named."""
    found = door.link.others
    return [one.last_stream_id for one in found if isinstance(one, frames.GoAwayFrame)]


@add("PING: it comes back as it was")
def _(door: Served) -> None:
    for payload in (b"\0" * 8, b"\xff" * 8, b"penstock"):
        door.link.alive(payload)
    assert all("ACK" in one.flags for one in pings(door))


def pings(door: Served) -> list[frames.PingFrame]:
    return [one for one in door.link.others if isinstance(one, frames.PingFrame)]


@add("Connection failure: open calls are cancelled")
def _(door: Served) -> None:
    for stream in (1, 3):
        asleep(door, stream)
    door.link.socket.close()
    for _ in range(2):
        assert door.service.cancelled.acquire(timeout=PATIENCE)
    assert not door.service.cancelled.acquire(timeout=NO_TIME)


# Keepalive


@add("Keepalive: pings of a caller that waits for an answer are no abuse")
def _(door: Served) -> None:
    asleep(door)
    for turn in range(3):
        door.link.alive(b"%08d" % turn)


@add("Keepalive: too many pings end the connection with ENHANCE_YOUR_CALM")
def _(door: Served) -> None:
    door.link.send(wire.ping() * 500)
    goaway = door.link.frame(frames.GoAwayFrame)
    assert goaway.error_code == wire.ENHANCE_YOUR_CALM
    assert b"ping" in goaway.additional_data


# Health


def asked(door: Served, path: bytes, stream: int, service: bytes = b"") -> Heard:
    """A health call for a service by name."""
    body = b"\x0a" + bytes([len(service)]) + service if service else b""
    return door.link.ask(stream, call(path), message(body))


@add("Health checking: an empty name is the server's, and a known name is the service's")
def _(door: Served) -> None:
    for stream, service in ((1, b""), (3, b"a.B")):
        heard = asked(door, CHECK, stream, service)
        assert (heard.status, heard.messages) == (OK, [NOT_SERVING])
    door.call(door.service.health.set_ready)
    for stream, service in ((5, b""), (7, b"a.B")):
        heard = asked(door, CHECK, stream, service)
        assert (heard.status, heard.messages) == (OK, [SERVING])


@add("Health checking: a name that is not registered is NOT_FOUND")
def _(door: Served) -> None:
    for stream, service in ((1, b"a.C"), (3, b"a.*")):
        assert asked(door, CHECK, stream, service).status == NOT_FOUND


@add("Health checking: a watcher is told at once and at each change")
def _(door: Served) -> None:
    heard = opened(door, WATCH)
    door.link.send(wire.data(1, message(b""), end=True))
    told = [NOT_SERVING]
    door.link.until(lambda: heard.messages == told)
    for change, status in (
        (door.service.health.set_ready, SERVING),
        (lambda: door.service.health.set_unready("leaving"), NOT_SERVING),
    ):
        door.call(change)
        told.append(status)
        door.link.until(lambda: heard.messages == told)
    assert not heard.ended


@add("Health checking: who watches an unknown name is told so and stays")
def _(door: Served) -> None:
    heard = opened(door, WATCH)
    door.link.send(wire.data(1, message(b"\x0a\x03a.C"), end=True))
    door.link.until(lambda: heard.messages == [SERVICE_UNKNOWN])
    door.link.alive()
    assert not heard.ended


@pytest.mark.parametrize("case", table.cases, ids=lambda case: case.name)
def test_a_server_does_what_the_document_says(case: Case, request: pytest.FixtureRequest) -> None:
    if case.missing:
        request.applymarker(pytest.mark.xfail(reason=case.missing, strict=True))
    with served() as door:
        case.play(door)
