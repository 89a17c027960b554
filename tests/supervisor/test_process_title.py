from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.supervisor.engine_id import EngineId
from penstock.supervisor.process_title import MOST_BYTES, engine_title, worker_title


def test_an_engine_s_title_has_its_number_if_there_are_several() -> None:
    assert engine_title(EngineId()) == "engine"
    assert engine_title(EngineId(index=1, engines=3)) == "engine 1"


@pytest.mark.parametrize(
    ("op", "index", "title"),
    [
        ("det", 0, "det/0"),
        ("a_recogniser_of_texts", 1, "a_recogniser_/1"),
        ("a_recogniser_of_texts", 123, "a_recognise/123"),
        ("识别文字识别文字", 1, "识别文字/1"),  # three octets each: a fifth does not fit
    ],
)
def test_a_worker_s_title_is_its_op_s_name_and_its_number(op: str, index: int, title: str) -> None:
    assert worker_title(op, index) == title
    assert len(title.encode()) <= MOST_BYTES


def test_a_worker_s_title_keeps_the_version_of_its_op() -> None:
    assert worker_title("a_recogniser_of_texts@12", 1, "12") == "a_recognis@12/1"
    assert worker_title("detect@2026-11-26-nightly", 0, "2026-11-26-nightly") == "detect@2026-1/0"


def test_the_kernel_has_a_process_s_title() -> None:
    code = """
import threading
from penstock.supervisor.process_title import name_process
name_process("a_recogniser_/1")
print(open("/proc/self/comm").read(), end="")
read = lambda: print(open("/proc/thread-self/comm").read(), end="")
thread = threading.Thread(target=read)
thread.start()
thread.join()
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "a_recogniser_/1\n" * 2
