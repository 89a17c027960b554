"""Calls that break one rule of gRPC or HTTP/2 each.

What the C core of grpc answers in its own words is listed with every status that it has been seen
to give and that is right; our own answers have exactly one.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from dataclasses import dataclass

from tests.hostile.bad_http import MOST_BYTES
from tests.hostile.grpc_raw import METHOD, Connection
from tests.kit.pipeline import encode

OK = 0
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
RESOURCE_EXHAUSTED = 8
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14
BROKEN = None  # the stream was reset, or the connection ended

GOOD = encode({"key": ["x"], "value": ["1"]})


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One bad call.

    Attributes:
        rule: what is broken, in words; the test's id.
        send: does it.
        status: the statuses that are right.
        text: what our own text says; empty for the core's.
    """

    rule: str
    send: Callable[[Connection], None]
    status: tuple[int | None, ...]
    text: str = ""


def _call(
    rule: str,
    *status: int | None,
    more: tuple[tuple[bytes, bytes], ...] = (),
    message: bytes = GOOD,
    flag: int = 0,
    without: bytes = b"",
    text: str = "",
    **changed: bytes,
) -> Case:
    def send(connection: Connection) -> None:
        stream = connection.open(*more, without=without, **changed)
        connection.message(stream, message, flag=flag)

    return Case(rule=rule, send=send, status=status, text=text)


def _data(rule: str, data: bytes, *status: int | None, ends: bool = True, text: str = "") -> Case:
    def send(connection: Connection) -> None:
        stream = connection.open(ends=ends and not data)
        if data:
            connection.send(stream, data, ends=ends)

    return Case(rule=rule, send=send, status=status, text=text)


def _timeout(value: bytes, *status: int | None) -> Case:
    return _call(f"the timeout {value!r}", *status, more=((b"grpc-timeout", value),))


def _frame(rule: str, kind: int, flags: int, stream: int, payload: bytes) -> Case:
    frame = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
    frame += struct.pack(">I", stream) + payload

    def send(connection: Connection) -> None:
        opened = connection.open()
        connection.raw(frame)
        connection.message(opened, GOOD)

    # A core may also shrug at what harms nobody.
    return Case(rule=rule, send=send, status=(OK, BROKEN, INTERNAL, UNAVAILABLE))


def _call_cases() -> list[Case]:
    no_message = "the call has no message"
    late = "no message arrived in time"
    path = METHOD.encode()
    return [
        _data("no message", b"", INVALID_ARGUMENT, text=no_message),
        _data("a prefix that is cut off", b"\0\0\0", INVALID_ARGUMENT, text=no_message),
        _data("a message that is cut off", b"\0\0\0\0\x09abc", INVALID_ARGUMENT, text=no_message),
        _data("a message never sent", b"", DEADLINE_EXCEEDED, ends=False, text=late),
        _data("half a message", b"\0\0\0\0\x09abc", DEADLINE_EXCEEDED, ends=False, text=late),
        _data(
            "a message announced over the limit",
            b"\0" + struct.pack(">I", MOST_BYTES + 1),
            RESOURCE_EXHAUSTED,
        ),
        _call(
            "a message that expands over the limit",
            RESOURCE_EXHAUSTED,
            more=((b"grpc-encoding", b"gzip"),),
            message=gzip.compress(bytes(8 << 20)),
            flag=1,
        ),
        _call("compressed, but not said how", INTERNAL, flag=1),
        _call(
            "an unknown compression",
            UNIMPLEMENTED,
            INTERNAL,
            more=((b"grpc-encoding", b"br"),),
            flag=1,
        ),
        _call(
            "gzip that is none",
            INTERNAL,
            INVALID_ARGUMENT,
            more=((b"grpc-encoding", b"gzip"),),
            flag=1,
        ),
        _call("an unknown method", UNIMPLEMENTED, path=path + b"s"),
        _call("an unknown service", UNIMPLEMENTED, path=b"/inference.GRPCInferenceService/Infer"),
        _call("a path that is no method", UNIMPLEMENTED, BROKEN, path=b"x"),
        _call("an empty path", UNIMPLEMENTED, BROKEN, path=b""),
        _call("a path that is no UTF-8", UNIMPLEMENTED, BROKEN, path=path + b"\xff"),
        _call("a path of bytes that are no text", UNIMPLEMENTED, BROKEN, path=b"/\x80\x81/\xfe"),
        _call("an admin method", UNIMPLEMENTED, path=b"/grpc.channelz.v1.Channelz/GetServers"),
        _call("the verb GET", UNIMPLEMENTED, INTERNAL, BROKEN, method=b"GET"),
        _call("no path", UNIMPLEMENTED, INTERNAL, BROKEN, without=b":path"),
        _call("no scheme", UNIMPLEMENTED, INTERNAL, BROKEN, without=b":scheme"),
        _call("no trailers wanted", INTERNAL, BROKEN, without=b"te"),
        _call("metadata in capitals", INTERNAL, BROKEN, more=((b"X", b"y"),)),
        _call("metadata that is no base64", INTERNAL, BROKEN, more=((b"x-bin", b"***"),)),
        _call("metadata that is no UTF-8", OK, INTERNAL, BROKEN, more=((b"x", b"\xff\xfe"),)),
        *(
            _timeout(value, INVALID_ARGUMENT, INTERNAL, BROKEN)
            for value in (b"", b"1", b"S", b"1x", b"-1S", b"1.5S", b"soon", b"\xff")
        ),
        _timeout(b"99999999H", OK),
        _timeout(b"0S", DEADLINE_EXCEEDED),
        _timeout(b"1n", DEADLINE_EXCEEDED, OK),  # the core counts in milliseconds
    ]


def _frame_cases() -> list[Case]:
    return [
        _frame("a frame larger than agreed", 0, 0, 1, bytes(20_000)),
        _frame("data for the connection", 0, 0, 0, b"x"),
        _frame("data for a stream that is not open", 0, 0, 5, b"x"),
        _frame("padding longer than its frame", 0, 8, 1, b"\xffx"),
        _frame("headers that cannot be unpacked", 1, 5, 3, b"\xff\xff\xff\xff"),
        _frame("headers of an endless number", 1, 5, 3, b"\x7f" + b"\xff" * 20),
        _frame("headers on an even stream", 1, 5, 2, b"\x82"),
        _frame("a priority upon itself", 2, 0, 1, b"\0\0\0\1\0"),
        _frame("a reset of a stream that is not open", 3, 0, 7, b"\0\0\0\0"),
        _frame("a reset of the wrong size", 3, 0, 1, b"\0"),
        _frame("settings of the wrong size", 4, 0, 0, b"abcde"),
        _frame("settings for a stream", 4, 0, 1, b""),
        _frame("an initial window over 2^31", 4, 0, 0, b"\0\x04\xff\xff\xff\xff"),
        _frame("a push to the server", 5, 4, 1, b"\0\0\0\2\x82"),
        _frame("a ping of the wrong size", 6, 0, 0, b"abc"),
        _frame("a goaway of the wrong size", 7, 0, 0, b"abc"),
        _frame("a window growing by nothing", 8, 0, 0, b"\0\0\0\0"),
        _frame("a window growing beyond 2^31", 8, 0, 0, b"\x7f\xff\xff\xff"),
        _frame("a continuation of nothing", 9, 4, 1, b"\x82"),
        _frame("a frame of an unknown kind", 0xFE, 0, 1, b"x"),
    ]


def cases() -> list[Case]:
    """Every case; rules are unique."""
    return [*_call_cases(), *_frame_cases()]
