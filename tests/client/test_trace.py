"""Debug calls: attempts, and the timelines that servers send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import grpc
import pytest

from penstock.client import Endpoint, Timeline, Variant
from penstock.client.trace import TimelineStep
from penstock.protocols.general_model import GeneralResponse
from penstock.protocols.general_model_message import encode as encode_general

from .conftest import TIMEOUT, echo
from .conftest import Service as Server

Serve = Callable[..., Server]
FEED = {"k": "v"}
FIELD = (
    "total;dur=18.2;unpack=0.1;engine=1;id=17,"
    " detect;dur=15.1;begin=0.2;queue=3.1;transfer-in=1;process=11;rows=8;worker=0;attempt=2"
)


def timed(request: bytes, context: grpc.ServicerContext) -> bytes:
    """Send a timeline, if the caller asks for it."""
    if ("penstock-timeline", "1") in [tuple(each) for each in context.invocation_metadata()]:
        context.send_initial_metadata((("server-timing", FIELD), ("server-timing", "edge;dur=20")))
    return echo(request, context)


def lost(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.UNAVAILABLE, "lost in the middle")


def test_the_field_of_penstock() -> None:
    found = Timeline.of_field(FIELD.encode())
    parts = {"queue": 3.1, "transfer in": 1.0, "process": 11.0}
    facts = {"attempt": 2, "rows": 8, "worker": 0}
    assert found == Timeline(18.2, (TimelineStep("detect", 0.2, 15.1, parts, facts),), 17, 1)
    assert "detect" in str(found)
    assert "process 11.0 (attempt 2, rows 8, worker 0)" in str(found)
    assert "request 17 of engine 1" in str(found)
    left = Timeline.of_field(b"total;dur=1, a;dur=1, left-out;count=40")
    assert left is not None
    assert (len(left.steps), left.left_out) == (1, 40)


def test_fields_of_other_servers_are_shown_as_far_as_they_are_understood() -> None:
    found = Timeline.of_field(b'db;dur=53;desc="x", app;dur=47.2;begin=6, miss, odd;dur=nan')
    assert found is not None
    assert [(each.op, each.begin, each.ms) for each in found.steps] == [
        ("db", None, 53.0), ("app", 6.0, 47.2), ("miss", None, 0.0), ("odd", None, 0.0),
    ]  # fmt: skip
    assert (found.ms, found.request_id) == (53.2, None)
    assert str(found).startswith("53.2 ms in the server")
    assert Timeline.of_field(b"") is None


def test_what_a_proxy_tells_is_kept_apart() -> None:
    alone = Timeline.of_field(FIELD.encode())
    for text in (f"edge;dur=20, {FIELD}, cache;desc=miss", f"total;dur=9, {FIELD}"):
        found = Timeline.of_field(text.encode())
        assert alone is not None
        assert found is not None
        assert replace(found, others=()) == alone
    assert [(each.op, each.ms) for each in found.others] == [("total", 9.0)]
    assert "on the way:\n  total" in str(found)


def test_begins_and_ends_of_a_model_server_of_paddle_serving() -> None:
    found = Timeline.of_times([1000, 1500, 1500, 4500])
    assert found is not None
    steps = [(each.op, each.begin, each.ms) for each in found.steps]
    assert (found.ms, steps) == (3.5, [("op0", 0.0, 0.5), ("op1", 0.5, 3.0)])
    assert Timeline.of_times([]) is None
    assert Timeline.of_times([1, 2, 3]) is None


def test_a_debug_call_has_every_attempt_and_the_servers_timeline(serve: Serve) -> None:
    bad, good = serve(lost), serve(timed)
    variant = Variant("v", [bad.endpoint, good.endpoint])
    with Endpoint("x", [variant], load_balance_strategy="rr", idempotent=True) as made:
        # One of two calls in turn begins at the first replica.
        found = max(
            (made.debug(FEED, timeout=TIMEOUT) for _ in range(2)),
            key=lambda each: len(each.attempts),
        )
        assert made.predict(FEED, timeout=TIMEOUT).outputs == FEED
    first, second = found.attempts
    assert first.replica == bad.endpoint
    assert "lost in the middle" in first.outcome
    assert first.timeline is None
    assert (second.replica, second.outcome) == (good.endpoint, "ok")
    assert second.timeline == Timeline.of_field(f"{FIELD}, edge;dur=20".encode())
    assert 0 <= first.begin <= first.begin + first.ms <= second.begin
    assert second.begin + second.ms <= found.ms
    assert (found.error, found.answer.outputs, found.tag) == (None, FEED, "v")
    shown = str(found)
    assert shown.startswith("variant v:")
    assert "lost in the middle" in shown
    assert "process 11.0" in shown


def test_a_debug_call_that_fails_says_where(serve: Serve) -> None:
    bad = serve(lost)
    with Endpoint("x", [Variant("v", [bad.endpoint])]) as made:
        found = asyncio.run(made.debug_async(FEED, timeout=TIMEOUT))
        assert found.answer is None
        assert found.error is not None
        assert "CallFailed: UNAVAILABLE" in str(found)
        assert [each.replica for each in found.attempts] == [bad.endpoint]
        with pytest.raises(ValueError, match="timeout must be"):
            made.debug(FEED, timeout=-1)


def test_a_model_server_without_the_field_has_its_profile_times(serve: Serve) -> None:
    reply = encode_general(GeneralResponse(outputs={}, profile=[10, 1010]))
    server = serve(lambda *_: reply)
    with Endpoint("x", [Variant("v", [server.endpoint])], protocol="h2:grpc") as made:
        found = made.debug({}, timeout=TIMEOUT)
        assert found.attempts[0].timeline == Timeline.of_times([10, 1010])
        made.predict({}, timeout=TIMEOUT)
    wants = [b"\x18\x01" in server.received.get(timeout=TIMEOUT) for _ in range(2)]
    assert wants == [True, False]  # profile_server
