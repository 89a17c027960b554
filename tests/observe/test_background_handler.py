"""Logging never blocks, and dropped lines are counted."""

import logging
import threading
import time
from io import StringIO

import pytest

from penstock.observe.logs import BackgroundHandler


class BlockingStream(StringIO):
    """A stream whose writes block until released, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.failed = threading.Event()
        self.full = False

    def write(self, text: str) -> int:
        assert self.released.wait(10.0)
        if self.full:
            self.failed.set()
            raise OSError(28, "no space left on device")
        return super().write(text)


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("penstock", logging.INFO, __file__, 1, text, None, None)


def test_all_lines_are_written_in_order_before_closing() -> None:
    stream = BlockingStream()
    stream.released.set()
    handler = BackgroundHandler(stream)
    for number in range(100):
        handler.emit(record(f"line {number}"))
    handler.close()
    assert stream.getvalue().splitlines() == [f"line {number}" for number in range(100)]


def test_lines_are_dropped_without_blocking_while_the_stream_blocks() -> None:
    stream = BlockingStream()
    handler = BackgroundHandler(stream, most=10)
    began = time.monotonic()
    for number in range(1000):
        handler.emit(record(f"line {number}"))
    assert time.monotonic() - began < 1.0
    assert handler.dropped >= 1000 - 11
    stream.released.set()
    handler.close()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "line 0"
    reported = sum(int(line.split()[0]) for line in lines if line.endswith("were dropped"))
    assert reported + sum(line.startswith("line") for line in lines) == 1000, (
        "nothing is lost silently"
    )


def test_lines_dropped_while_the_disk_was_full_are_reported_afterwards() -> None:
    stream = BlockingStream()
    stream.released.set()
    stream.full = True
    handler = BackgroundHandler(stream)
    handler.emit(record("lost"))
    assert stream.failed.wait(10.0)
    stream.full = False
    handler.emit(record("kept"))
    handler.close()
    assert stream.getvalue().splitlines() == ["kept", "1 log lines were dropped"]


def test_a_handler_whose_creation_a_signal_interrupted_can_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    handler = BackgroundHandler.__new__(BackgroundHandler)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        handler.__init__(StringIO())  # type: ignore[misc]
    handler.close()  # as the interpreter's exit does
