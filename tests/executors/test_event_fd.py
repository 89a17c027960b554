"""EventFd: no signal is lost or taken twice, and no descriptor is leaked."""

import asyncio
import gc
import os
import signal
import threading
from pathlib import Path

import pytest

from penstock.executors.event_fd import EventFd


def test_signals_before_the_wait_are_taken_one_by_one() -> None:
    event = EventFd()
    for _ in range(3):
        event.signal()
    for _ in range(3):
        event.wait()
    os.set_blocking(event.fileno(), False)
    with pytest.raises(BlockingIOError):
        event.wait()


def test_each_signal_wakes_exactly_one_waiting_thread() -> None:
    event, woken, gate = EventFd(), [], threading.Semaphore(0)

    def wait() -> None:
        for _ in range(100):
            event.wait()
            woken.append(threading.current_thread().name)
            gate.release()

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for n in range(400):
        event.signal()
        assert gate.acquire(timeout=10.0), n
        assert len(woken) == n + 1
    for thread in threads:
        thread.join(10.0)
        assert not thread.is_alive()


async def test_a_loop_takes_all_signals_at_once() -> None:
    event, notified = EventFd(watched=True), asyncio.Queue[None]()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        event.clear()
        notified.put_nowait(None)

    event.signal()
    event.signal()
    loop.add_reader(event, on_signal)
    try:
        await asyncio.wait_for(notified.get(), 10.0)
        assert notified.empty()
        thread = threading.Thread(target=event.signal)
        thread.start()
        await asyncio.wait_for(notified.get(), 10.0)
        thread.join()
    finally:
        loop.remove_reader(event)


def test_clearing_without_a_signal_has_no_effect() -> None:
    event = EventFd(watched=True)
    event.clear()
    event.signal()
    event.clear()
    event.clear()


def test_the_descriptors_are_closed_with_the_last_reference() -> None:
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


def test_a_unix_signal_does_not_end_the_wait() -> None:
    event = EventFd()
    woken = threading.Event()

    def wait() -> None:
        event.wait()
        woken.set()

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
        assert not woken.is_set()
        event.signal()
        assert woken.wait(10.0)
    finally:
        signal.signal(signal.SIGUSR1, before)
