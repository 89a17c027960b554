"""Instruments: who listens, who is dropped, and what a moment costs that nobody listens to."""

from __future__ import annotations

from typing import Any

from penstock.instrument import MOMENTS, Instrument, Instruments


class Listening(Instrument):
    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def late(self, op: str, batch: Any, now: float) -> None:
        self.told.append((op, now))


class Broken(Instrument):
    def late(self, op: str, batch: Any, now: float) -> None:
        raise RuntimeError("cannot listen")


def test_a_moment_that_nobody_listens_to_is_none() -> None:
    assert all(getattr(Instruments(), moment) is None for moment in MOMENTS)
    listening = Instruments([Listening()])
    assert [moment for moment in MOMENTS if getattr(listening, moment) is not None] == ["late"]


def test_one_that_raises_is_dropped_and_no_other() -> None:
    dropped: list[tuple[Instrument, str]] = []
    first, broken, last = Listening(), Broken(), Listening()
    told = Instruments([first, broken, last], lambda who, why: dropped.append((who, str(why))))
    for now in (1.0, 2.0):
        assert told.late is not None
        told.late("op", None, now)  # type: ignore[arg-type]
    assert first.told == last.told == [("op", 1.0), ("op", 2.0)]
    assert dropped == [(broken, "cannot listen")]
    assert told.installed == [first, last]


def test_when_the_last_one_is_dropped_nobody_listens() -> None:
    told = Instruments([Broken()])
    assert told.late is not None
    told.late("op", None, 1.0)  # type: ignore[arg-type]
    assert told.late is None
