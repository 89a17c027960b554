"""libfaketime: what jumps of the wall clock do to a running service, which is nothing."""

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
OP_TIMEOUT = 2.0  # as the script's configuration says
SLACK = 1.5  # seconds that a busy machine may add
TIMEOUT = 20.0

numbers = itertools.count()


class Answer(NamedTuple):
    """What came of a request (a status of HTTP or of gRPC), and after how many seconds."""

    status: int
    took: float


class Clocked:
    """A service and its wall clock."""

    def __init__(self, server: ServiceProcess, file: Path) -> None:
        self.server = server
        self._file = file

    def shift(self, by: timedelta) -> None:
        """From now on the service's clock is so far off."""
        fresh = self._file.with_suffix(".fresh")
        fresh.write_text(f"{by.total_seconds():+.0f}")
        os.replace(fresh, self._file)

    def line(self, words: str) -> datetime:
        """The time of a line in the log, as soon as it is there."""
        stamp = re.compile(rf"^INFO ([\d-]+ [\d:]+),\d+ \[users\.own\] {words}$", re.MULTILINE)
        deadline = time.monotonic() + TIMEOUT
        while (found := stamp.search(self.server.log())) is None:
            assert time.monotonic() < deadline, self.server.log()[-2000:]
        return datetime.fromisoformat(found[1])

    def ask(self, number: int, seconds: float, limit: float | None) -> int:
        fields = () if limit is None else (b"Penstock-Timeout: %f" % limit,)
        with connected(self.server.http_port, TIMEOUT) as link:
            body = pairs(n=str(number), do=str(seconds))
            link.send(request(body, *fields, target=PATH))
            return link.reply().status


@pytest.fixture(scope="module", params=["thread", "process"])
def clocked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Clocked]:
    # The one for programs with threads.
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


class Asked:
    """A request that is under way, and its number."""

    def __init__(self, clocked: Clocked, seconds: float, limit: float | None = None) -> None:
        self.number = next(numbers)
        self._pool = ThreadPoolExecutor(1)
        self._began = time.monotonic()
        self._done: Future[int] = self._pool.submit(clocked.ask, self.number, seconds, limit)
        clocked.line(f"begun {self.number}")

    def answer(self) -> Answer:
        status = self._done.result(TIMEOUT)
        self._pool.shutdown()
        return Answer(status, time.monotonic() - self._began)


def test_a_time_out_does_not_fire_by_a_jump(clocked: Clocked, jump: timedelta) -> None:
    asked = Asked(clocked, 0.8, 10.0)
    clocked.shift(jump)
    answer = asked.answer()
    assert answer.status == 200
    assert 0.8 <= answer.took < 0.8 + SLACK


def test_an_ops_own_time_out_is_not_moved_by_a_jump(clocked: Clocked, jump: timedelta) -> None:
    asked = Asked(clocked, 6.0)
    clocked.shift(jump)
    answer = asked.answer()
    assert OP_TIMEOUT <= answer.took < OP_TIMEOUT + SLACK


def test_log_lines_follow_the_wall_clock(clocked: Clocked, jump: timedelta) -> None:
    asked = Asked(clocked, 0.5)
    before = clocked.line(f"begun {asked.number}")
    clocked.shift(jump)
    asked.answer()
    after = clocked.line(f"ended {asked.number}")
    assert abs(after - before - jump) < timedelta(seconds=5)


def test_an_idle_connection_outlives_a_jump(clocked: Clocked, jump: timedelta) -> None:
    def alive(link: Connection) -> None:
        link.send(request(target=b"/livez", method=b"GET"))
        assert link.reply().status == 200

    with connected(clocked.server.http_port) as link:
        alive(link)
        clocked.shift(jump)
        # Longer than the door takes to look at its connections.
        Asked(clocked, 1.2).answer()
        alive(link)
