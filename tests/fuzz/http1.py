"""HTTP/1.1, the server's side: the same bytes give the same events, however split and answered."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from penstock.protocols.http1 import (
    Http1Connection,
    Http1Data,
    Http1Failed,
    Http1Head,
    Http1Limits,
    LineCache,
)
from tests.fuzz.choices import Choices, pieces

LIMITS = Http1Limits(
    max_request_line=200,
    max_header_bytes=400,
    max_header_fields=8,
    max_header_field=100,
    max_trailer_bytes=60,
    max_chunks=6,
)
SHARED = LineCache()
ANSWER = ((b"content-type", b"text/plain"),)


class Driver:
    """Answers each request when it is complete, or with ``early`` at once."""

    def __init__(
        self, memo: LineCache, early: bool, parts: bool, at_once: int | None = None
    ) -> None:
        self.core = Http1Connection(LIMITS, memo, at_once)
        self.short_way = at_once is not None
        self.early = early
        self.parts = parts
        self.trace: list[Any] = []
        self.body = 0
        self.open = False
        self.failed = False

    def handle(self, received: list[Any]) -> None:
        for event in received:
            assert not self.failed, "an event after a failure"
            if isinstance(event, Http1Head):
                assert not self.open, "a second head before the first request was answered"
                self.trace.append(
                    ["head", event.head.method, event.head.path, event.head.headers, b""]
                )
                self.open = True
            elif isinstance(event, Http1Data):
                assert self.open, "a body without a request"
                self.trace[-1][-1] += event.data
                self.body += len(event.data)
            elif isinstance(event, Http1Failed):
                assert 400 <= event.status < 600
                self.failed = True
                self.trace.append(["failed", event.status, event.text, event.answered])
                self.open = False

    def feed(self, data: bytes) -> None:
        body = self.core.whole(data) if self.short_way else None
        if body is None:
            self.handle(self.core.receive(data))
        else:
            head = Http1Head(self.core.head, not self.core.head.body_length)
            self.handle([head] if head.ended else [head, Http1Data(body, True)])
        self.answer()
        self.go_on()

    def go_on(self) -> None:
        while self.core.unread:
            self.handle(self.core.go_on())
            self.answer()

    def answer(self) -> None:
        while self.open and not self.failed and (self.early or self.core.body_ended):
            core = self.core
            core.proceed()
            at_once = None
            if self.short_way and not self.parts:
                at_once = core.conclude(200, ANSWER, b"abc")
            if at_once is not None:
                out = at_once
            elif self.parts:
                out = core.start(200, ANSWER) + core.chunk(b"abc") + core.finish()
            else:
                out = core.respond(200, ANSWER, b"abc")
            assert out.startswith(b"HTTP/1.1 200 ")
            self.trace.append(["answer", out])
            self.open = False
            if at_once is None:
                self.handle(core.next())

    def end(self) -> None:
        self.handle(self.core.eof())
        self.answer()
        self.go_on()


def run(data: bytes) -> Hashable:
    choices = Choices(data)
    options, pattern = choices.octet(), choices.octet()
    stream = choices.rest()
    traces = []
    for memo, cut, at_once in (
        (LineCache(), [stream], None),
        (LineCache(), pieces(stream, pattern), None),
        (SHARED, [stream], None),
        (SHARED, pieces(stream, pattern), 1),
    ):
        driver = Driver(memo, False, bool(options & 2), at_once)
        for piece in cut:
            driver.feed(piece)
        driver.end()
        assert driver.body <= len(stream)
        traces.append(driver.trace)
    assert traces[0] == traces[1], f"it depends on how the bytes are cut: {traces[0]} {traces[1]}"
    assert traces[0] == traces[2], f"it depends on what others have sent: {traces[0]} {traces[2]}"
    assert traces[0] == traces[3], f"it depends on the way taken: {traces[0]} {traces[3]}"
    if options & 1:  # the events may then depend on the split, but nothing raises
        driver = Driver(LineCache(), True, bool(options & 2))
        for piece in pieces(stream, pattern):
            driver.feed(piece)
        driver.end()
    return frozenset(
        (entry[0], entry[1], entry[2] if entry[0] == "failed" else "") for entry in traces[0]
        if entry[0] != "answer"
    )  # fmt: skip


SEEDS = [
    b"\x00\x00GET / HTTP/1.1\r\nhost: a\r\n\r\n",
    b"\x01\x01POST /a?b HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc"
    b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
    b"\x02\x02POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    b"3;x=y\r\nabc\r\n0\r\nt: 1\r\n\r\n",
    b"\x03\x03GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
    b"\x00\x04POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\na",
    b"\x00\x05\r\nOPTIONS * HTTP/1.1\r\nHost: a:80\r\nConnection: close\r\n\r\n",
    b"\x00\x06GET http://a/b HTTP/1.1\r\nhost: a\r\nupgrade: h2c\r\n\r\n",
    b"\x00\x07HEAD /%41 HTTP/1.1\r\nhost: [::1]\r\nx:\t y \r\n\r\n",
]
WORDS = (
    b"\r\n\r\n|\r\n|\n|: |GET / HTTP/1.1\r\nhost: a\r\n\r\n|host: a\r\n|"
    b"content-length: 5\r\n|transfer-encoding: chunked\r\n|expect: 100-continue\r\n|"
    b"connection: close\r\n|0\r\n\r\n|ffffffffffffffff|5\r\nhello\r\n| HTTP/1.0"
).split(b"|")
