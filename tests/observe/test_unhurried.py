"""Whoever logs never waits, and what is lost is counted."""

import logging
import threading
import time
from io import StringIO

from penstock.observe.logs import Unhurried


class Stubborn(StringIO):
    """A stream whose writes wait for a gate, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.failed = threading.Event()
        self.full = False

    def write(self, text: str) -> int:
        assert self.gate.wait(10.0)
        if self.full:
            self.failed.set()
            raise OSError(28, "no space left on device")
        return super().write(text)


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("penstock", logging.INFO, __file__, 1, text, None, None)


def test_lines_are_written_in_order_and_all_of_them_before_the_end() -> None:
    stream = Stubborn()
    stream.gate.set()
    handler = Unhurried(stream)
    for number in range(100):
        handler.emit(record(f"line {number}"))
    handler.close()
    assert stream.getvalue().splitlines() == [f"line {number}" for number in range(100)]


def test_a_reader_who_never_comes_costs_lines_and_no_time() -> None:
    stream = Stubborn()
    handler = Unhurried(stream, most=10)
    began = time.monotonic()
    for number in range(1000):
        handler.emit(record(f"line {number}"))
    assert time.monotonic() - began < 1.0
    assert handler.dropped >= 1000 - 11
    stream.gate.set()
    handler.close()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "line 0"
    told = sum(int(line.split()[0]) for line in lines if line.endswith("were dropped"))
    assert told + sum(line.startswith("line") for line in lines) == 1000, "nothing is lost silently"


def test_a_full_disk_is_survived_and_told_when_it_is_over() -> None:
    stream = Stubborn()
    stream.gate.set()
    stream.full = True
    handler = Unhurried(stream)
    handler.emit(record("lost"))
    assert stream.failed.wait(10.0)
    stream.full = False
    handler.emit(record("kept"))
    handler.close()
    assert stream.getvalue().splitlines() == ["kept", "1 log lines were dropped"]
