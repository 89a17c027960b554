"""Opening models and ``init_op`` in the service's own process, within start_timeout."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.ends import RequestOp
from penstock.ops.op import Op
from penstock.service import start_watch
from penstock.service.blueprint import deploy
from penstock.service.build import load
from tests.service.in_process import blueprint_of
from tests.service.scripts import PENSTOCK, PYTHON, script
from tests.service.test_run import run_failing

WAYS = pytest.mark.parametrize("way", [PYTHON, PENSTOCK], ids=["python", "penstock run"])
LIMIT = {"start_timeout": 0.5}


def service(hang: Callable[[], object], name: str = "work") -> Op:
    def init_op(self: Op) -> None:
        hang()

    kind = type("Hanging", (Op,), {"init_op": init_op, "process": lambda self, feeds, _: feeds[0]})
    op: Op = kind(name, input_ops=[RequestOp()])
    return op


def forever() -> None:
    threading.Event().wait()


@pytest.fixture(autouse=True)
def nothing_remains(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.WARNING)
    before = signal.getsignal(signal.SIGURG), set(threading.enumerate())
    yield
    assert (signal.getsignal(signal.SIGURG), set(threading.enumerate())) == before


def test_a_slow_start_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(start_watch, "LOG_AFTER", 0.2)
    logged = threading.Event()

    class LoggedHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.set()

    log = logging.getLogger("penstock.service.start_watch")
    handler = LoggedHandler()
    log.addHandler(handler)
    try:
        load(deploy([blueprint_of(service(lambda: logged.wait(20)), {"start_timeout": 0})]))
    finally:
        log.removeHandler(handler)
    (line,) = caplog.messages
    assert line == "op work has not become ready for 0 s: its init_op runs"


def test_start_timeout_applies_to_each_op_separately() -> None:
    """The sum of their times exceeds the limit."""
    last = service(lambda: threading.Event().wait(0.4), "first")
    for name in ("second", "third"):
        after = service(lambda: threading.Event().wait(0.4), name)
        after.set_input_ops([last])
        last = after
    load(deploy([blueprint_of(last, {"start_timeout": 1.0})]))


NATIVE = """
def init_op(self):
    import ctypes
    print("buffered")
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


@pytest.mark.real
@WAYS
@pytest.mark.parametrize("executor", ["thread", "inline"])
def test_a_service_whose_init_op_hangs_exits_with_1(
    executor: str, way: tuple[str, ...], tmp_path: Path
) -> None:
    config = f'"start_timeout": 1, "op": {{"work": {{"executor": "{executor}"}}}}'
    done = run_failing(script(tmp_path, "def init_op(self): threading.Event().wait()", config), way)
    assert done.returncode == 1
    assert "op 'work' was not ready within 1 s (start_timeout)" in done.stderr
    assert "in init_op" in done.stderr
    assert "after the service" not in done.stdout


@pytest.mark.real
@WAYS
def test_an_init_op_that_hangs_in_native_code_ends_with_the_process(
    way: tuple[str, ...], tmp_path: Path
) -> None:
    done = run_failing(script(tmp_path, NATIVE, '"start_timeout": 1'), way)
    assert done.returncode == 1
    assert "in init_op" in done.stderr
    assert "op 'work' was not ready within 1 s (start_timeout)" in done.stderr
    assert "buffered" in done.stdout
    assert "after the service" not in done.stdout


@pytest.mark.real
def test_each_of_several_engines_applies_start_timeout(tmp_path: Path) -> None:
    config = '"start_timeout": 1, "build_dag_each_worker": True, "worker_num": 2'
    done = run_failing(
        script(tmp_path, "def init_op(self): threading.Event().wait()", config), PYTHON
    )
    assert done.returncode == 1
    assert "op 'work' was not ready within 1 s (start_timeout)" in done.stderr
