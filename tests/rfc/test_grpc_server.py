"""gRPC's documents, requirements on servers: accepted requests, refused requests, and replies.

*gRPC over HTTP2* with its sister documents on compression, health checking and keepalive; tested
with a real door over a socket, in hand-made frames."""

import gzip
import threading
import time

from penstock.protocols import grpc
from tests.kit import frames as f
from tests.kit.frames import StreamContent, message
from tests.kit.http1 import TIMEOUT
from tests.kit.http2 import call
from tests.rfc.sentences import NO_TIME, Sentences, Step
from tests.services.grpc_methods import MOST, TEXT, Served, served

OK, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND = 0, 3, 4, 5
RESOURCE_EXHAUSTED, FAILED_PRECONDITION, ABORTED = 8, 9, 10
UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 12, 13, 14
ANY = -1
SERVING, NOT_SERVING, SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
CHECK, WATCH = b"/grpc.health.v1.Health/Check", b"/grpc.health.v1.Health/Watch"
ECHO, ECHOES = b"/a.B/Echo", b"/a.B/Echoes"

table = Sentences()
rules, add = table.rules, table.add


def undated(head: list[f.Field]) -> list[f.Field]:
    """The fields without the date, which every reply has."""
    return [field for field in head if field[0] != b"date"]


def rpc(
    path: bytes = ECHO,
    *more: f.Field,
    body: bytes | None = None,
    status: int | None = OK,
    http: bytes = b"200",
    without: bytes = b"",
    messages: list[bytes] | None = None,
    order: list[str] | None = None,
    trailers: list[f.Field] | None = None,
    text: bytes = b"",
    **changed: bytes,
) -> Step:
    """A complete call on the next stream, and what its reply must have."""

    def step(door: Served) -> StreamContent:
        fields = call(path, *more)
        for name, value in changed.items():
            key = name.encode().replace(b"_", b"-")
            fields = f.changed(fields, key if (key, b"") in KINDS else b":" + key, value)
        if without:
            fields = f.changed(fields, without, None)
        stream = door.link.open(fields)
        door.link.send(f.data(stream, message() if body is None else body, end=True))
        content = door.link.answer(stream)
        assert dict(content.heads[0])[b":status"].startswith(http), content
        assert status == ANY or content.status == status, content
        assert messages is None or content.messages == messages
        assert order is None or content.order == order
        assert trailers is None or content.heads[-1] == trailers
        assert text in content.fields.get(b"grpc-message", b"")
        return content

    return step


KINDS = {(b"content-type", b""), (b"te", b"")}  # codespell:ignore te


def each(path: bytes, bodies: list[bytes], **want: object) -> list[Step]:
    return [rpc(path, body=body, **want) for body in bodies]  # type: ignore[arg-type]


def handler_got(*fields: f.Field) -> Step:
    """The handler of the last call got these fields."""
    return lambda door: [one for one in door.service.heads[-1] if one in fields] == list(fields)


def opened(door: Served, path: bytes, *more: f.Field) -> tuple[int, StreamContent]:
    """A call whose stream has not ended, and what is received on it."""
    stream = door.link.open(call(path, *more))
    return stream, door.link.content(stream)


def sleeping(door: Served) -> tuple[int, StreamContent]:
    """A call whose handler waits forever."""
    one = opened(door, b"/a.B/Sleeps")
    assert door.service.entered.acquire(timeout=TIMEOUT)
    return one


# Requests

GZIP = (b"grpc-encoding", b"gzip")
PACKED = gzip.compress(b"packed")
LARGE = [(b"x-%d" % number, b"v" * 1000) for number in range(16)]
ODD = [(b"x-a", b"\xc3\xa4"), (b"x-b", b""), (b"x-c", b"a\tb"), (b"x-d", b"\xff")]
AGAIN = [(b"x-a", b"1"), (b"x-b", b"2"), (b"x-a", b"3")]
WHOLE = ["HEADERS", "DATA", "HEADERS", "END"]
rules(
    (
        "Requests: a call is a head, its messages and an end",
        rpc(order=WHOLE, messages=[b"abc"]),
    ),
    ("Requests: the method is POST", rpc(method=b"PUT", http=b"405", status=ANY)),
    (
        "Requests: the scheme is http or https",
        rpc(scheme=b"http"),
        rpc(scheme=b"https"),
    ),
    (
        "Requests: the path is case-sensitive",
        *[rpc(path, status=UNIMPLEMENTED) for path in (b"/a.b/Echo", b"/a.B/echo", b"/A.B/ECHO")],
    ),
    (
        "Requests: the path is a service and a method",
        *[
            rpc(path, status=UNIMPLEMENTED)
            for path in (b"/", b"/a.B", b"/a.B/", b"//Echo", b"/a.B/Echo/", b"/a.B/Ec/ho")
        ],
    ),
    (
        "Requests: the authority may be omitted if there is a host field",
        rpc(ECHO, (b"host", b"example.org"), without=b":authority"),
    ),
    (
        "Requests: a request without te trailers is refused",
        rpc(without=b"te", status=INTERNAL),  # codespell:ignore te
    ),
    (
        "Requests: a call without a timeout has none",
        rpc(),
        rpc(ECHO, (b"grpc-timeout", b"20S")),
        lambda door: door.service.timeouts == [None, 20.0],
    ),
    (
        "Requests: an invalid timeout is refused",
        rpc(ECHO, (b"grpc-timeout", b"1x"), status=INVALID_ARGUMENT),
    ),
    (
        "Requests: a content-type of application/grpc may name protobuf",
        rpc(content_type=b"application/grpc+proto"),
        rpc(content_type=b"application/grpc;charset=utf-8"),
    ),
    (
        "Requests: another content-type does not get the status 200",
        *[
            rpc(content_type=kind, http=b"4", status=None)
            for kind in (b"application/json", b"application/grpcx", b"application/grpc-web", b"a/b")
        ],
        rpc(without=b"content-type", http=b"4", status=None),
    ),
    (
        "Requests: an unsupported form of messages is 415",
        rpc(content_type=b"application/grpc+json", http=b"415", status=ANY),
        rpc(content_type=b"application/grpc+own", http=b"415", status=ANY),
    ),
    (
        "Requests: message-type, user-agent and unknown grpc fields are accepted",
        rpc(ECHO, (b"grpc-message-type", b"a.C"), (b"user-agent", b"grpc-x/1"), (b"grpc-f", b"?")),
        handler_got((b"user-agent", b"grpc-x/1")),
    ),
    (
        "Requests: custom metadata reaches the application",
        rpc(ECHO, (b"x-0_a.b", b"some ~ text")),
        handler_got((b"x-0_a.b", b"some ~ text")),
    ),
    ("Requests: equal names keep their order", rpc(ECHO, *AGAIN), handler_got(*AGAIN)),
    ("Requests: a value that HTTP allows is no error", rpc(ECHO, *ODD), handler_got(*ODD)),
    (
        "Requests: a head over the limit is refused, and the connection stays open",
        rpc(ECHO, *LARGE, http=b"431", status=ANY),
        rpc(),
    ),
    (
        "Requests: a head of 8 KiB, counted as in HTTP, is accepted",
        rpc(ECHO, *[(b"x-%d" % number, b"v" * 964) for number in range(8)]),
    ),
    (
        "Requests: a length is in network byte order",
        lambda door: message(b"x" * 0x0201)[:5] == b"\x00\x00\x00\x02\x01",
        rpc(body=message(b"x" * 0x0201), messages=[b"x" * 0x0201]),
    ),
    ("Requests: a message may be empty", rpc(body=message(b""), messages=[b""])),
    (
        "Requests: a compressed message is unpacked by the encoding of the head",
        rpc(ECHO, GZIP, body=message(PACKED, flag=1), messages=[b"packed"]),
    ),
    (
        "Requests: a flag of 0 is a plain message whatever the encoding",
        rpc(ECHO, GZIP, body=message(b"plain"), messages=[b"plain"]),
    ),
    (
        "Requests: each message is compressed by itself",
        rpc(
            ECHOES,
            GZIP,
            body=message(PACKED, flag=1) + message(b"plain") + message(PACKED, flag=1),
            messages=[b"packed", b"plain", b"packed"],
        ),
    ),
    (
        "Requests: a flag of 1 needs an encoding",
        rpc(body=message(PACKED, flag=1), status=INTERNAL, text=b"without a grpc-encoding"),
    ),
    (
        "Requests: a flag is 0 or 1",
        *each(ECHO, [message(flag=2), message(flag=255)], status=INTERNAL),
    ),
    (
        "Requests: a stream of no messages at all is a call",
        rpc(ECHOES, body=b"", messages=[]),
    ),
    (
        "Requests: an end in the middle of a message fails the call",
        rpc(ECHOES, body=message()[:-1], status=INTERNAL),
    ),
    (
        "Compression: an announced encoding is always accepted",
        rpc(ECHO, (b"grpc-encoding", b"identity")),
        rpc(ECHO, GZIP),
    ),
    (
        "Compression: a message that cannot be decompressed is INTERNAL",
        *[
            rpc(ECHO, GZIP, body=message(data, flag=1), status=INTERNAL)
            for data in (b"no gzip", PACKED[:-1], PACKED + b"x", b"")
        ],
    ),
    (
        "Compression: a reply is plain whatever the client accepts",
        rpc(
            ECHO,
            (b"grpc-accept-encoding", b"gzip,deflate"),
            body=message(b"a" * 5000),
            messages=[b"a" * 5000],
        ),
    ),
    (
        "Compression: the encodings that a client accepts do not affect the call's success",
        *[rpc(ECHO, (b"grpc-accept-encoding", it)) for it in (b"", b"own", b"deflate, own ,gzip")],
    ),
)


@add("Requests: a head may be split into CONTINUATION frames")
def _(door: Served) -> None:
    block = f.block(call())
    door.link.send(
        f.headers(1, block[:10], whole=False),
        f.continuation(1, block[10:30], whole=False),
        f.continuation(1, block[30:]),
        f.data(1, message(), end=True),
    )
    assert door.link.answer(1).messages == [b"abc"]


@add("Requests: a length over the limit is refused before the message arrives")
def _(door: Served) -> None:
    stream, _ = opened(door, ECHO)
    door.link.send(f.data(stream, b"\x00" + (MOST + 1).to_bytes(4, "big")))
    assert door.link.answer(stream).status == RESOURCE_EXHAUSTED


@add("Requests: the stream may end with an empty DATA frame")
def _(door: Served) -> None:
    stream, _ = opened(door, ECHOES)
    door.link.send(f.data(stream, message()), f.data(stream, b"", end=True))
    assert door.link.answer(stream).messages == [b"abc"]


@add("Data Frames: frame boundaries have no meaning, and padding is no part of a message")
def _(door: Served) -> None:
    number, _ = opened(door, ECHOES)
    stream = message(b"one") + message(b"") + message(b"three" * 20)
    door.link.send(*[f.data(number, stream[at : at + 1], pad=at) for at in range(20)])
    door.link.send(f.data(number, stream[20:], pad=0, end=True))
    assert door.link.answer(number).messages == [b"one", b"", b"three" * 20]


@add("Stream Identification: calls on one connection are identified by their streams")
def _(door: Served) -> None:
    for _ in range(3):
        opened(door, ECHOES)
    for stream in (5, 1, 3):
        door.link.send(f.data(stream, message(b"%d" % stream), end=True))
    for stream in (1, 3, 5):
        assert door.link.answer(stream).messages == [b"%d" % stream]


@add("Compression: an unknown encoding is UNIMPLEMENTED with the supported ones")
def _(door: Served) -> None:
    for encoding in (b"deflate", b"snappy", b"zstd"):
        field = (b"grpc-encoding", encoding)
        content = rpc(ECHO, field, status=UNIMPLEMENTED, text=b"gzip")(door)
        assert isinstance(content, StreamContent)
        assert content.fields[b"grpc-accept-encoding"].split(b",") == [b"identity", b"gzip"]


@add("Compression: a used encoding is among the accepted ones in the reply")
def _(door: Served) -> None:
    content = rpc(ECHO, GZIP, body=message(PACKED, flag=1))(door)
    assert isinstance(content, StreamContent)
    assert b"gzip" in dict(content.heads[0])[b"grpc-accept-encoding"].split(b",")


# Responses

AFTER = [(b"grpc-status", b"0"), (b"x-c", b"some ~ text"), (b"x-c", b"again")]
BEFORE = [(b"x-a", b"1"), (b"x-b-bin", b"+/+/AA")]  # without padding
HEAD = [(b":status", b"200"), (b"content-type", b"application/grpc")]
ENCODED = b"50 %25 of %C3%A4%0A%7F~"
rules(
    (
        "Responses: a head, messages and trailers",
        rpc(order=WHOLE, trailers=[(b"grpc-status", b"0")]),
        lambda door: undated(door.link.streams[1].heads[0]) == HEAD,
    ),
    (
        "Responses: the status is in the trailers even if it is OK",
        *each(ECHOES, [b"", message() * 3], trailers=[(b"grpc-status", b"0")]),
    ),
    (
        "Responses: an immediate error is trailers only, in one block that ends the stream",
        rpc(b"/a.B/Fails", status=FAILED_PRECONDITION, order=["HEADERS", "END"]),
        rpc(b"/a.B/Nothing", status=UNIMPLEMENTED),
        lambda door: door.link.streams[3].order[:2] == ["HEADERS", "END"],
        lambda door: all(content.heads[0][:2] == HEAD for content in door.link.streams.values()),
    ),
    (
        "Responses: an error after messages is in the trailers",
        rpc(
            b"/a.B/FailsLate",
            status=ABORTED,
            messages=[b"some"],
            # Decimal, without leading zeros.
            trailers=[(b"grpc-status", b"10"), (b"grpc-message", ENCODED)],
        ),
    ),
    (
        "Responses: a message of a status is UTF-8 and percent-encoded",
        rpc(b"/a.B/Fails", status=FAILED_PRECONDITION, text=ENCODED),
        lambda door: grpc.decode_status_message(ENCODED) == TEXT,
    ),
    (
        "Responses: every reply to a call has the HTTP status 200",
        *[rpc(path, status=UNIMPLEMENTED) for path in (b"/a.B/Nothing", b"/x")],
    ),
    *[
        (
            f"Responses: metadata may be in the head and, with OK, in the trailers: {path!r}",
            rpc(path, messages=[events_are], trailers=AFTER),
            lambda door: undated(door.link.streams[1].heads[0])[2:] == BEFORE,
        )
        for path, events_are in ((b"/a.B/Tells", b"told"), (b"/a.B/TellsOnce", b"abc"))
    ],
    (
        "Responses: metadata follows the status and its message",
        rpc(ECHO, (b"grpc-encoding", b"own"), status=UNIMPLEMENTED),
        lambda door: (
            [name for name, _ in undated(door.link.streams[1].heads[0])[2:]]
            == [b"grpc-status", b"grpc-message", b"grpc-accept-encoding"]
        ),
    ),
)


# Early server closure, errors, cancellation


@add("Early Server Closure: trailers before the client's end are followed by RST_STREAM 0")
def _(door: Served) -> None:
    for path in (b"/a.B/Nothing", b"/a.B/Answers"):
        stream, content = opened(door, path)
        assert door.link.reset(stream) == f.NO_ERROR
        assert content.order[-3:] == ["HEADERS", "END", "RST_STREAM"]


@add("Early Server Closure: a client that has ended its stream gets no RST_STREAM")
def _(door: Served) -> None:
    stream = door.link.open(call(b"/a.B/Fails"))
    door.link.send(f.data(stream, message(), end=True))
    content = door.link.answer(stream)
    door.link.alive()
    assert content.reset is None


@add("Early Server Closure: messages that arrive after the reply are ignored")
def _(door: Served) -> None:
    stream, content = opened(door, b"/a.B/Nothing")
    door.link.send(*[f.data(stream, message()) for _ in range(50)], f.data(stream, end=True))
    door.link.answer(stream)
    assert content.status == UNIMPLEMENTED
    rpc()(door)


@add("Errors: RST_STREAM of a client ends its call at once, whatever the code")
def _(door: Served) -> None:
    for code in (f.NO_ERROR, f.PROTOCOL_ERROR, f.INTERNAL_ERROR, f.CANCEL, 99):
        stream, content = sleeping(door)
        door.link.send(f.reset(stream, code))
        assert door.service.cancelled.acquire(timeout=TIMEOUT)
        door.link.alive(b"%08d" % code)
        assert content.order == []


@add("Client Cancellation: a server applies the client's deadline")
def _(door: Served) -> None:
    began = time.monotonic()
    stream, content = opened(door, b"/a.B/Sleeps", (b"grpc-timeout", b"100m"))
    door.link.answer(stream)
    assert time.monotonic() - began >= 0.1
    assert door.service.cancelled.acquire(timeout=TIMEOUT)
    assert content.status == DEADLINE_EXCEEDED
    assert content.reset in (None, f.NO_ERROR)


# Connection management


@add("GOAWAY: a server that closes names the last accepted stream")
def _(door: Served) -> None:
    stream, content = sleeping(door)
    closing = threading.Thread(target=door.site.run, args=(door.site.door.close(TIMEOUT),))
    closing.start()
    door.link.until(lambda: len(door.link.goaways) == 2 or door.link.goaways[-1:] == [(1, 0)])
    assert door.link.goaways[-1][0] == 1
    door.call(door.service.grpc.end_streams)
    door.link.answer(stream)
    assert content.status == UNAVAILABLE
    door.link.until_closed()
    closing.join(TIMEOUT)


@add("GOAWAY: accepted calls continue, and later ones are not begun")
def _(door: Served) -> None:
    stream, _ = opened(door, ECHOES)
    door.link.alive()
    door.call(door.site.door.drain)
    door.link.until(lambda: bool(door.link.goaways))
    door.link.until(lambda: any(not one.ack for one in door.link.sent(f.PING)))
    (ping,) = [one for one in door.link.sent(f.PING) if not one.ack]
    door.link.send(f.ping(ping.payload, ack=True))
    door.link.until(lambda: door.link.goaways[-1][0] == 1)
    late, _ = opened(door, ECHO)
    door.link.send(f.data(late, message(), end=True), f.data(stream, message(), end=True))
    content = door.link.answer(stream)
    assert (content.messages, content.status) == ([b"abc"], OK)
    door.link.until_closed()
    assert door.link.content(late).order == []


@add("PING: a ping is acknowledged with its payload")
def _(door: Served) -> None:
    for payload in (b"\0" * 8, b"\xff" * 8, b"penstock"):
        door.link.alive(payload)
    assert all(one.ack for one in door.link.sent(f.PING))


@add("Connection failure: open calls are cancelled")
def _(door: Served) -> None:
    for _ in range(2):
        sleeping(door)
    door.link.socket.close()
    for _ in range(2):
        assert door.service.cancelled.acquire(timeout=TIMEOUT)
    assert not door.service.cancelled.acquire(timeout=NO_TIME)


@add("Keepalive: pings of a client that waits for a reply are no abuse")
def _(door: Served) -> None:
    sleeping(door)
    for turn in range(3):
        door.link.alive(b"%08d" % turn)


@add("Keepalive: too many pings end the connection with ENHANCE_YOUR_CALM")
def _(door: Served) -> None:
    door.link.send(f.ping() * 500)
    goaway = door.link.frame(f.GOAWAY)
    assert goaway.code == f.ENHANCE_YOUR_CALM
    assert b"ping" in goaway.payload[8:]


# Health


def health(service: bytes = b"", **want: object) -> Step:
    """A health check of a service by name."""
    body = b"\x0a" + bytes([len(service)]) + service if service else b""
    return rpc(CHECK, body=message(body), **want)  # type: ignore[arg-type]


rules(
    (
        "Health checking: an empty name is the server's, and a known name is the service's",
        *[health(name, messages=[NOT_SERVING]) for name in (b"", b"a.B")],
        lambda door: door.call(door.service.health.set_ready),
        *[health(name, messages=[SERVING]) for name in (b"", b"a.B")],
    ),
    (
        "Health checking: a name that is not registered is NOT_FOUND",
        *[health(name, status=NOT_FOUND) for name in (b"a.C", b"a.*")],
    ),
)


@add("Health checking: a watcher gets the state at once and at each change")
def _(door: Served) -> None:
    stream, content = opened(door, WATCH)
    door.link.send(f.data(stream, message(b""), end=True))
    expected = [NOT_SERVING]
    door.link.until(lambda: content.messages == expected)
    for change, status in (
        (door.service.health.set_ready, SERVING),
        (lambda: door.service.health.set_unready("leaving"), NOT_SERVING),
    ):
        door.call(change)
        expected.append(status)
        door.link.until(lambda: content.messages == expected)
    assert not content.ended


@add("Health checking: a watcher of an unknown name gets SERVICE_UNKNOWN and stays connected")
def _(door: Served) -> None:
    stream, content = opened(door, WATCH)
    door.link.send(f.data(stream, message(b"\x0a\x03a.C"), end=True))
    door.link.until(lambda: content.messages == [SERVICE_UNKNOWN])
    door.link.alive()
    assert not content.ended


test_sentence = table.tested(served)
