"""When PINGs are sent, and when a connection is given up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.keepalive import PING_AFTER, PING_TIMEOUT, Keepalive, KeepaliveStep


def test_no_ping_is_sent_while_bytes_arrive() -> None:
    keepalive = Keepalive(0.0)
    for now in range(0, 1000, 10):
        keepalive.last_received = float(now)
        assert keepalive.poll(now + 9.0) == PING_AFTER[0] - 9.0


def test_a_peer_that_does_not_answer_a_ping_is_given_up() -> None:
    keepalive = Keepalive(0.0)
    assert keepalive.poll(PING_AFTER[0]) is KeepaliveStep.PING
    assert keepalive.poll(PING_AFTER[0] + PING_TIMEOUT) is KeepaliveStep.GIVE_UP


def test_any_byte_after_a_ping_counts_as_its_answer() -> None:
    keepalive = Keepalive(0.0)
    assert keepalive.poll(PING_AFTER[0]) is KeepaliveStep.PING
    keepalive.last_received = PING_AFTER[0] + 1.0
    assert keepalive.poll(PING_AFTER[0] + PING_TIMEOUT) == PING_AFTER[1] + 1.0 - PING_TIMEOUT


def test_the_keepalive_time_starts_with_the_first_call_after_an_idle_time() -> None:
    keepalive = Keepalive(0.0)
    keepalive.started(5000.0)
    assert keepalive.poll(5000.0) == PING_AFTER[0]


@given(st.lists(st.floats(0.0, 100.0), max_size=30))
def test_a_keepalive_wait_is_always_positive(steps: list[float]) -> None:
    keepalive, now = Keepalive(0.0), 0.0
    for step in steps:
        now += step
        answer = keepalive.poll(now)
        if answer is KeepaliveStep.GIVE_UP:
            return
        assert answer is KeepaliveStep.PING or answer > 0
