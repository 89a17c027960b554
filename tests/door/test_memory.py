"""What a connection held is freed when it is closed, without help of the garbage collector."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from penstock.door.connection import Connection
from penstock.door.exchange import DoorExchange
from penstock.protocols.heads import RequestHead
from penstock.protocols.http1 import Http1Connection
from penstock.protocols.http2 import Http2Connection, Stream
from penstock.protocols.http2.hpack import FieldDecoder
from tests.door.http2_client import joined
from tests.door.site import Site
from tests.door.test_http1_session import request
from tests.kit.http1 import connected

Opened = Callable[..., Site]
OF_CONNECTIONS = (
    Connection,
    DoorExchange,
    FieldDecoder,
    Http1Connection,
    Http2Connection,
    RequestHead,
    Stream,
)


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def left() -> Counter[str]:
    # Not isinstance: objects of other libraries warn when their ``__class__`` is read.
    found = [each for each in gc.get_objects() if issubclass(type(each), OF_CONNECTIONS)]
    return Counter(type(each).__name__ for each in found)


def over_http2(site: Site, way: str) -> None:
    with joined(site.port) as client:
        assert client.ask("/echo", b"abc").body == b"abc"
        if way == "closed":
            client.open("/hold", end=True)
        client.open("/stream/100", end=True)
        stream = client.open("/size", end=False)
        if way == "broken":
            client.socket.sendall(b"\0\0\1\6\0\0\0\0\0x")  # a PING of one byte
            client.wait_closed()
        elif way == "tiny frames":
            client.socket.sendall(
                (b"\0\0\1\0\0" + stream.to_bytes(4, "big") + b"x") * 3000 + b"\0\0\1\6\0\0\0\0\0x"
            )
            client.wait_closed()


def over_http1(site: Site, way: str) -> None:
    with connected(site.port) as connection:
        connection.send(request("/echo", b"abc"))
        assert connection.reply().body == b"abc"
        connection.send(request("/hold", b"") if way == "held" else b"no request\r\n\r\n")
        if way != "held":
            assert connection.reply().status == 400
            assert connection.is_closed()


@pytest.mark.parametrize(
    ("over", "way"),
    [
        (over_http2, "closed"),
        (over_http2, "broken"),
        (over_http2, "tiny frames"),
        (over_http1, "held"),
        (over_http1, "broken"),
    ],
)
@pytest.mark.usefixtures("without_collector")
def test_nothing_is_left_of_a_connection(
    opened: Opened, over: Callable[[Site, str], None], way: str
) -> None:
    site = opened()
    before = left()
    over(site, way)
    site.until(lambda seen: bool(site.parrot.holding) == (way in ("held", "closed")))
    site.call(site.parrot.let_go)
    site.until(lambda seen: seen.open == 0 and seen.accepted == 1)
    site.call(lambda: None)
    assert left() - before == Counter()
