"""Events: no signal is lost, none is taken twice, and no descriptor is left."""

import asyncio
import gc
import os
import signal
import threading
from pathlib import Path

import pytest

from penstock.executors.event_fd import EventFd


def test_rings_before_the_wait_are_heard_one_by_one() -> None:
    event = EventFd()
    for _ in range(3):
        event.signal()
    for _ in range(3):
        event.wait()
    os.set_blocking(event.fileno(), False)
    with pytest.raises(BlockingIOError):
        event.wait()


def test_each_ring_wakes_exactly_one_of_those_who_wait() -> None:
    event, heard, gate = EventFd(), [], threading.Semaphore(0)

    def wait() -> None:
        for _ in range(100):
            event.wait()
            heard.append(threading.current_thread().name)
            gate.release()

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for n in range(400):
        event.signal()
        assert gate.acquire(timeout=10.0), n
        assert len(heard) == n + 1
    for thread in threads:
        thread.join(10.0)
        assert not thread.is_alive()


async def test_a_loop_hears_all_rings_at_once() -> None:
    event, heard = EventFd(watched=True), asyncio.Queue[None]()
    loop = asyncio.get_running_loop()

    def hear() -> None:
        event.clear()
        heard.put_nowait(None)

    event.signal()
    event.signal()
    loop.add_reader(event, hear)
    try:
        await asyncio.wait_for(heard.get(), 10.0)
        assert heard.empty()
        thread = threading.Thread(target=event.signal)
        thread.start()
        await asyncio.wait_for(heard.get(), 10.0)
        thread.join()
    finally:
        loop.remove_reader(event)


def test_clearing_what_was_never_rung_does_nothing() -> None:
    event = EventFd(watched=True)
    event.clear()
    event.signal()
    event.clear()
    event.clear()


def test_its_descriptors_end_with_whoever_held_it_last() -> None:
    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    event, gate = EventFd(), threading.Event()
    thread = threading.Thread(
        target=lambda event: gate.wait(10.0) and event.signal(), args=(event,)
    )
    thread.start()
    del event
    assert set(os.listdir("/proc/self/fd")) - before
    gate.set()
    thread.join(10.0)
    del thread
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_signal_does_not_end_the_wait() -> None:
    event = EventFd()
    heard = threading.Event()

    def wait() -> None:
        event.wait()
        heard.set()

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        state = Path(f"/proc/self/task/{thread.native_id}/stat")
        for _ in range(20):
            while state.read_text().rpartition(")")[2].split()[0] != "S":
                os.sched_yield()
            assert thread.ident is not None
            signal.pthread_kill(thread.ident, signal.SIGUSR1)
        assert not heard.is_set()
        event.signal()
        assert heard.wait(10.0)
    finally:
        signal.signal(signal.SIGUSR1, before)
