"""The client over baidu_std, against servers whose bytes the tests write."""

from __future__ import annotations

import gzip
import queue
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

from penstock.client import baidu_std, sdk
from penstock.client.baidu_std import over_baidu_std
from penstock.client.call import Outcome
from penstock.client.channels import Channel
from penstock.client.endpoints import Endpoint
from penstock.client.errors import CallFailed
from penstock.client.model_feeds import ModelFeeds
from penstock.errors import RequestError, UnknownEncoding
from penstock.protocols import standard_messages as messages
from penstock.protocols.baidu_std import Compression
from penstock.protocols.status import GrpcCode
from penstock.runtimes.prototxt import parse_model_conf
from tests.kit.baidu_std import GENERAL, TIMEOUT, Closed, Connection, answer, field, frame

REQUEST, RESPONSE = messages.general_model_messages()


class Server:
    """A listener; the test itself accepts and serves its connections."""

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


class PendingCall:
    """A call in flight."""

    def __init__(
        self, channel: Channel, body: bytes = b"ask", seconds: float | None = TIMEOUT
    ) -> None:
        self._outcomes: queue.Queue[Outcome] = queue.Queue()
        deadline = None if seconds is None else time.monotonic() + seconds
        self.call = channel.start(
            body, self._outcomes.put, deadline=deadline, method=messages.GENERAL_METHOD
        )

    def outcome(self) -> Outcome:
        return self._outcomes.get(timeout=TIMEOUT)

    def failure(self) -> CallFailed:
        outcome = self.outcome()
        assert isinstance(outcome, CallFailed), outcome
        return outcome


def test_a_request_has_service_method_and_timeout(server: Server, channel: Channel) -> None:
    pending = PendingCall(channel, b"message", seconds=4.0)
    link = server.accept()
    request = link.read()
    assert request.call is not None
    assert (request.call[1], request.call[2]) == (GENERAL.encode(), b"inference")
    assert 3000 < request.call[8] <= 4000  # type: ignore[operator]
    assert (request.payload, request.fields.get(3)) == (b"message", None)
    link.send(answer(request.id, b"reply"))
    assert pending.outcome() == b"reply"
    without_timeout = PendingCall(channel, seconds=None)
    request = link.read()
    assert request.call == {1: GENERAL.encode(), 2: b"inference"}
    link.send(answer(request.id))
    assert without_timeout.outcome() == b""


def test_many_calls_share_a_connection_and_are_answered_in_any_order(
    server: Server, channel: Channel
) -> None:
    pending = [PendingCall(channel, b"%d" % number) for number in range(100)]
    link = server.accept()
    requests = [link.read() for _ in pending]
    assert {each.payload for each in requests} == {b"%d" % number for number in range(100)}
    assert len({each.id for each in requests}) == 100
    link.send(b"".join(answer(each.id, each.payload * 2) for each in reversed(requests)))
    assert [each.outcome() for each in pending] == [b"%d" % n * 2 for n in range(100)]


def test_replies_are_read_in_pieces_and_decompressed(server: Server, channel: Channel) -> None:
    large = np.random.default_rng(1).bytes(1_000_000)
    first = PendingCall(channel)
    link = server.accept()
    link.send(answer(link.read().id))
    assert first.outcome() == b""
    for kind, pack in ((0, bytes), (2, gzip.compress), (3, zlib.compress)):
        pending = PendingCall(channel, large)
        request = link.read()
        assert request.payload == large
        data = answer(request.id, pack(large) + b"attached", more=field(3, kind) + field(5, 8))
        link.send(data[:7], data[7:40], data[40:9000], data[9000:])
        assert pending.outcome() == large


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
def test_error_codes_become_grpc_statuses_and_the_connection_stays_open(
    server: Server, channel: Channel, code: int, status: GrpcCode
) -> None:
    pending = PendingCall(channel)
    link = server.accept()
    link.send(answer(link.read().id, b"", code, "because"))
    failure = pending.failure()
    assert (failure.status, failure.sent) == (status, True)
    assert (failure.retry_after == 0) is (code in (1011, 2004))  # not begun: another server may
    assert f"{server.endpoint}: [E{code}] because" in str(failure)
    again = PendingCall(channel)
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
def test_an_undecodable_reply_fails_only_its_call(
    server: Server, channel: Channel, more: bytes, payload: bytes, text: str
) -> None:
    pending, other = PendingCall(channel), PendingCall(channel)
    link = server.accept()
    first, second = link.read(), link.read()
    link.send(answer(first.id, payload, more=more), answer(second.id, b"good"))
    assert text in str(pending.failure())
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
def test_bytes_that_are_no_reply_fail_all_calls_of_the_connection(
    server: Server, channel: Channel, data: bytes
) -> None:
    pending = [PendingCall(channel), PendingCall(channel)]
    link = server.accept()
    link.read()
    link.send(data)
    for each in pending:
        failure = each.failure()
        assert (failure.status, failure.sent) == (GrpcCode.INTERNAL, True)
        assert "the server broke the protocol" in str(failure)


def test_a_reply_after_the_timeout_is_dropped(server: Server, channel: Channel) -> None:
    late = PendingCall(channel, seconds=0.05)
    link = server.accept()
    first = link.read()
    failure = late.failure()
    assert (failure.status, failure.sent) == (GrpcCode.DEADLINE_EXCEEDED, True)
    pending = PendingCall(channel)
    second = link.read()
    assert second.id != first.id
    large = answer(first.id, bytes(500_000))
    link.send(large, answer(99), answer(second.id, b"mine"))
    assert pending.outcome() == b"mine"


def test_a_lost_connection_fails_its_calls_and_the_next_call_connects(
    server: Server, channel: Channel
) -> None:
    pending = PendingCall(channel)
    link = server.accept()
    link.send(answer(link.read().id))
    assert pending.outcome() == b""
    lost = PendingCall(channel)
    link.read()
    link.socket.close()
    failure = lost.failure()
    assert (failure.status, failure.sent, failure.retryable) == (GrpcCode.UNAVAILABLE, True, True)
    pending = PendingCall(channel)
    link = server.accept()
    link.send(answer(link.read().id, b"back"))
    assert pending.outcome() == b"back"


def test_calls_to_a_stopping_server_are_retried_at_another() -> None:
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
    assert [PendingCall(channel).outcome() for _ in range(6)] == [b"works"] * 6
    assert "stops" in seen
    channel.close()
    for each in servers:
        each.close()
    for thread in threads:
        thread.join(2 * TIMEOUT)


def test_a_refused_connection_is_unavailable_and_not_sent() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    endpoint = Endpoint(host="127.0.0.1", port=listener.getsockname()[1])
    listener.close()
    channel = over_baidu_std([endpoint])
    failure = PendingCall(channel).failure()
    assert (failure.status, failure.sent) == (GrpcCode.UNAVAILABLE, False)
    channel.close()


def test_a_connection_idle_for_too_long_is_replaced(
    server: Server, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = PendingCall(channel)
    link = server.accept()
    link.send(answer(link.read().id, b"first"))
    assert pending.outcome() == b"first"
    monkeypatch.setattr(baidu_std, "IDLE", 0.0)
    pending = PendingCall(channel)
    second = server.accept()
    assert link.ends()
    monkeypatch.undo()
    second.send(answer(second.read().id, b"second"))
    assert pending.outcome() == b"second"


def test_requests_are_compressed_if_configured(server: Server) -> None:
    channel = over_baidu_std([server.endpoint], Compression.GZIP)
    pending = PendingCall(channel, b"some text " * 1000)
    link = server.accept()
    request = link.read()
    assert request.fields[3] == 2
    assert gzip.decompress(request.payload) == b"some text " * 1000
    link.send(answer(request.id, b"reply"))
    assert pending.outcome() == b"reply"
    channel.close()
    with pytest.raises(UnknownEncoding, match="lz4"):
        over_baidu_std([server.endpoint], Compression.LZ4)


def test_close_cancels_calls_in_flight(server: Server) -> None:
    channel = over_baidu_std([server.endpoint])
    pending = PendingCall(channel)
    link = server.accept()
    link.read()
    channel.close()
    assert pending.failure().status is GrpcCode.CANCELLED
    assert link.ends()


CONF = parse_model_conf(
    """
    feed_var { name: "x" alias_name: "row" feed_type: 1 shape: 3 }
    fetch_var { name: "y" alias_name: "doubled" fetch_type: 1 shape: 3 }
    """
)


def test_the_sdk_predicts_over_baidu_std(server: Server) -> None:
    variants = [sdk.Variant("only", [str(server.endpoint)])]
    found: list[object] = []

    def predict() -> None:
        with sdk.Endpoint(
            "m", variants, model="", client_config=ModelFeeds(CONF), protocol="baidu_std"
        ) as client:
            found.append(client.predict({"row": [[1, 2, 3]]}, ["doubled"], log_id=7, timeout=5.0))
            try:
                client.predict({"row": [[1, 2, 3]]}, timeout=5.0)
            except RequestError as error:
                found.append(error)

    thread = threading.Thread(target=predict)
    thread.start()
    link = server.accept()
    pending = link.read()
    request = REQUEST.FromString(pending.payload)
    (tensor,) = request.tensor
    assert (tensor.name, tensor.alias_name, [*tensor.float_data]) == ("x", "row", [1, 2, 3])
    assert ([*request.fetch_var_names], request.log_id) == (["doubled"], 7)
    output = {"name": "y", "alias_name": "doubled", "elem_type": 1, "shape": [1, 3]}
    response = RESPONSE(outputs=[{"tensor": [{**output, "float_data": [2, 4, 6]}]}])
    link.send(answer(pending.id, response.SerializeToString()))
    again = link.read()
    link.send(answer(again.id, RESPONSE(err_no=5000, err_msg="no").SerializeToString()))
    thread.join(TIMEOUT)
    prediction, error = found
    np.testing.assert_array_equal(prediction.outputs["doubled"], [[2, 4, 6]])  # type: ignore[attr-defined]
    assert str(error) == "no"
