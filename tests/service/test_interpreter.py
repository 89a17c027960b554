"""What a service sets in the interpreter; in a process of its own, because it is the tests' too."""

import subprocess
import sys

WATCH = """
import gc, sys
from penstock.service.loop import share_the_lock, spare_the_collector
before = sys.getswitchinterval(), gc.get_threshold(), gc.get_freeze_count()
assert before[0] == 0.005, before
spare_the_collector()
share_the_lock()
assert sys.getswitchinterval() == 0.001
assert gc.get_freeze_count() > 1000 > before[2]
assert gc.get_threshold()[0] > before[1][0]
"""


def test_the_collector_passes_over_what_was_loaded_and_threads_switch_more_often() -> None:
    done = subprocess.run([sys.executable, "-c", WATCH], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
