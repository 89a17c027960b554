"""Whole services whose ops run in worker processes."""

from __future__ import annotations

import http.client
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.service.scripts import post, script, until
from tests.service.test_run_engines import is_free
from tests.services.process import ServiceProcess, running
from tests.supervisor.supervised import has_ended

pytestmark = pytest.mark.real

ACTING = """
def process(self, feed_batch, typical_logid):
    import os, signal
    (feed,) = feed_batch
    if feed.get("do") == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if feed.get("do") == "raise":
        raise ValueError("as told")
    return {"a": feed["a"], "pid": str(os.getpid())}
"""
ALL = '"dag": {"is_thread_op": False}'
TWO = f'{ALL}, "op": {{"work": {{"concurrency": 2}}}}'


def service(folder: Path, hooks: str = ACTING, config: str = TWO) -> Path:
    return script(folder, hooks, config)


def descendants(server: ServiceProcess) -> list[psutil.Process]:
    return psutil.Process(server.pid).children(recursive=True)


def answer(server: ServiceProcess, **pairs: str) -> tuple[int, dict[str, str]]:
    reply = post(server, **pairs).json
    return reply["err_no"], dict(zip(reply["key"], reply["value"], strict=True))


def test_killed_workers_are_replaced_and_no_process_outlives_the_service(
    tmp_path: Path,
) -> None:
    with running(service(tmp_path)) as server:
        family = descendants(server)
        assert len(family) == 3  # the engine and two workers
        titles = sorted(Path(f"/proc/{each.pid}/comm").read_text() for each in family)
        assert titles == ["engine\n", "work/0\n", "work/1\n"]
        number, values = answer(server, a="1")
        assert number == 0
        assert values["a"] == "1"
        assert int(values["pid"]) in {each.pid for each in family}
        assert answer(server, a="1", do="raise")[0] == 10000
        for n in range(6):
            assert answer(server, a="1", do="kill")[0] == 9000
            assert answer(server, a=str(n))[1]["a"] == str(n)
        until(lambda: len(descendants(server)) == 3, "everybody is there")
        family += descendants(server)
        server.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert not any(each.is_running() for each in family)


def test_a_failed_init_op_of_a_worker_is_logged_with_its_traceback(tmp_path: Path) -> None:
    hooks = """
def init_op(self):
    import logging, queue
    queue.Queue.get = lambda *_: threading.Event().wait()  # whatever lets somebody else write
    logging.getLogger("mine").warning("opening")
    raise SystemExit("the disk is gone")
"""
    with running(service(tmp_path, hooks), ready=False) as server:
        assert server.wait_exit() == 1
        log = server.log()
        assert "[mine] opening" in log
        assert "in init_op\n" in log
        assert "SystemExit: the disk is gone" in log
        assert log.count(", in init_op\n") == log.count("cannot start")  # by one worker or both
        assert "does not end" not in log
        assert "penstock serves" not in log


def test_a_log_line_written_just_before_a_worker_s_exit_is_not_lost(tmp_path: Path) -> None:
    hooks = """
def preprocess(self, input_dicts, data_id, log_id):
    import logging, os
    logging.getLogger("mine").error("no way out")
    os._exit(3)
"""
    with running(service(tmp_path, hooks)) as server:
        assert answer(server, a="1")[0] == 9000
        until(lambda: "exit status 3" in server.log(), "the report")
        until(lambda: server.log().count("[mine] no way out") == 1, "the line")


def test_a_worker_that_is_not_ready_in_time_fails_the_start(tmp_path: Path) -> None:
    hooks = "def init_op(self):\n    threading.Event().wait()"
    with running(service(tmp_path, hooks, f'{TWO}, "start_timeout": 1'), ready=False) as server:
        assert server.wait_exit() == 1
        log = server.log()
        assert "in init_op\n" in log  # its stack
        # Both hang; either may be reported first.
        assert re.search(
            r"op 'work': worker [01] was not ready within 1 s .start_timeout.: its init_op runs",
            log,
        )
        assert server.leftovers() == []


# Signals


GIVEN = """
import os, signal
def give(place):
    os.write(1, b"at " + place.encode() + b"\\n")
    os.kill(os.getpid(), signal.NUMBER)
"""
FORKING = """
forks = 0
def count():
    global forks
    forks += 1
    if forks == PLACE:
        give("the fork")
os.register_at_fork(before=count)
"""
LISTENING = """
import penstock.service.run
def listen_on_all(*args, listen=penstock.service.run.listen_on_all):
    before = "PLACE" == "before"
    if before:
        give("the ports")
    listen(*args)
    if not before:
        give("the ports")
penstock.service.run.listen_on_all = listen_on_all
"""
PLACES = {
    "before the engine": FORKING.replace("PLACE", "1"),
    "before the first worker": FORKING.replace("PLACE", "2"),
    "between two workers": FORKING.replace("PLACE", "3"),
    "before the ports open": LISTENING.replace("PLACE", "before"),
    "as the ports are open": LISTENING.replace("PLACE", "behind"),
}
NUMBERS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


@NUMBERS
@pytest.mark.parametrize("place", PLACES)
def test_a_signal_at_any_point_of_the_start_is_a_clean_exit(
    tmp_path: Path, place: str, number: signal.Signals
) -> None:
    """The process sends the signal to itself at that point, so that the test needs no timing."""
    before = (GIVEN + PLACES[place]).replace("NUMBER", number.name)
    with running(script(tmp_path, ACTING, TWO, before), ready=False) as server:
        assert server.wait_exit() == 0
        assert "\nat the " in "\n" + server.log()
        assert "Traceback" not in server.log()
        assert not server.leftovers(0)
        assert is_free(server.http_port)
        assert is_free(server.rpc_port)


@contextmanager
def load(server: ServiceProcess, callers: int = 8) -> Iterator[list[int]]:
    """Clients that send without a pause until they get no reply; yields the error numbers
    received."""
    numbers: list[int] = []

    def send_requests() -> None:
        while True:
            try:
                numbers.append(answer(server, a=str(len(numbers)))[0])
            except (OSError, http.client.HTTPException, KeyError):  # refused, reset, or 503
                return

    threads = [threading.Thread(target=send_requests) for _ in range(callers)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(numbers) > 5 * callers, "load")
        yield numbers
    finally:
        server.close()
        for thread in threads:
            thread.join(60.0)


def test_a_supervisor_killed_under_load_leaves_no_process_after_a_second(tmp_path: Path) -> None:
    with running(service(tmp_path)) as server, load(server):
        watched = [os.pidfd_open(each.pid) for each in descendants(server)]
        assert len(watched) == 3
        os.kill(server.pid, signal.SIGKILL)
        end = time.monotonic() + 1.0
        assert all(has_ended(each, max(0.0, end - time.monotonic())) for each in watched)
        for each in watched:
            os.close(each)
        assert is_free(server.http_port)
        assert is_free(server.rpc_port)
