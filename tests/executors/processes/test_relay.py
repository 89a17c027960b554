from __future__ import annotations

import os
import threading

import pytest

from penstock.executors.processes import relay
from penstock.executors.processes.relay import Relay
from penstock.executors.processes.report import Report


def test_lines_come_out_whole_and_in_order() -> None:
    reader, writer = os.pipe()
    out = Relay(writer)
    for n in range(1000):
        out.pass_on(b"line %d\n" % n)
    assert out.flush(10.0)
    os.close(writer)
    with open(reader, "rb") as lines:
        assert lines.read().split() == b" ".join(b"line %d" % n for n in range(1000)).split()


def test_what_nobody_reads_is_dropped_and_counted_and_told_when_somebody_does() -> None:
    reader, writer = os.pipe()
    out = Relay(writer)
    piece = b"x" * 1023 + b"\n"
    pieces = 3 * relay.MOST_WAITING // len(piece)
    for _ in range(pieces):
        out.pass_on(piece)
    assert not out.flush(0.05)
    seen = b""
    os.set_blocking(reader, False)
    while not out.flush(0.001):
        try:
            seen += os.read(reader, 1 << 20)
        except BlockingIOError:
            continue
    out.pass_on(b"after\n")
    assert out.flush(10.0)
    os.close(writer)
    with open(reader, "rb") as rest:
        seen += rest.read()
    told = [line for line in seen.splitlines() if line.startswith(b"WARNING")]
    assert told
    dropped = sum(int(line.split()[1]) for line in told)
    assert seen.count(piece) + dropped == pieces
    assert dropped > pieces // 2
    assert seen.endswith(b"after\n")


def test_lines_wait_while_no_thread_is_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("no thread")

    reader, writer = os.pipe()
    out = Relay(writer)
    with monkeypatch.context() as lacking:
        lacking.setattr(threading.Thread, "start", no_thread)
        out.pass_on(b"one\n")
    out.pass_on(b"two\n")
    assert out.flush(10.0)
    os.close(writer)
    with open(reader, "rb") as lines:
        assert lines.read() == b"one\ntwo\n"


def test_a_full_disk_stops_nobody() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    out = Relay(descriptor)
    out.pass_on(b"one\n")
    assert out.flush(10.0)
    reader, writer = os.pipe()
    os.dup2(writer, descriptor)
    os.close(writer)
    out.pass_on(b"two\n")
    assert out.flush(10.0)
    os.close(descriptor)
    with open(reader, "rb") as lines:
        assert lines.read() == b"WARNING 1 lines of workers were dropped\ntwo\n"


def test_a_report_is_one_line_whatever_the_worker_wrote() -> None:
    report = Report(
        op="a", worker=0, pid=9, how="SIGSEGV", data_ids=range(100), batches=3, peak=5 << 20,
        wrote=["fine \u2028 \x1b[2J", "\u202e"],
    )  # fmt: skip
    line = report.line()
    assert line.isprintable()
    assert "SIGSEGV, with data_ids=[0, 1" in line
    assert "and 84 more, after 3 batches, with at most 5 MiB" in line
    assert r"fine \u2028 \x1b[2J | \u202e" in line
    assert all(each.isprintable() for each in report.text().split("\n"))
