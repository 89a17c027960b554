"""What HTTP/1.1 itself costs: microseconds per request for the core, beside httptools' bare parser.

A client on one connection sends the same request again and again, one per read. Ours reads it,
writes the whole answer and goes on to the next; the bare parser collects target, fields and body,
and answers nothing. The best of several rounds counts, because the machine only ever adds time.

    python -m benchmarks.http1_core
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import timeit
from collections.abc import Callable

import httptools

from penstock.protocols.http1 import HeadMemo, Http1Connection, Http1Limits

HEADERS = ((b"content-type", b"application/json"),)
BODY = b'{"key":["x"],"value":["1"]}'
ANSWER = b'{"err_no":0,"err_msg":"","key":["y"],"value":["1"],"tensors":[]}'
HEAD = (
    b"POST /uci/prediction HTTP/1.1\r\nHost: 127.0.0.1:9999\r\n"
    b"User-Agent: python-requests/2.32.3\r\nAccept-Encoding: gzip, deflate\r\nAccept: */*\r\n"
    b"Connection: keep-alive\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n"
)
REQUEST = HEAD % (b"", len(BODY)) + BODY
ROUNDS, NUMBER = 7, 20_000


class Collector:
    """The least that a server does with httptools."""

    def __init__(self) -> None:
        self.url = self.body = b""
        self.headers: list[tuple[bytes, bytes]] = []

    def on_message_begin(self) -> None:
        self.headers = []
        self.body = b""

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body


def microseconds(call: Callable[[], object]) -> float:
    """Of one call, in the best round, in time of this process."""
    rounds = timeit.repeat(call, timer=time.process_time, number=NUMBER, repeat=ROUNDS)
    return min(rounds) / NUMBER * 1e6


def core(requests: list[bytes]) -> Callable[[], None]:
    """Receives the requests in turn, answers each, goes on to the next."""
    connection = Http1Connection(Http1Limits(), HeadMemo())
    reads = itertools.cycle(requests)

    def turn() -> None:
        data = next(reads)
        assert connection.whole(data) or len(connection.receive(data)) == 2
        assert connection.conclude(200, HEADERS, ANSWER)

    return turn


def bare() -> Callable[[], None]:
    """The parser alone."""
    parser = httptools.HttpRequestParser(Collector())
    return lambda: parser.feed_data(REQUEST)


def measure() -> dict[str, float]:
    """Microseconds per request: heads seen before, heads never seen, and httptools."""
    # More heads than a memo keeps, so that each is new when it comes again.
    fresh = [HEAD % (b"X-Request-Id: %d\r\n" % n, len(BODY)) + BODY for n in range(3000)]
    return {
        "core, the same head": microseconds(core([REQUEST])),
        "core, new heads": microseconds(core(fresh)),
        "httptools, parser only": microseconds(bare()),
    }


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--json", action="store_true")
    costs = measure()
    if options.parse_args().json:
        print(json.dumps(costs))
        return
    for name, cost in costs.items():
        print(f"{name:24} {cost:6.2f} us/request")


if __name__ == "__main__":
    main()
