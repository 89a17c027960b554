"""What a worker elsewhere writes, in the log of its engine: lines, events, bounds."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.executors.elsewhere.listener import Connected, Listener
from penstock.executors.elsewhere.output import Lines, log_output, records_of
from penstock.executors.elsewhere.relay import Newest, Relay
from penstock.observe.logs import JsonLines, TextLines
from tests.executors.elsewhere.workers import OPENING


def received(*pieces: bytes) -> list[bytes]:
    lines = Lines()
    found = [line for each in pieces for line in lines.receive(each)]
    return [*found, lines.end()]


def test_lines_do_not_depend_on_how_the_bytes_are_split() -> None:
    data = b"one\n\ntwo \r\nthree"
    assert received(data) == [b"one", b"two", b"three"]
    assert received(*(data[n : n + 1] for n in range(len(data)))) == [b"one", b"two", b"three"]
    assert received(b"10 %\r50 %\r100 %\n") == [b"100 %", b""], "as a terminal shows it"
    assert received(b"a\n", b"") == [b"a", b""]


def test_a_line_without_an_end_is_cut() -> None:
    assert [len(each) for each in received(b"x" * 200_000)] == [65_536] * 3 + [3_392]


def records(line: str) -> list[logging.LogRecord]:
    return list(records_of("work", 1, "node ab, pid 2", line.encode()))


def event_of(log: Callable[[logging.Logger], None]) -> str:
    """The line that a worker's log writes."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    logger, handler = logging.Logger("mine.models"), Keep()
    handler.setFormatter(JsonLines("engine"))
    logger.addHandler(handler)
    log(logger)
    (line,) = lines
    return line


def test_another_line_is_an_event_of_the_op() -> None:
    (record,) = records("printed \x1b[31m")
    assert record.levelno == logging.INFO
    as_text = TextLines().format(record)
    assert as_text.endswith("op work: worker 1 (node ab, pid 2): printed \\x1b[31m")
    members = json.loads(JsonLines().format(record))
    assert (members["op"], members["worker"], members["where"]) == ("work", 1, "node ab, pid 2")
    (record,) = records_of("work", 1, "", b"\xff\xfe")
    assert record.getMessage() == r"op work: worker 1 (): \xff\xfe"


def test_an_event_keeps_its_level_logger_time_and_members() -> None:
    def log(logger: logging.Logger) -> None:
        try:
            raise ValueError("as told")
        except ValueError:
            logger.exception("no %s", "model", extra={"color": "red"})

    before = time.time()
    line = event_of(log)
    (record,) = records(line)
    assert (record.levelno, record.name) == (logging.ERROR, "mine.models")
    assert before - 0.002 <= record.created <= time.time()
    members = json.loads(JsonLines("other").format(record))
    assert members["message"] == "op work: worker 1 (node ab, pid 2): no model"
    assert (members["color"], members["exception_type"]) == ("red", "ValueError")
    assert members["exception"] == json.loads(line)["exception"]
    assert members["time"] == json.loads(line)["time"]
    first, *stack = TextLines().format(record).splitlines()
    assert first.endswith("no model")
    assert stack[0] == "    Traceback (most recent call last):"
    assert stack[-1] == "    ValueError: as told"


def test_an_event_after_a_text_without_an_end_of_line_is_an_event() -> None:
    line = event_of(lambda logger: logger.warning("there"))
    plain, event = records("50 %" + line)
    assert plain.getMessage().endswith("): 50 %")
    assert (event.levelno, event.name) == (logging.WARNING, "mine.models")


@pytest.mark.parametrize(
    "line",
    [
        '{"time": 1}',
        '{"time":"2026","level":"INFO","logger":"a"}',
        '{"time":"2026","level":"INFO","logger":"a","message":1}',
        '{"time":' + "[" * 100_000,
    ],
)
def test_other_objects_are_lines(line: str) -> None:
    (record,) = records(line)
    assert record.getMessage().endswith(line)


def test_members_cannot_replace_what_a_record_has() -> None:
    given = {"getMessage": 1, "args": 1, "op": "x", "levelno": "y", "exception": 5}
    event = {"time": "no", "level": "odd", "logger": "a", "message": "%s", **given}
    (record,) = records(json.dumps(event, separators=(",", ":")))
    assert TextLines().format(record).endswith("op work: worker 1 (node ab, pid 2): %s")
    assert json.loads(JsonLines().format(record))["op"] == "work"


def test_the_newest_bytes_are_kept() -> None:
    newest = Newest(10)
    for data in (b"aaaa", b"bbbb", b"cccc", b"dd"):
        newest.add(data)
    assert newest.take() == b"\n(4 bytes of output were dropped here)\nbbbb"
    assert [newest.take() for _ in range(3)] == [b"cccc", b"dd", b""]
    newest.add(b"x" * 20)
    assert newest.take() == b"x" * 20


class Site:
    """An engine that logs the output of one worker."""

    def __init__(self) -> None:
        self.listener = Listener("work", "127.0.0.1", asyncio.get_running_loop())
        token, self.connected = self.listener.expect()
        at = {"host": self.listener.host, "port": self.listener.port}
        self.opening = replace(OPENING, **at, output_token=token)  # type: ignore[arg-type]
        output, self.written = os.pipe()
        self._output = output

    async def relay(self) -> Relay:
        made = await asyncio.to_thread(Relay, self.opening)
        made.begin("node ab\n, pid 2", self._output)
        return made


@pytest.mark.real
async def test_the_last_words_arrive(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    logging_it = asyncio.create_task(log_output("work", 1, site.connected))
    relay = await site.relay()
    os.write(site.written, b"first\nlast")
    os.close(site.written)
    await asyncio.to_thread(relay.finish, 30.0)
    await asyncio.wait_for(logging_it, 30.0)
    who = "op work: worker 1 (node ab , pid 2): "
    assert [each.getMessage() for each in caplog.records] == [f"{who}first", f"{who}last"]
    site.listener.close()


@pytest.mark.real
async def test_a_pipe_that_others_hold_open_does_not_delay_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = Site()
    logging_it = asyncio.create_task(log_output("work", 1, site.connected))
    relay = await site.relay()
    os.write(site.written, b"last")
    await asyncio.to_thread(relay.finish, 30.0)
    await asyncio.wait_for(logging_it, 30.0)
    assert caplog.records[-1].getMessage().endswith(": last")
    os.close(site.written)
    site.listener.close()


@pytest.mark.real
async def test_a_worker_never_waits_for_its_engine_and_the_newest_lines_arrive(
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = Site()
    relay = await site.relay()

    def write() -> None:
        for number in range(1_000):
            os.write(site.written, b"%d%b\n" % (number, b"x" * 10_000))
        os.close(site.written)

    await asyncio.wait_for(asyncio.to_thread(write), 60.0)  # nobody reads meanwhile
    ending = asyncio.create_task(asyncio.to_thread(relay.finish, 30.0))
    await asyncio.wait_for(log_output("work", 1, site.connected), 60.0)
    await ending
    texts = [each.getMessage() for each in caplog.records]
    assert len(texts) < 1_000
    assert any("bytes of output were dropped here" in each for each in texts)
    assert "): 999x" in texts[-1]
    site.listener.close()


@pytest.mark.real
async def test_without_its_engine_the_output_goes_to_standard_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    site = Site()
    relay = await site.relay()
    (await asyncio.wait_for(site.connected, 30.0)).close()
    site.listener.close()
    seen = ""
    while "again" not in seen:  # the first data after the end of a connection is lost
        os.write(site.written, b"again\n")
        await asyncio.sleep(0)
        seen += capfd.readouterr().err
    os.close(site.written)
    await asyncio.to_thread(relay.finish, 30.0)


@pytest.mark.real
async def test_an_engine_that_is_not_there_is_an_error() -> None:
    site = Site()
    site.listener.close()
    with pytest.raises(ConnectionRefusedError):
        Relay(site.opening)


async def test_the_end_of_a_connection_in_any_way_is_the_end() -> None:
    import socket
    import struct

    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    connected: Connected = asyncio.get_running_loop().create_future()
    connected.set_result(ours)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    theirs.close()
    await asyncio.wait_for(log_output("work", 1, connected), 30.0)
