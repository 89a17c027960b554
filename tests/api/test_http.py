"""Routes without a connection, with a protocol that is controlled by the test."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from penstock.api.health import Health, HealthApplication
from penstock.api.paddle import PaddleApplication
from penstock.api.router import Router
from penstock.door.budget import ByteBudget
from penstock.errors import DeadlineExceeded, RequestError, ServiceBusy
from penstock.protocols import paddle
from penstock.protocols.heads import RequestHead
from tests.api.recorded_exchange import RecordedExchange, post
from tests.kit.held_protocol import HeldProtocol

MOST = 20_000
BODY = json.dumps({"key": ["x"], "value": ["1"]}).encode()


class Site:
    def __init__(self) -> None:
        self.protocol = HeldProtocol()
        self.health = Health()
        self.health.set_ready()
        protocol: Any = self.protocol
        self.routes = Router(
            [
                *PaddleApplication(protocol).routes(),
                *HealthApplication(self.health, []).routes(),
            ],
            max_message_bytes=MOST,
        )

    def request(self, head: RequestHead, *pieces: bytes, budget: int = 1 << 20) -> RecordedExchange:
        exchange = RecordedExchange(head, ByteBudget(budget))
        receiver = self.routes.begin(exchange)
        for number, piece in enumerate(pieces):
            if receiver is None or exchange.replies:
                break
            receiver.data(exchange, piece, number == len(pieces) - 1)
        return exchange


@pytest.fixture
def site() -> Site:
    return Site()


def status_of(exchange: RecordedExchange) -> int:
    [(status, *_)] = exchange.replies
    return status


def test_a_body_in_one_piece_is_decoded_at_once(site: Site) -> None:
    exchange = site.request(post("/ocr/prediction", length=len(BODY)), BODY)
    [call] = site.protocol.calls
    assert (call.name, call.method, call.key, call.value) == ("ocr", "prediction", ["x"], ["1"])
    assert site.protocol.timeouts == [None]
    assert not exchange.replies
    site.protocol.answer(paddle.Reply(key=["y"], value=["2"]))
    [(status, headers, body, close)] = exchange.replies
    assert (status, close) == (200, False)
    assert (b"content-type", b"application/json") in headers
    assert json.loads(body)["value"] == ["2"]


@pytest.mark.parametrize("length", [None, len(BODY)])
def test_a_body_may_arrive_in_pieces(site: Site, length: int | None) -> None:
    site.request(post("/ocr/prediction", length=length), BODY[:5], BODY[5:9], BODY[9:], b"")
    [call] = site.protocol.calls
    assert call.value == ["1"]


def test_a_disconnect_cancels_the_call(site: Site) -> None:
    exchange = site.request(post("/ocr/prediction", length=len(BODY)), BODY)
    assert exchange.on_gone is not None
    exchange.on_gone()
    assert site.protocol.dropped == 1


def test_an_announced_body_over_the_limit_is_refused_before_it_is_read(site: Site) -> None:
    exchange = RecordedExchange(post("/ocr/prediction", length=MOST + 1))
    assert site.routes.begin(exchange) is None
    [(status, _, _, close)] = exchange.replies
    assert (status, close) == (413, True)
    assert exchange.taken == 0


def test_a_body_that_grows_over_the_limit_is_refused(site: Site) -> None:
    piece = b"x" * (MOST * 3 // 5)
    assert status_of(site.request(post("/ocr/prediction"), piece, piece, b"")) == 413
    assert not site.protocol.calls


@pytest.mark.parametrize("after", [(), (b"",)], ids=["in one piece", "and its end apart"])
def test_a_body_over_the_limit_that_was_not_announced_is_refused(
    site: Site, after: tuple[bytes, ...]
) -> None:
    exchange = site.request(post("/ocr/prediction"), BODY + b" " * MOST, *after)
    assert status_of(exchange) == 413
    assert not site.protocol.calls


def test_a_compressed_body_is_decompressed(site: Site) -> None:
    packed = gzip.compress(BODY)
    head = post("/ocr/prediction", (b"content-encoding", b"gzip"), length=len(packed))
    site.request(head, packed)
    [call] = site.protocol.calls
    assert call.value == ["1"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b"content-encoding", b"br")], 415),
        ([(b"content-encoding", b"gzip"), (b"content-encoding", b"gzip")], 415),
        ([(b"content-encoding", b"gzip")], 400),
        ([(b"grpc-timeout", b"1x")], 400),
        ([(b"penstock-timeout", b"soon")], 400),
    ],
)
def test_invalid_or_unsupported_headers_are_refused(
    site: Site, headers: list[tuple[bytes, bytes]], status: int
) -> None:
    exchange = site.request(post("/ocr/prediction", *headers, length=len(BODY)), BODY)
    assert status_of(exchange) == status
    assert not site.protocol.calls


@pytest.mark.parametrize(
    ("header", "value", "seconds"),
    [(b"grpc-timeout", b"1500m", 1.5), (b"penstock-timeout", b"0.25", 0.25)],
)
def test_the_client_may_set_a_timeout(
    site: Site, header: bytes, value: bytes, seconds: float
) -> None:
    site.request(post("/ocr/prediction", (header, value), length=len(BODY)), BODY)
    assert site.protocol.timeouts == [seconds]


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/livez", "GET", 200),
        ("/readyz", "HEAD", 200),
        ("/readyz", "POST", 405),
        ("/a%2fb/c", "POST", 404),
        ("*", "OPTIONS", 204),
        ("*", "GET", 400),
    ],
)
def test_statuses_of_paths_and_methods(site: Site, path: str, method: str, status: int) -> None:
    assert status_of(site.request(post(path, method=method))) == status


def test_readiness_is_evaluated_for_each_request_even_with_a_cached_head(site: Site) -> None:
    head = post("/readyz", method="GET")
    assert status_of(site.request(head)) == 200
    site.health.set_unready("shutting down")
    exchange = site.request(head)
    assert status_of(exchange) == 503
    assert exchange.replies[0][2] == b"shutting down\n"


def test_names_are_percent_decoded_once(site: Site) -> None:
    site.request(post("/my%20ocr/%2541", length=len(BODY)), BODY)
    [call] = site.protocol.calls
    assert (call.name, call.method) == ("my ocr", "%41")


@pytest.mark.parametrize(
    ("error", "status"), [(DeadlineExceeded("late"), 504), (ServiceBusy("full"), 429)]
)
def test_an_error_that_ends_the_call_has_its_status(
    site: Site, error: RequestError, status: int
) -> None:
    exchange = site.request(post("/ocr/prediction", length=len(BODY)), BODY)
    site.protocol.answer(error)
    assert status_of(exchange) == status


def test_a_body_that_arrives_too_late_is_408(site: Site) -> None:
    exchange = RecordedExchange(post("/ocr/prediction", length=len(BODY)))
    receiver = site.routes.begin(exchange)
    assert receiver is not None
    receiver.late(exchange)
    [(status, _, _, close)] = exchange.replies
    assert (status, close) == (408, True)
