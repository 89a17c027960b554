import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.keepalive import PATIENCE_SECONDS, PAUSES, Ask, Keepalive


def test_nothing_is_asked_while_bytes_come() -> None:
    keepalive = Keepalive(0.0)
    for now in range(0, 1000, 10):
        keepalive.heard = float(now)
        assert keepalive.poll(now + 9.0) == PAUSES[0] - 9.0


def test_silence_is_answered_with_one_ping() -> None:
    keepalive = Keepalive(0.0)
    assert keepalive.poll(PAUSES[0]) is Ask.PING
    assert keepalive.poll(PAUSES[0]) == PATIENCE_SECONDS
    assert keepalive.poll(PAUSES[0] + 5.0) == PATIENCE_SECONDS - 5.0


def test_a_peer_that_says_nothing_to_it_is_given_up() -> None:
    keepalive = Keepalive(0.0)
    assert keepalive.poll(PAUSES[0]) is Ask.PING
    assert keepalive.poll(PAUSES[0] + PATIENCE_SECONDS) is Ask.GIVE_UP


def test_any_byte_after_it_is_an_answer() -> None:
    keepalive = Keepalive(0.0)
    assert keepalive.poll(PAUSES[0]) is Ask.PING
    keepalive.heard = PAUSES[0] + 1.0
    assert keepalive.poll(PAUSES[0] + PATIENCE_SECONDS) == PAUSES[1] + 1.0 - PATIENCE_SECONDS


def test_the_silence_begins_with_the_first_call_after_none() -> None:
    keepalive = Keepalive(0.0)
    keepalive.started(5000.0)
    assert keepalive.poll(5000.0) == PAUSES[0]


def test_a_forgotten_answer_does_not_count_against_the_next_call() -> None:
    keepalive = Keepalive(0.0)
    assert keepalive.poll(PAUSES[0]) is Ask.PING
    keepalive.started(5000.0)
    assert keepalive.poll(5000.0) == PAUSES[keepalive.asked]


def pings_of_a_silent_call(seconds: float) -> list[float]:
    """When pings go out while only their answers come, each in a millisecond."""
    keepalive, now, sent = Keepalive(0.0), 0.0, []
    while now < seconds:
        step = keepalive.poll(now)
        if step is Ask.PING:
            sent.append(now)
            keepalive.heard = now + 0.001
        else:
            assert isinstance(step, float)
            now += step
    return sent


def test_a_server_of_grpcs_default_settings_never_sees_too_many() -> None:
    # The rule of its source: a strike for less than 300 s since the last one, out at the third.
    sent = pings_of_a_silent_call(20_000.0)
    strikes = sum(later - before < 300.0 for before, later in itertools.pairwise(sent))
    assert len(sent) > 60
    assert strikes <= 2


@given(st.lists(st.floats(0.0, 100.0), max_size=30))
def test_whatever_comes_a_wait_is_longer_than_nothing(steps: list[float]) -> None:
    keepalive, now = Keepalive(0.0), 0.0
    for step in steps:
        now += step
        answer = keepalive.poll(now)
        if answer is Ask.GIVE_UP:
            return
        assert answer is Ask.PING or answer > 0
