"""grpcio's client: every kind of call, and what its connections can do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import psutil
import pytest

from penstock.protocols.pb import Request, Response
from tests.peers.site import INFERENCE, Site

NO_LIMIT = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
TIMEOUT = 20.0
HOLD = [("hold-ms", "30000")]


class Client:
    """The kinds of calls by name, on one channel."""

    def __init__(self, channel: Any) -> None:
        self.unary = channel.unary_unary("/peers.Kinds/Unary")
        self.client_stream = channel.stream_unary("/peers.Kinds/ClientStream")
        self.server_stream = channel.unary_stream("/peers.Kinds/ServerStream")
        self.bidi = channel.stream_stream("/peers.Kinds/Bidi")
        self._counted = channel.unary_unary("/peers.Kinds/Counted")
        self._nothing = channel.unary_unary("/peers.Kinds/Nothing")

    def counted(self, what: str, least: int = 0) -> int:
        """How many calls were held, or cancelled, so far; waits until there are so many."""
        return int(self._counted(f"{what} {least}".encode(), timeout=TIMEOUT))

    def nothing(self) -> None:
        self._nothing(b"", timeout=TIMEOUT)


@pytest.fixture(scope="module")
def client(site: Site) -> Iterator[Client]:
    with grpc.insecure_channel(f"127.0.0.1:{site.kinds}", options=NO_LIMIT) as channel:
        yield Client(channel)


def failure(call: Callable[[], Any]) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def test_a_unary_call(client: Client) -> None:
    assert client.unary(b"hello", timeout=TIMEOUT) == b"hello"
    assert client.unary(b"", timeout=TIMEOUT) == b""


def test_a_stream_of_requests(client: Client) -> None:
    pieces = [b"%d," % number for number in range(1000)]
    assert client.client_stream(iter(pieces), timeout=TIMEOUT) == b"".join(pieces)
    assert client.client_stream(iter(()), timeout=TIMEOUT) == b""


def test_a_stream_of_answers(client: Client) -> None:
    found = list(client.server_stream(b"500 2000", timeout=TIMEOUT))
    assert [int(message.rstrip(b".")) for message in found] == list(range(500))
    assert {len(message) for message in found} == {2000}
    assert list(client.server_stream(b"0 0", timeout=TIMEOUT)) == []


def test_both_streams_in_turn(client: Client) -> None:
    more = threading.Semaphore()

    def ask() -> Iterator[bytes]:
        for number in range(200):
            # The next question only after the answer to the last one.
            assert more.acquire(timeout=TIMEOUT)
            yield b"%d" % number

    found = []
    for message in client.bidi(ask(), timeout=TIMEOUT):
        found.append(int(message))
        more.release()
    assert found == list(range(200))


def test_metadata_goes_both_ways(client: Client) -> None:
    raw = bytes(range(256))
    sent = [("lead-text", "first"), ("lead-raw-bin", raw), ("lead-raw-bin", b"")]
    sent += [("trail-text", "a, b"), ("trail-raw-bin", raw[::-1])]
    _, call = client.unary.with_call(b"x", metadata=sent, timeout=TIMEOUT)
    lead = [pair for pair in call.initial_metadata() if pair[0].startswith("lead-")]
    trail = [pair for pair in call.trailing_metadata() if pair[0].startswith("trail-")]
    assert [tuple(pair) for pair in lead] == sent[:3]
    assert [tuple(pair) for pair in trail] == sent[3:]


def test_a_deadline_ends_the_call_on_both_sides(client: Client) -> None:
    before = client.counted("cancelled")
    begun = time.monotonic()
    error = failure(lambda: client.unary(b"x", metadata=HOLD, timeout=0.3))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert 0.25 < time.monotonic() - begun < 5
    assert client.counted("cancelled", before + 1) == before + 1


@pytest.mark.parametrize("kind", ["unary", "client_stream", "server_stream", "bidi"])
def test_a_cancelled_call_ends_on_both_sides(client: Client, kind: str) -> None:
    held, cancelled = client.counted("held"), client.counted("cancelled")
    message = {"unary": b"x", "server_stream": b"3 10"}.get(kind) or iter([b"x"])
    invoke = getattr(client, kind)
    begin = invoke if kind in ("server_stream", "bidi") else invoke.future
    call = begin(message, metadata=HOLD, timeout=TIMEOUT)
    client.counted("held", held + 1)
    assert client.counted("cancelled") == cancelled
    call.cancel()
    assert call.code() is grpc.StatusCode.CANCELLED
    assert client.counted("cancelled", cancelled + 1) == cancelled + 1


def test_a_message_of_100_mib_goes_both_ways(client: Client) -> None:
    message = b"0123456789abcdef" * (100 << 16)
    assert client.unary(message, timeout=TIMEOUT) == message


def test_pings_keep_a_quiet_connection(site: Site) -> None:
    options = [
        *OWN_CONNECTION,
        ("grpc.keepalive_time_ms", 100),
        ("grpc.keepalive_timeout_ms", 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    with grpc.insecure_channel(f"127.0.0.1:{site.kinds}", options=options) as channel:
        client = Client(channel)
        hold = [("hold-ms", "1500")]
        assert client.unary(b"x", metadata=hold, timeout=TIMEOUT) == b"x"
        line = connections_to(site.kinds)
        assert client.unary(b"x", metadata=hold, timeout=TIMEOUT) == b"x"
        assert connections_to(site.kinds) == line


def connections_to(port: int) -> set[int]:
    """Our own ports of the connections to a port of the service."""
    found = psutil.Process().net_connections("tcp")
    return {c.laddr.port for c in found if c.raddr and c.raddr.port == port}


async def test_ten_thousand_streams_on_one_connection(site: Site) -> None:
    known = connections_to(site.kinds)
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{site.kinds}", options=OWN_CONNECTION
    ) as channel:
        unary = channel.unary_unary("/peers.Kinds/Unary")
        numbers = iter(range(10_000))

        async def caller() -> int:
            answered = 0
            for number in numbers:
                nonce = b"nonce %d" % number
                assert await unary(nonce, timeout=TIMEOUT) == nonce
                answered += 1
            return answered

        assert sum(await asyncio.gather(*(caller() for _ in range(64)))) == 10_000
        assert len(connections_to(site.kinds) - known) == 1


def test_the_pipeline_answers_over_tls_as_in_clear(site: Site) -> None:
    trust = grpc.ssl_channel_credentials(site.certificate.read_bytes())
    message = Request(name="echo", key=["x"], value=["hello"]).SerializeToString()
    answers = []
    with (
        grpc.insecure_channel(f"127.0.0.1:{site.rpc}") as clear,
        grpc.secure_channel(f"localhost:{site.tls}", trust) as sealed,
    ):
        for channel in (clear, sealed):
            call = channel.unary_unary(INFERENCE)
            answers.append(Response.FromString(call(message, timeout=TIMEOUT)))
    assert answers[0].value == ["hello"]
    assert answers[0] == answers[1]
