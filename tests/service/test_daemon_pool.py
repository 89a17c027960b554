from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import CancelledError

import pytest

from penstock.service.daemon_pool import DaemonPool


def test_a_call_s_future_has_its_result_or_exception() -> None:
    pool = DaemonPool(2, "pool")
    assert pool.submit(divmod, 7, 2).result(5) == (3, 1)
    assert pool.submit(int, "12", base=5).result(5) == 7
    for raised in (ValueError("x"), SystemExit(1), KeyboardInterrupt()):

        def fail(raised: BaseException = raised) -> None:
            raise raised

        with pytest.raises(type(raised)):
            pool.submit(fail).result(5)
    pool.shutdown()


def test_as_many_calls_run_at_once_as_there_are_threads() -> None:
    pool = DaemonPool(3, "pool")
    meeting = threading.Barrier(3)
    assert sorted(f.result(5) for f in [pool.submit(meeting.wait, 5) for _ in range(3)]) == [
        0,
        1,
        2,
    ]
    pool.shutdown()


def test_unfinished_has_running_and_queued_calls() -> None:
    pool = DaemonPool(1, "pool")
    gate = threading.Event()
    running, queued = pool.submit(gate.wait, 5), pool.submit(int)
    assert set(pool.unfinished()) == {running, queued}
    gate.set()
    assert queued.result(5) == 0
    pool.shutdown()
    assert pool.unfinished() == []


@pytest.mark.parametrize("cancel", [False, True])
def test_a_shutdown_finishes_or_cancels_queued_calls(cancel: bool) -> None:
    pool = DaemonPool(1, "pool")
    gate = threading.Event()
    started = threading.Event()

    def run() -> None:
        started.set()
        gate.wait(5)

    pool.submit(run)
    assert started.wait(5)
    queued = pool.submit(int)
    pool.shutdown(wait=False, cancel_futures=cancel)
    gate.set()
    if cancel:
        with pytest.raises(CancelledError):
            queued.result(5)
    else:
        assert queued.result(5) == 0
    pool.shutdown()


def test_a_call_that_never_returns_does_not_block_the_process_s_exit() -> None:
    code = (
        "import threading\n"
        "from penstock.service.daemon_pool import DaemonPool\n"
        "DaemonPool(1, 'pool').submit(threading.Event().wait)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=20, check=False).returncode == 0


def test_calls_run_on_existing_threads_if_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool, gate = DaemonPool(2, "pool"), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            pool.submit(int)
    assert pool.unfinished() == []
    first = pool.submit(gate.wait, 20)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    second = pool.submit(int)
    gate.set()
    assert (first.result(20), second.result(20)) == (True, 0)
    pool.shutdown()
