"""The record of reloads, and its client. ``tests.service.test_code_reload`` reloads services."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock.errors import StartupError
from penstock.supervisor.reload import Record, reload_process


@contextmanager
def recorded(action: Callable[[Record], object]) -> Iterator[None]:
    """This process has a record, and SIGHUP does this with it."""
    record = Record()
    before = signal.signal(signal.SIGHUP, lambda *_: action(record))
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
        record.close()


def test_the_client_gets_the_result_of_the_reload_that_its_signal_starts() -> None:
    def succeed(record: Record) -> None:
        record.begin()
        record.end(1.5, None)

    with recorded(succeed):
        assert reload_process(os.getpid()) == 1.5
        assert reload_process(os.getpid()) == 1.5


def test_the_client_raises_the_reason_of_a_failure() -> None:
    def fail(record: Record) -> None:
        record.begin()
        record.end(0.5, "a model is missing")

    with recorded(fail), pytest.raises(StartupError, match="a model is missing"):
        reload_process(os.getpid())


def test_the_client_waits_for_the_reload_after_the_one_under_way() -> None:
    record = Record()
    record.begin()  # by somebody else, maybe before the change

    def end_both(*_: object) -> None:
        record.end(1.0, "the one under way")
        record.begin()
        record.end(2.0, None)

    before = signal.signal(signal.SIGHUP, end_both)
    try:
        assert reload_process(os.getpid()) == 2.0
    finally:
        signal.signal(signal.SIGHUP, before)
        record.close()


def test_the_client_gives_up_after_its_timeout() -> None:
    with recorded(Record.begin), pytest.raises(StartupError, match=r"no result within 0\.1 s"):
        reload_process(os.getpid(), 0.1)


def test_a_process_without_a_record_gets_no_signal() -> None:
    before = signal.signal(signal.SIGHUP, lambda *_: pytest.fail("it was signalled"))
    try:
        with pytest.raises(StartupError, match="is no main process of a service"):
            reload_process(os.getpid())
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_process_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(StartupError, match="process 4194305 cannot be reloaded: No such"):
        reload_process(4194305)  # above the largest possible number
