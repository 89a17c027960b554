"""Objects of a closed connection are freed without the garbage collector."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from penstock.door.connection import Connection
from penstock.door.door_exchange import DoorExchange
from penstock.protocols.heads import RequestHead
from penstock.protocols.http1 import Http1Connection
from penstock.protocols.http2 import Http2Connection, Stream
from penstock.protocols.http2.hpack import FieldDecoder
from tests.door.test_http1_session import request
from tests.kit.http1 import connected
from tests.kit.http2 import linked
from tests.services.door import Site

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


def remaining() -> Counter[str]:
    # Not isinstance: objects of other libraries warn when their ``__class__`` is read.
    found = [each for each in gc.get_objects() if issubclass(type(each), OF_CONNECTIONS)]
    return Counter(type(each).__name__ for each in found)


def over_http2(site: Site, ending: str) -> None:
    with linked(site.port) as client:
        assert client.ask("/echo", b"abc").body == b"abc"
        if ending == "closed":
            client.open("/hold", end=True)
        client.open("/stream/100", end=True)
        stream = client.open("/size", end=False)
        if ending == "broken":
            client.socket.sendall(b"\0\0\1\6\0\0\0\0\0x")  # a PING of one byte
            client.until_closed()
        elif ending == "tiny frames":
            client.socket.sendall(
                (b"\0\0\1\0\0" + stream.to_bytes(4, "big") + b"x") * 3000 + b"\0\0\1\6\0\0\0\0\0x"
            )
            client.until_closed()


def over_http1(site: Site, ending: str) -> None:
    with connected(site.port) as connection:
        connection.send(request("/echo", b"abc"))
        assert connection.reply().body == b"abc"
        connection.send(request("/hold", b"") if ending == "held" else b"no request\r\n\r\n")
        if ending != "held":
            assert connection.reply().status == 400
            assert connection.is_closed()


@pytest.mark.parametrize(
    ("protocol", "ending"),
    [
        (over_http2, "closed"),
        (over_http2, "broken"),
        (over_http2, "tiny frames"),
        (over_http1, "held"),
        (over_http1, "broken"),
    ],
)
@pytest.mark.usefixtures("without_collector")
def test_no_objects_of_a_closed_connection_remain(
    opened: Opened, protocol: Callable[[Site, str], None], ending: str
) -> None:
    site = opened()
    before = remaining()
    protocol(site, ending)
    site.until(lambda seen: bool(site.echo_app.holding) == (ending in ("held", "closed")))
    site.call(site.echo_app.release_held)
    site.until(lambda seen: seen.open == 0 and seen.accepted == 1)
    site.call(lambda: None)
    assert remaining() - before == Counter()
