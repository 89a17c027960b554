"""Whether a client reads unsent bytes fast enough."""

from __future__ import annotations

from penstock.door.connection import Pace

PACE = 1000.0


def test_a_client_that_reads_nothing_is_late_after_the_timeout() -> None:
    pace = Pace(0, 100.0, 30.0)
    assert not pace.is_late(0, 129.9, PACE)
    assert pace.is_late(0, 130.0, PACE)


def test_a_client_that_reads_too_slowly_is_late_soon_after_the_timeout() -> None:
    pace = Pace(0, 0.0, 30.0)
    late = [now for now in range(100) if pace.is_late(now, now, PACE)]
    assert late[0] == 31


def test_a_client_that_reads_at_the_required_rate_is_never_late() -> None:
    pace = Pace(0, 0.0, 30.0)
    assert not any(pace.is_late(int(now * PACE), now, PACE) for now in range(10_000))


def test_a_fast_client_that_stops_reading_is_late_after_the_timeout() -> None:
    pace = Pace(0, 0.0, 30.0)
    assert not pace.is_late(10**9, 1.0, PACE)
    assert not pace.is_late(10**9, 30.9, PACE)
    assert pace.is_late(10**9, 31.0, PACE)
