from __future__ import annotations

import os
import signal
import threading

import pytest

from penstock.service.signals import (
    Stopped,
    hang_up_as_before,
    on_hangup,
    signals_stop_the_start,
)

BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


def send_and_go_on(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    threading.Event().wait(5)
    pytest.fail("went on")


@BOTH
def test_a_signal_ends_what_runs(number: signal.Signals) -> None:
    with pytest.raises(Stopped), signals_stop_the_start():
        send_and_go_on(number)


@BOTH
def test_an_op_that_catches_everything_does_not_hold_the_signal_back(
    number: signal.Signals,
) -> None:
    def swallow() -> None:
        try:
            send_and_go_on(number)
        except BaseException:
            return

    with pytest.raises(Stopped), signals_stop_the_start():
        swallow()


def test_without_a_signal_nothing_happens_and_the_handlers_are_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with signals_stop_the_start():
        assert signal.getsignal(signal.SIGTERM) is not before[0]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_who_has_taken_the_signals_is_told_instead() -> None:
    told: list[None] = []
    with signals_stop_the_start() as signals:
        signals.forward_to(lambda: told.append(None))
        os.kill(os.getpid(), signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert told == [None, None]


def test_who_takes_the_signals_after_one_has_come_is_stopped() -> None:
    def serve_after_one() -> None:
        with signals_stop_the_start() as signals:
            with pytest.raises(Stopped):
                signal.raise_signal(signal.SIGTERM)
            signals.forward_to(lambda: None)
            pytest.fail("went on")

    with pytest.raises(Stopped):
        serve_after_one()


def test_handlers_of_the_program_s_own_come_back_after_a_service_too() -> None:
    def own(number: int, frame: object) -> None:
        pytest.fail("not called")

    both = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, own) for number in both}
    try:
        with signals_stop_the_start() as signals:
            signals.end()
            signal.raise_signal(signal.SIGTERM)  # ignored: what it asks for is done
        assert [signal.getsignal(number) for number in both] == [own, own]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_what_runs_keeps_its_own_exceptions() -> None:
    with pytest.raises(ZeroDivisionError), signals_stop_the_start():
        _ = 1 / 0


def test_a_hangup_tells_until_the_end_and_not_a_child() -> None:
    told: list[None] = []
    with on_hangup(lambda: told.append(None)):
        os.kill(os.getpid(), signal.SIGHUP)
        assert told == [None]
        hang_up_as_before()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_who_has_decided_about_hangups_is_not_overruled() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with on_hangup(lambda: pytest.fail("told")):
            os.kill(os.getpid(), signal.SIGHUP)
            hang_up_as_before()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signals_that_whoever_started_us_has_blocked_are_heard() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        with pytest.raises(Stopped), signals_stop_the_start():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
