"""libfaketime: jumps of the wall clock do not affect a running service."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit.http1 import Connection, connected, pairs, request
from tests.peers.programs import INSTALL, missing
from tests.services.process import ServiceProcess, running

SCRIPT = Path(__file__).parent / "clock_server.py"
HOUR = timedelta(hours=1)
JUMPS = {"an hour ahead": HOUR, "an hour back": -HOUR}
PATH = b"/wait/prediction"
OP_TIMEOUT = 2.0  # as in the script's configuration
SLACK = 1.5  # seconds that a busy machine may add
TIMEOUT = 20.0

numbers = itertools.count()


class Answer(NamedTuple):
    """A request's status (of HTTP or of gRPC), and its duration in seconds."""

    status: int
    took: float


class Clocked:
    """A service and its wall clock."""

    def __init__(self, server: ServiceProcess, file: Path) -> None:
        self.server = server
        self._file = file

    def shift(self, by: timedelta) -> None:
        """Shift the service's clock by this."""
        new_file = self._file.with_suffix(".fresh")
        new_file.write_text(f"{by.total_seconds():+.0f}")
        os.replace(new_file, self._file)

    def line(self, words: str) -> datetime:
        """Wait for a line in the log, and return its time."""
        stamp = re.compile(rf"^INFO (\S+) \[users\.own\] {words}$", re.MULTILINE)
        deadline = time.monotonic() + TIMEOUT
        while (found := stamp.search(self.server.log())) is None:
            assert time.monotonic() < deadline, self.server.log()[-2000:]
        return datetime.fromisoformat(found[1])

    def send_request(self, number: int, seconds: float, limit: float | None) -> int:
        fields = () if limit is None else (b"Penstock-Timeout: %f" % limit,)
        with connected(self.server.http_port, TIMEOUT) as link:
            body = pairs(n=str(number), do=str(seconds))
            link.send(request(body, *fields, target=PATH))
            return link.reply().status


@pytest.fixture(scope="module", params=["thread", "process"])
def clocked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Clocked]:
    # The library for programs with threads.
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not libraries:
        missing(f"libfaketime is not installed: {INSTALL}")
    file = tmp_path_factory.mktemp("clock") / "shift"
    file.write_text("+0")
    environment = {
        "LD_PRELOAD": str(libraries[0]),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "CLOCK_EXECUTOR": request.param,
    }
    with running(SCRIPT, environment=environment) as server:
        yield Clocked(server, file)
        assert server.stop() == 0


@pytest.fixture(params=JUMPS)
def jump(request: pytest.FixtureRequest, clocked: Clocked) -> Iterator[timedelta]:
    yield JUMPS[request.param]
    clocked.shift(timedelta())


class PendingRequest:
    """A request in flight, and its number."""

    def __init__(self, clocked: Clocked, seconds: float, limit: float | None = None) -> None:
        self.number = next(numbers)
        self._pool = ThreadPoolExecutor(1)
        self._began = time.monotonic()
        self._done: Future[int] = self._pool.submit(
            clocked.send_request, self.number, seconds, limit
        )
        clocked.line(f"begun {self.number}")

    def answer(self) -> Answer:
        status = self._done.result(TIMEOUT)
        self._pool.shutdown()
        return Answer(status, time.monotonic() - self._began)


def test_a_clock_jump_does_not_end_a_request_early(clocked: Clocked, jump: timedelta) -> None:
    pending = PendingRequest(clocked, 0.8, 10.0)
    clocked.shift(jump)
    answer = pending.answer()
    assert answer.status == 200
    assert 0.8 <= answer.took < 0.8 + SLACK


def test_a_clock_jump_does_not_shift_an_ops_timeout(clocked: Clocked, jump: timedelta) -> None:
    pending = PendingRequest(clocked, 6.0)
    clocked.shift(jump)
    answer = pending.answer()
    assert OP_TIMEOUT <= answer.took < OP_TIMEOUT + SLACK


def test_log_lines_follow_the_wall_clock(clocked: Clocked, jump: timedelta) -> None:
    pending = PendingRequest(clocked, 0.5)
    before = clocked.line(f"begun {pending.number}")
    clocked.shift(jump)
    pending.answer()
    after = clocked.line(f"ended {pending.number}")
    assert abs(after - before - jump) < timedelta(seconds=5)


def test_an_idle_connection_stays_open_after_a_clock_jump(
    clocked: Clocked, jump: timedelta
) -> None:
    def check_open(link: Connection) -> None:
        link.send(request(target=b"/livez", method=b"GET"))
        assert link.reply().status == 200

    with connected(clocked.server.http_port) as link:
        check_open(link)
        clocked.shift(jump)
        # Longer than the door's interval of checking its connections.
        PendingRequest(clocked, 1.2).answer()
        check_open(link)
