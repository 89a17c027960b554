"""The bell: nothing rung is lost, nothing is heard twice, and no descriptor is left."""

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.executors import bell as bell_module
from penstock.executors.bell import Bell


@pytest.fixture(params=["eventfd", "pipe"], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What it stands on: Linux has both."""
    monkeypatch.setattr(bell_module, "_EVENTS", request.param == "eventfd")
    yield request.param
    gc.collect()  # while the module still says how it was made


def test_rings_before_the_wait_are_heard_one_by_one() -> None:
    bell = Bell()
    for _ in range(3):
        bell.ring()
    for _ in range(3):
        bell.wait()
    os.set_blocking(bell.fileno(), False)
    with pytest.raises(BlockingIOError):
        bell.wait()


def test_each_ring_wakes_exactly_one_of_those_who_wait() -> None:
    bell, heard, gate = Bell(), [], threading.Semaphore(0)

    def wait() -> None:
        for _ in range(100):
            bell.wait()
            heard.append(threading.current_thread().name)
            gate.release()

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for n in range(400):
        bell.ring()
        assert gate.acquire(timeout=10.0), n
        assert len(heard) == n + 1
    for thread in threads:
        thread.join(10.0)
        assert not thread.is_alive()


async def test_a_loop_hears_all_rings_at_once() -> None:
    bell, heard = Bell(watched=True), asyncio.Queue[None]()
    loop = asyncio.get_running_loop()

    def hear() -> None:
        bell.clear()
        heard.put_nowait(None)

    bell.ring()
    bell.ring()
    loop.add_reader(bell, hear)
    try:
        await asyncio.wait_for(heard.get(), 10.0)
        assert heard.empty()
        thread = threading.Thread(target=bell.ring)
        thread.start()
        await asyncio.wait_for(heard.get(), 10.0)
        thread.join()
    finally:
        loop.remove_reader(bell)


def test_clearing_what_was_never_rung_does_nothing() -> None:
    bell = Bell(watched=True)
    bell.clear()
    bell.ring()
    bell.clear()
    bell.clear()


def test_its_descriptors_end_with_whoever_held_it_last() -> None:
    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    bell, gate = Bell(), threading.Event()
    thread = threading.Thread(target=lambda bell: gate.wait(10.0) and bell.ring(), args=(bell,))
    thread.start()
    del bell
    assert set(os.listdir("/proc/self/fd")) - before
    gate.set()
    thread.join(10.0)
    del thread
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_signal_does_not_end_the_wait() -> None:
    bell = Bell()
    heard = threading.Event()

    def wait() -> None:
        bell.wait()
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
        bell.ring()
        assert heard.wait(10.0)
    finally:
        signal.signal(signal.SIGUSR1, before)
