from __future__ import annotations

import os
import signal
import threading

import pytest

from penstock.supervisor.signals import (
    Stopped,
    leave_hangup_to_supervisor,
    on_hangup,
    signals_stop_the_start,
)

BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


def send_and_continue(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    threading.Event().wait(5)
    pytest.fail("went on")


@BOTH
def test_a_signal_interrupts_the_start(number: signal.Signals) -> None:
    with pytest.raises(Stopped), signals_stop_the_start():
        send_and_continue(number)


@BOTH
def test_an_init_op_that_catches_everything_does_not_suppress_the_signal(
    number: signal.Signals,
) -> None:
    def swallow() -> None:
        try:
            send_and_continue(number)
        except BaseException:
            return

    with pytest.raises(Stopped), signals_stop_the_start():
        swallow()


def test_without_a_signal_the_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with signals_stop_the_start():
        assert signal.getsignal(signal.SIGTERM) is not before[0]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_signals_are_forwarded_once_a_receiver_is_set() -> None:
    calls: list[None] = []
    with signals_stop_the_start() as signals:
        signals.forward_to(lambda: calls.append(None))
        os.kill(os.getpid(), signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert calls == [None, None]


def test_setting_a_receiver_after_a_signal_stops_the_start() -> None:
    def set_receiver_after_signal() -> None:
        with signals_stop_the_start() as signals:
            with pytest.raises(Stopped):
                signal.raise_signal(signal.SIGTERM)
            signals.forward_to(lambda: None)
            pytest.fail("went on")

    with pytest.raises(Stopped):
        set_receiver_after_signal()


def test_the_program_s_own_handlers_are_restored_after_a_service() -> None:
    def own(number: int, frame: object) -> None:
        pytest.fail("not called")

    both = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, own) for number in both}
    try:
        with signals_stop_the_start() as signals:
            signals.end()
            signal.raise_signal(signal.SIGTERM)  # ignored, as the service has ended
        assert [signal.getsignal(number) for number in both] == [own, own]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_exceptions_of_the_start_are_raised_unchanged() -> None:
    with pytest.raises(ZeroDivisionError), signals_stop_the_start():
        _ = 1 / 0


def test_a_hangup_is_reported_until_the_end_and_does_nothing_in_a_child() -> None:
    calls: list[None] = []
    with on_hangup(lambda: calls.append(None)):
        os.kill(os.getpid(), signal.SIGHUP)
        assert calls == [None]
        leave_hangup_to_supervisor()
        os.kill(os.getpid(), signal.SIGHUP)
        assert calls == [None]
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_a_hangup_handler_of_the_program_is_kept() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with on_hangup(lambda: pytest.fail("told")):
            os.kill(os.getpid(), signal.SIGHUP)
            leave_hangup_to_supervisor()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signals_blocked_by_the_parent_process_are_unblocked() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        with pytest.raises(Stopped), signals_stop_the_start():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
