"""Instruments: their calls, the removal of those that raise, and moments without any."""

from __future__ import annotations

from typing import Any

from penstock.instrument import MOMENTS, Instrument, Instruments


class Recording(Instrument):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def late(self, op: str, batch: Any, now: float) -> None:
        self.calls.append((op, now))


class Broken(Instrument):
    def late(self, op: str, batch: Any, now: float) -> None:
        raise RuntimeError("cannot listen")


def test_a_moment_without_an_instrument_is_none() -> None:
    assert all(getattr(Instruments(), moment) is None for moment in MOMENTS)
    one_installed = Instruments([Recording()])
    assert [moment for moment in MOMENTS if getattr(one_installed, moment) is not None] == ["late"]


def test_only_the_instrument_that_raises_is_removed() -> None:
    dropped: list[tuple[Instrument, str]] = []
    first, broken, last = Recording(), Broken(), Recording()
    calls = Instruments(
        [first, broken, last], lambda removed, error: dropped.append((removed, str(error)))
    )
    for now in (1.0, 2.0):
        assert calls.late is not None
        calls.late("op", None, now)  # type: ignore[arg-type]
    assert first.calls == last.calls == [("op", 1.0), ("op", 2.0)]
    assert dropped == [(broken, "cannot listen")]
    assert calls.installed == [first, last]


def test_a_moment_is_none_after_its_last_instrument_was_removed() -> None:
    calls = Instruments([Broken()])
    assert calls.late is not None
    calls.late("op", None, 1.0)  # type: ignore[arg-type]
    assert calls.late is None
