"""Our client over baidu_std, and servers whose every byte a test writes."""

from __future__ import annotations

import gzip
import queue
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

from penstock.client import baidu_std
from penstock.client.baidu_std import over_baidu_std
from penstock.client.call import Outcome
from penstock.client.channels import Channel
from penstock.client.endpoints import Endpoint
from penstock.client.errors import CallFailed
from penstock.client.model_client import METHOD, ModelClient, Variant
from penstock.client.model_feeds import ModelFeeds
from penstock.errors import RequestError, UnknownEncoding
from penstock.protocols import standard_messages as messages
from penstock.protocols.baidu_std import Compression
from penstock.protocols.status import GrpcCode
from penstock.runtimes.prototxt import parse_model_conf
from tests.kit.baidu_std import GENERAL, TIMEOUT, Closed, Connection, answer, field, frame

REQUEST, RESPONSE = messages.general_model_messages()


class Server:
    """A listener; what connects to it is served by the test."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(TIMEOUT)
        self._accepted: list[socket.socket] = []
        self.endpoint = Endpoint(host="127.0.0.1", port=self._listener.getsockname()[1])

    def accept(self) -> Connection:
        self._accepted.append(self._listener.accept()[0])
        return Connection(self._accepted[-1])

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # ends an ``accept`` of another thread
        self._listener.close()
        for each in self._accepted:
            each.close()


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.close()


@pytest.fixture
def channel(server: Server) -> Iterator[Channel]:
    made = over_baidu_std([server.endpoint])
    yield made
    made.close()


class Asked:
    """A call under way."""

    def __init__(
        self, channel: Channel, body: bytes = b"ask", seconds: float | None = TIMEOUT
    ) -> None:
        self._outcomes: queue.Queue[Outcome] = queue.Queue()
        deadline = None if seconds is None else time.monotonic() + seconds
        self.call = channel.start(body, self._outcomes.put, deadline=deadline, method=METHOD)

    def outcome(self) -> Outcome:
        return self._outcomes.get(timeout=TIMEOUT)

    def failure(self) -> CallFailed:
        outcome = self.outcome()
        assert isinstance(outcome, CallFailed), outcome
        return outcome


def test_a_call_says_what_it_calls_and_how_long_it_waits(server: Server, channel: Channel) -> None:
    asked = Asked(channel, b"message", seconds=4.0)
    link = server.accept()
    request = link.read()
    assert request.call is not None
    assert (request.call[1], request.call[2]) == (GENERAL.encode(), b"inference")
    assert 3000 < request.call[8] <= 4000  # type: ignore[operator]
    assert (request.payload, request.fields.get(3)) == (b"message", None)
    link.send(answer(request.id, b"reply"))
    assert asked.outcome() == b"reply"
    unhurried = Asked(channel, seconds=None)
    request = link.read()
    assert request.call == {1: GENERAL.encode(), 2: b"inference"}
    link.send(answer(request.id))
    assert unhurried.outcome() == b""


def test_many_calls_share_a_connection_and_are_answered_in_any_order(
    server: Server, channel: Channel
) -> None:
    asked = [Asked(channel, b"%d" % number) for number in range(100)]
    link = server.accept()
    requests = [link.read() for _ in asked]
    assert {each.payload for each in requests} == {b"%d" % number for number in range(100)}
    assert len({each.id for each in requests}) == 100
    link.send(b"".join(answer(each.id, each.payload * 2) for each in reversed(requests)))
    assert [each.outcome() for each in asked] == [b"%d" % n * 2 for n in range(100)]


def test_an_answer_may_come_in_pieces_and_be_packed(server: Server, channel: Channel) -> None:
    large = np.random.default_rng(1).bytes(1_000_000)
    first = Asked(channel)
    link = server.accept()
    link.send(answer(link.read().id))
    assert first.outcome() == b""
    for kind, pack in ((0, bytes), (2, gzip.compress), (3, zlib.compress)):
        asked = Asked(channel, large)
        request = link.read()
        assert request.payload == large
        data = answer(request.id, pack(large) + b"attached", more=field(3, kind) + field(5, 8))
        link.send(data[:7], data[7:40], data[40:9000], data[9000:])
        assert asked.outcome() == large


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (1001, GrpcCode.UNIMPLEMENTED),
        (1002, GrpcCode.UNIMPLEMENTED),
        (1003, GrpcCode.INVALID_ARGUMENT),
        (1008, GrpcCode.DEADLINE_EXCEEDED),
        (1011, GrpcCode.RESOURCE_EXHAUSTED),
        (2001, GrpcCode.INTERNAL),
        (2004, GrpcCode.RESOURCE_EXHAUSTED),
        (-1, GrpcCode.INTERNAL),
        (7777, GrpcCode.INTERNAL),
    ],
)
def test_error_codes(server: Server, channel: Channel, code: int, status: GrpcCode) -> None:
    asked = Asked(channel)
    link = server.accept()
    link.send(answer(link.read().id, b"", code, "because"))
    failure = asked.failure()
    assert (failure.status, failure.sent) == (status, True)
    assert f"{server.endpoint}: [E{code}] because" in str(failure)
    again = Asked(channel)
    link.send(answer(link.read().id, b"good"))
    assert again.outcome() == b"good"


@pytest.mark.parametrize(
    ("more", "payload", "text"),
    [
        (field(3, 2), b"no gzip", "the reply cannot be read"),
        (field(3, 4), b"", "the reply cannot be read: the compression 4"),
        (field(5, 9), b"1234", "an answer of 4 bytes has no attachment of 9"),
        (field(3, 3), zlib.compress(bytes(3 << 20)), "the reply is too large"),
    ],
    ids=["gzip", "lz4", "attachment", "bomb"],
)
def test_an_answer_that_cannot_be_read_fails_its_call(
    server: Server, channel: Channel, more: bytes, payload: bytes, text: str
) -> None:
    asked, other = Asked(channel), Asked(channel)
    link = server.accept()
    first, second = link.read(), link.read()
    link.send(answer(first.id, payload, more=more), answer(second.id, b"good"))
    assert text in str(asked.failure())
    assert other.outcome() == b"good"


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        frame(b"\xff"),
        b"PRPC\xff\xff\xff\xff\0\0\0\0",
    ],
    ids=["http", "meta", "large"],
)
def test_what_is_no_answer_ends_the_connection(
    server: Server, channel: Channel, data: bytes
) -> None:
    asked = [Asked(channel), Asked(channel)]
    link = server.accept()
    link.read()
    link.send(data)
    for each in asked:
        failure = each.failure()
        assert (failure.status, failure.sent) == (GrpcCode.INTERNAL, True)
        assert "the server broke the protocol" in str(failure)


def test_a_late_answer_is_dropped(server: Server, channel: Channel) -> None:
    late = Asked(channel, seconds=0.05)
    link = server.accept()
    first = link.read()
    failure = late.failure()
    assert (failure.status, failure.sent) == (GrpcCode.DEADLINE_EXCEEDED, True)
    asked = Asked(channel)
    second = link.read()
    assert second.id != first.id
    large = answer(first.id, bytes(500_000))
    link.send(large, answer(99), answer(second.id, b"mine"))
    assert asked.outcome() == b"mine"


def test_a_lost_connection_fails_its_calls_and_the_next_call_connects(
    server: Server, channel: Channel
) -> None:
    asked = Asked(channel)
    link = server.accept()
    link.send(answer(link.read().id))
    assert asked.outcome() == b""
    lost = Asked(channel)
    link.read()
    link.socket.close()
    failure = lost.failure()
    assert (failure.status, failure.sent, failure.retryable) == (GrpcCode.UNAVAILABLE, True, True)
    asked = Asked(channel)
    link = server.accept()
    link.send(answer(link.read().id, b"back"))
    assert asked.outcome() == b"back"


def test_a_server_that_stops_is_left_for_another_one() -> None:
    servers = [Server(), Server()]
    channel = over_baidu_std([each.endpoint for each in servers])
    seen: list[str] = []

    def serve(one: Server, name: str, code: int) -> None:
        with suppress(OSError):  # the end of the test
            while True:
                link = one.accept()
                seen.append(name)
                with suppress(Closed):
                    while True:
                        link.send(answer(link.read().id, name.encode(), code))

    threads = [
        threading.Thread(target=serve, args=(servers[0], "stops", 2003), daemon=True),
        threading.Thread(target=serve, args=(servers[1], "works", 0), daemon=True),
    ]
    for thread in threads:
        thread.start()
    assert [Asked(channel).outcome() for _ in range(6)] == [b"works"] * 6
    assert "stops" in seen
    channel.close()
    for each in servers:
        each.close()
    for thread in threads:
        thread.join(2 * TIMEOUT)


def test_nobody_there_is_no_call_sent() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    endpoint = Endpoint(host="127.0.0.1", port=listener.getsockname()[1])
    listener.close()
    channel = over_baidu_std([endpoint])
    failure = Asked(channel).failure()
    assert (failure.status, failure.sent) == (GrpcCode.UNAVAILABLE, False)
    channel.close()


def test_a_connection_that_idled_is_not_used_again(
    server: Server, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(channel)
    link = server.accept()
    link.send(answer(link.read().id, b"first"))
    assert asked.outcome() == b"first"
    monkeypatch.setattr(baidu_std, "IDLE", 0.0)
    asked = Asked(channel)
    second = server.accept()
    assert link.ends()
    monkeypatch.undo()
    second.send(answer(second.read().id, b"second"))
    assert asked.outcome() == b"second"


def test_requests_are_packed_where_that_is_asked(server: Server) -> None:
    channel = over_baidu_std([server.endpoint], Compression.GZIP)
    asked = Asked(channel, b"some text " * 1000)
    link = server.accept()
    request = link.read()
    assert request.fields[3] == 2
    assert gzip.decompress(request.payload) == b"some text " * 1000
    link.send(answer(request.id, b"reply"))
    assert asked.outcome() == b"reply"
    channel.close()
    with pytest.raises(UnknownEncoding, match="lz4"):
        over_baidu_std([server.endpoint], Compression.LZ4)


def test_closing_ends_calls(server: Server) -> None:
    channel = over_baidu_std([server.endpoint])
    asked = Asked(channel)
    link = server.accept()
    link.read()
    channel.close()
    assert asked.failure().status is GrpcCode.CANCELLED
    assert link.ends()


CONF = parse_model_conf(
    """
    feed_var { name: "x" alias_name: "row" feed_type: 1 shape: 3 }
    fetch_var { name: "y" alias_name: "doubled" fetch_type: 1 shape: 3 }
    """
)


def test_a_model_client_over_it(server: Server) -> None:
    variants = [Variant(tag="only", endpoints=(server.endpoint,))]
    found: list[object] = []

    def predict() -> None:
        with ModelClient(ModelFeeds(CONF), variants, partial(over_baidu_std)) as client:
            found.append(client.predict({"row": [[1, 2, 3]]}, ["doubled"], log_id=7, timeout=5.0))
            try:
                client.predict({"row": [[1, 2, 3]]}, timeout=5.0)
            except RequestError as error:
                found.append(error)

    thread = threading.Thread(target=predict)
    thread.start()
    link = server.accept()
    asked = link.read()
    request = REQUEST.FromString(asked.payload)
    (tensor,) = request.tensor
    assert (tensor.name, tensor.alias_name, [*tensor.float_data]) == ("x", "row", [1, 2, 3])
    assert ([*request.fetch_var_names], request.log_id) == (["doubled"], 7)
    output = {"name": "y", "alias_name": "doubled", "elem_type": 1, "shape": [1, 3]}
    response = RESPONSE(outputs=[{"tensor": [{**output, "float_data": [2, 4, 6]}]}])
    link.send(answer(asked.id, response.SerializeToString()))
    again = link.read()
    link.send(answer(again.id, RESPONSE(err_no=5000, err_msg="no").SerializeToString()))
    thread.join(TIMEOUT)
    prediction, error = found
    np.testing.assert_array_equal(prediction.outputs[""]["doubled"], [[2, 4, 6]])  # type: ignore[attr-defined]
    assert str(error) == "no"
