import pytest

from benchmarks.startup import DEATHS, measure

pytestmark = pytest.mark.real


def test_starts_and_deaths_are_timed() -> None:
    found = measure(1)
    assert {what: len(seconds) for what, seconds in found.items()} == {
        "ready": 1,
        "again": DEATHS,
        "ready in threads": 1,
        "model": 1,
    }
    assert all(0.0 < each < 60.0 for seconds in found.values() for each in seconds)
