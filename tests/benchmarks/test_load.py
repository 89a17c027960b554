"""What a generator reads of a server's CPU time."""

import os
import threading
import time

from benchmarks.load import CpuClock


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_the_loop_has_the_cpu_time_of_the_first_thread_only() -> None:
    clock = CpuClock(os.getpid())
    whole, loop = clock.seconds(), clock.loop_seconds()
    thread = threading.Thread(target=burn, args=(0.2,))
    thread.start()
    thread.join()
    whole, other = clock.seconds() - whole, clock.loop_seconds() - loop
    burn(0.2)
    assert whole > 0.1 > other
    assert clock.loop_seconds() - loop > 0.1


def test_without_a_process_there_is_no_cpu_time() -> None:
    clock = CpuClock(None)
    assert (clock.seconds(), clock.loop_seconds()) == (0.0, 0.0)
