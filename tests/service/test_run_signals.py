"""Signals after the one that ended the service: the exit status stays 0."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.service.scripts import PENSTOCK, PYTHON, script
from tests.services.process import running

pytestmark = pytest.mark.real

STOPPED = pytest.mark.parametrize(
    ("way", "number"), [(PYTHON, signal.SIGINT), (PENSTOCK, signal.SIGTERM)]
)

# Points between a process's drain and its exit. At each the process sends the second signal to
# itself, so that the test needs no timing.
LOOP_CLOSED = """
import signal
import penstock.service.run
def run_and_send(main, run=penstock.service.run.run_on_a_loop):
    run(main)
    print("sending", flush=True)
    signal.raise_signal(signal.NUMBER)
penstock.service.run.run_on_a_loop = run_and_send
"""
AT_EXIT = """
import atexit, signal
def send():
    print("sending", flush=True)
    signal.raise_signal(signal.NUMBER)
atexit.register(send)
"""
RETURNED = """
import signal
print("sending", flush=True)
signal.raise_signal(signal.NUMBER)
print("went on", flush=True)
"""


@STOPPED
@pytest.mark.parametrize("place", [LOOP_CLOSED, AT_EXIT], ids=["loop closed", "at exit"])
def test_a_second_signal_during_the_exit_has_no_effect(
    place: str, number: signal.Signals, way: tuple[str, ...], tmp_path: Path
) -> None:
    path = script(tmp_path, before=place.replace("NUMBER", number.name))
    with running(path, command=way) as server:
        assert server.stop() == 0
        assert "sending" in server.log()
        assert "after the service" in server.log()
        assert "Traceback" not in server.log()
        assert "before the start was over" not in server.log()


@STOPPED
def test_a_second_signal_ends_the_rest_of_a_script_after_its_service(
    number: signal.Signals, way: tuple[str, ...], tmp_path: Path
) -> None:
    path = script(tmp_path)
    with path.open("a") as file:
        file.write(RETURNED.replace("NUMBER", number.name))
    with running(path, command=way) as server:
        assert server.stop() == 0
        assert "sending" in server.log()
        assert "went on" not in server.log()
        assert "Traceback" not in server.log()
        assert "before the start was over" not in server.log()


@STOPPED
def test_a_second_signal_during_the_interpreter_s_finalization_has_no_effect(
    number: signal.Signals, way: tuple[str, ...], tmp_path: Path
) -> None:
    before = f"""
import builtins, os
class Last:
    def __del__(self, kill=os.kill, write=os.write, pid=os.getpid(), number={int(number)}):
        write(1, b"sending\\n")
        kill(pid, number)
builtins.kept_to_the_end = Last()
"""
    with running(script(tmp_path, before=before), command=way) as server:
        assert server.stop() == 0
        assert "sending" in server.log()


def test_the_program_s_own_signal_handler_is_restored_after_the_service(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        before="import signal\nsignal.signal(signal.SIGTERM, lambda *_: print('its own'))",
    )
    with path.open("a") as file:
        file.write("signal.raise_signal(signal.SIGTERM)\n")
    with running(path) as server:
        assert server.stop() == 0
        assert "its own" in server.log()
