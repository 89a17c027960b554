"""Quotas of callers, at the head of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.api import errors
from penstock.api.baidu_std import BaiduStd
from penstock.api.call import OfStream, Shared
from penstock.api.grpc import Grpc, GrpcCall
from penstock.api.http import Http, HttpCall
from penstock.api.quotas import Quota, Quotas
from penstock.api.router import Router
from penstock.caller import Caller
from penstock.door.exchange import Peer
from penstock.door.limits import DoorLimits
from penstock.engine.submission import Submission
from penstock.errors import TooManyRequests
from penstock.protocols.status import BrpcCode, GrpcCode
from tests.api.recorded_exchange import RecordedExchange, post
from tests.api.test_admission import by_baidu_std, by_grpc, by_http, tell
from tests.engine.test_engine import make_harness
from tests.services.door import Site

ROUTE = Http("POST", "/a", tell)
STREAM = Grpc("/x.Y/Stream", of_messages=True)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def exchange(caller: Any = None, address: str = "10.0.0.1") -> RecordedExchange:
    made = RecordedExchange(post("/a"))
    made.caller = caller
    made.peer = Peer(address, 1, None)  # type: ignore[misc]
    return made


def keyed(name: str, *scopes: str) -> Caller:
    return Caller(name=name, how="key", scopes=frozenset(scopes))


def refusal(quotas: Quotas, *who: Any, route: Any = ROUTE) -> TooManyRequests:
    with pytest.raises(TooManyRequests) as caught:
        quotas.admit(route, exchange(*who))
    return caught.value


def test_each_caller_has_its_own_rate_and_reads_it() -> None:
    clock = Clock()
    quotas = Quotas([Quota(name="free", rate=0.5, burst=2)], clock=clock)
    policy = (b"ratelimit-policy", b'"free";q=2;w=4')
    for left in (b"1", b"0"):
        one = exchange("ann")
        quotas.admit(ROUTE, one)
        assert one.added == (policy, (b"ratelimit", b'"free";r=' + left))
    error = refusal(quotas, "ann")
    assert error.retry_after == pytest.approx(2.0)
    assert error.headers == (policy, (b"ratelimit", b'"free";r=0;t=2'))
    quotas.admit(ROUTE, exchange("bob"))
    clock.now += 2.0
    quotas.admit(ROUTE, exchange("ann"))


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "", True),
        ("a:b", "a:c", False),
    ],
)
def test_unknown_callers_are_counted_by_address(first: str, second: str, same: bool) -> None:
    quotas = Quotas([Quota(name="all", rate=1.0, burst=1)], clock=Clock())
    quotas.admit(ROUTE, exchange(None, first))
    if same:
        refusal(quotas, None, second)
    else:
        quotas.admit(ROUTE, exchange(None, second))


def test_callers_of_one_name_and_different_kinds_are_counted_apart() -> None:
    quotas = Quotas([Quota(name="all", rate=1.0, burst=1)], clock=Clock())
    for how in ("key", "jwt", "certificate"):
        caller = Caller(name="nightly", how=how)
        quotas.admit(ROUTE, exchange(caller))
        refusal(quotas, caller)


def test_open_requests_count_until_they_are_over() -> None:
    quotas = Quotas([Quota(name="all", concurrency=2)], clock=Clock())
    ones = [exchange("ann"), exchange("ann")]
    for each in ones:
        quotas.admit(ROUTE, each)
    assert refusal(quotas, "ann").retry_after == 1.0
    assert ones[0].on_over is not None
    ones[0].on_over()
    quotas.admit(ROUTE, exchange("ann"))
    refusal(quotas, "ann")


def test_a_quota_applies_to_the_callers_and_routes_that_it_names() -> None:
    free = Quota(name="free", rate=1.0, scopes=frozenset({"free"}), callers=frozenset({"ann"}))
    slow = Quota(name="slow", rate=1.0, routes=frozenset({"/slow", "/a.B/Tell"}))
    quotas = Quotas([free, slow], clock=Clock())
    for caller in (keyed("ann"), keyed("bob", "free")):
        quotas.admit(ROUTE, exchange(caller))
        assert "free" in str(refusal(quotas, caller))
    for _ in range(3):
        quotas.admit(ROUTE, exchange(keyed("carl", "paid")))
        quotas.admit(Http("GET", "/livez", tell, always=True), exchange("ann"))
        quotas.admit(Http("GET", "/status", tell, admin=True), exchange("ann"))
    quotas.admit(Http("POST", "/slow", tell), exchange("dora"))
    assert "slow" in str(refusal(quotas, "dora", route=Grpc("/a.B/Tell", tell)))


def test_a_refused_request_counts_for_no_quota() -> None:
    one = Quota(name="one", concurrency=1, rate=5.0, burst=5)
    quotas = Quotas([Quota(name="all", rate=5.0, burst=5), one], clock=Clock())
    first = exchange("ann")
    quotas.admit(ROUTE, first)
    for _ in range(9):
        refusal(quotas, "ann")
    assert first.on_over is not None
    first.on_over()
    last = exchange("ann")
    quotas.admit(ROUTE, last)
    assert dict(last.added)[b"ratelimit"] == b'"all";r=3, "one";r=3'


def of_graph(caller: Any, pattern: str, *, stream: bool = False) -> Submission:
    graph = make_harness().engine.graphs[0]
    graph.name = "g"
    made = Submission(graph, {})
    made.call = HttpCall(exchange(caller), Shared(1), Http("POST", pattern))
    if stream:
        call = GrpcCall(exchange(caller), Shared(1), STREAM)
        made.call = OfStream(caller, call)
    return made


@pytest.mark.parametrize("named", ["/g", "g"])
def test_a_quota_of_a_graph_s_own_route_counts_it_by_every_route(named: str) -> None:
    few = Quota(name="few", rate=1.0, burst=2, routes=frozenset({named}))
    quotas = Quotas([few], {"g": frozenset({"/g"})}, Clock())
    own = exchange("ann")
    quotas.admit(Http("POST", "/g", tell), own)
    quotas.permit(of_graph("ann", "/g"))
    others = of_graph("ann", "/v2/models/{model}/infer")
    quotas.permit(others)
    assert dict(others.call.exchange.added)[b"ratelimit"] == b'"few";r=0'
    with pytest.raises(TooManyRequests):
        quotas.permit(of_graph("ann", "/v2/models/{model}/infer"))
    quotas.permit(of_graph("bob", "/v2/models/{model}/infer"))
    own_request = of_graph("ann", "/g")
    own_request.call = None
    quotas.permit(own_request)


def test_each_message_of_a_stream_counts_until_its_end() -> None:
    quotas = Quotas([Quota(name="all", rate=1.0, burst=3, concurrency=2)], clock=Clock())
    quotas.admit(STREAM, exchange("ann"))
    ones = [of_graph("ann", "", stream=True) for _ in range(2)]
    for each in ones:
        quotas.permit(each)
        assert each.call.stream.exchange.added == ()
    with pytest.raises(TooManyRequests, match="2 open requests"):
        quotas.permit(of_graph("ann", "", stream=True))
    for each in ones:
        each.run_endings()
    quotas.permit(of_graph("ann", "", stream=True))
    with pytest.raises(TooManyRequests, match="1 requests a second"):
        quotas.permit(of_graph("ann", "", stream=True))


def test_a_request_by_a_route_counts_once() -> None:
    quotas = Quotas([Quota(name="all", rate=1.0, burst=1)], {"g": frozenset({"/g"})}, Clock())
    quotas.admit(Http("POST", "/g", tell), exchange("ann"))
    quotas.permit(of_graph("ann", "/g"))


@pytest.fixture
def site() -> Iterator[Site]:
    router = Router(
        [
            Http("POST", "/tell", tell, failed=errors.failed, refusal=errors.refusal),
            Grpc("/a.B/Tell", tell),
            BaiduStd("a.B", "Tell", tell),
        ],
        max_message_bytes=1 << 20,
        admission=Everybody(),
        quotas=Quotas([Quota(name="one", rate=0.01, burst=3, concurrency=1)]),
    )
    made = Site(asyncio.new_event_loop, DoorLimits(), application=router)
    yield made
    made.close()


class Everybody:
    def admit(self, route: Any, exchange: Any) -> str:
        return "ann"


def test_every_protocol_counts_and_is_refused_before_the_body_is_sent(site: Site) -> None:
    assert by_http(site.port, b"abc") == (200, "3 for ann")
    assert by_grpc(site.port, b"abc") == (0, "3 for ann")
    assert by_baidu_std(site.port, b"abc") == (0, "3 for ann")
    status, text = by_http(site.port, None)
    assert status == 429
    assert "over the quota 'one'" in text
    assert by_grpc(site.port, None)[0] == GrpcCode.RESOURCE_EXHAUSTED
    assert by_baidu_std(site.port, None)[0] == BrpcCode.ELIMIT
    seen = site.statistics()
    assert (seen.callers_refused, seen.caller_refusals) == (3, {"quota": 3})
