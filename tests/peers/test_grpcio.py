"""grpcio's client: every kind of call, and its connections."""

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
        """The number of held or cancelled calls so far; waits until there are ``least``."""
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


def test_a_unary_call_is_answered(client: Client) -> None:
    assert client.unary(b"hello", timeout=TIMEOUT) == b"hello"
    assert client.unary(b"", timeout=TIMEOUT) == b""


def test_a_client_streaming_call_is_answered(client: Client) -> None:
    pieces = [b"%d," % number for number in range(1000)]
    assert client.client_stream(iter(pieces), timeout=TIMEOUT) == b"".join(pieces)
    assert client.client_stream(iter(()), timeout=TIMEOUT) == b""


def test_a_server_streaming_call_is_answered(client: Client) -> None:
    found = list(client.server_stream(b"500 2000", timeout=TIMEOUT))
    assert [int(message.rstrip(b".")) for message in found] == list(range(500))
    assert {len(message) for message in found} == {2000}
    assert list(client.server_stream(b"0 0", timeout=TIMEOUT)) == []


def test_a_bidirectional_call_answers_each_message_in_turn(client: Client) -> None:
    more = threading.Semaphore()

    def messages() -> Iterator[bytes]:
        for number in range(200):
            # The next message only after the answer to the last one.
            assert more.acquire(timeout=TIMEOUT)
            yield b"%d" % number

    found = []
    for message in client.bidi(messages(), timeout=TIMEOUT):
        found.append(int(message))
        more.release()
    assert found == list(range(200))


def test_metadata_is_received_and_returned(client: Client) -> None:
    raw = bytes(range(256))
    sent = [("lead-text", "first"), ("lead-raw-bin", raw), ("lead-raw-bin", b"")]
    sent += [("trail-text", "a, b"), ("trail-raw-bin", raw[::-1])]
    _, call = client.unary.with_call(b"x", metadata=sent, timeout=TIMEOUT)
    lead = [pair for pair in call.initial_metadata() if pair[0].startswith("lead-")]
    trail = [pair for pair in call.trailing_metadata() if pair[0].startswith("trail-")]
    assert [tuple(pair) for pair in lead] == sent[:3]
    assert [tuple(pair) for pair in trail] == sent[3:]


def test_a_calls_deadline_ends_it_at_client_and_server(client: Client) -> None:
    before = client.counted("cancelled")
    begun = time.monotonic()
    error = failure(lambda: client.unary(b"x", metadata=HOLD, timeout=0.3))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert 0.25 < time.monotonic() - begun < 5
    assert client.counted("cancelled", before + 1) == before + 1


@pytest.mark.parametrize("kind", ["unary", "client_stream", "server_stream", "bidi"])
def test_a_cancelled_call_ends_at_client_and_server(client: Client, kind: str) -> None:
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


def test_a_message_of_100_mib_is_echoed(client: Client) -> None:
    message = b"0123456789abcdef" * (100 << 16)
    assert client.unary(message, timeout=TIMEOUT) == message


def test_keepalive_pings_keep_an_idle_connection_open(site: Site) -> None:
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
        connections = connections_to(site.kinds)
        assert client.unary(b"x", metadata=hold, timeout=TIMEOUT) == b"x"
        assert connections_to(site.kinds) == connections


def connections_to(port: int) -> set[int]:
    """The local ports of this process's connections to a port of the service."""
    found = psutil.Process().net_connections("tcp")
    return {c.laddr.port for c in found if c.raddr and c.raddr.port == port}


async def test_one_connection_carries_ten_thousand_calls(site: Site) -> None:
    earlier = connections_to(site.kinds)
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{site.kinds}", options=OWN_CONNECTION
    ) as channel:
        unary = channel.unary_unary("/peers.Kinds/Unary")
        numbers = iter(range(10_000))

        async def make_calls() -> int:
            answered = 0
            for number in numbers:
                nonce = b"nonce %d" % number
                assert await unary(nonce, timeout=TIMEOUT) == nonce
                answered += 1
            return answered

        assert sum(await asyncio.gather(*(make_calls() for _ in range(64)))) == 10_000
        assert len(connections_to(site.kinds) - earlier) == 1


def test_the_pipeline_answers_alike_with_and_without_tls(site: Site) -> None:
    credentials = grpc.ssl_channel_credentials(site.certificate.read_bytes())
    message = Request(name="echo", key=["x"], value=["hello"]).SerializeToString()
    answers = []
    with (
        grpc.insecure_channel(f"127.0.0.1:{site.rpc}") as clear,
        grpc.secure_channel(f"localhost:{site.tls}", credentials) as encrypted,
    ):
        for channel in (clear, encrypted):
            call = channel.unary_unary(INFERENCE)
            answers.append(Response.FromString(call(message, timeout=TIMEOUT)))
    assert answers[0].value == ["hello"]
    assert answers[0] == answers[1]
