"""5 MiB from one bare process to another: what the memory and the cores give when nothing serves.

One copies an array into memory that both have, and wakes the other over a socket, as a worker's
answer wakes the engine; that one wakes the first again, as the engine would wake the next worker.
So a round is the least that one more op in a process can cost.

    python -m benchmarks.copy_loop --seconds 2
"""

from __future__ import annotations

import argparse
import mmap
import os
import socket
import sys
import time
from multiprocessing import get_context
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from benchmarks.load import Report, percentile_us, told

COPIED_BYTES = 5 << 20

_BEGIN, _ROUND, _END = b"b", b"r", b"e"
_CPU_SECONDS = Struct("<d")


def _answer(channel: socket.socket) -> None:
    """The other process: it gives each word back, and in the end what it computed."""
    began = time.process_time()
    while (word := channel.recv(1)) != _END:
        if word == _BEGIN:
            began = time.process_time()
        channel.sendall(word)
    channel.sendall(_CPU_SECONDS.pack(time.process_time() - began))


def run_rounds(seconds: float, warmup_seconds: float) -> Report:
    """One round after the other, for so long."""
    ours, theirs = socket.socketpair()
    source = np.ones(COPIED_BYTES // 4, np.float32)  # zeros would be read from one page
    with ours, mmap.mmap(-1, COPIED_BYTES) as memory:
        other = get_context("fork").Process(target=_answer, args=(theirs,))
        other.start()
        theirs.close()
        _copy_on_and_on(ours, source, memory, warmup_seconds)
        ours.sendall(_BEGIN)
        ours.recv(1)
        began, cpu = time.monotonic(), time.process_time()
        took = sorted(_copy_on_and_on(ours, source, memory, seconds))
        lasted, cpu = time.monotonic() - began, time.process_time() - cpu
        ours.sendall(_END)
        cpu += _CPU_SECONDS.unpack(ours.recv(_CPU_SECONDS.size))[0]
        other.join()
    return Report(
        requests=len(took),
        seconds=lasted,
        rps=len(took) / lasted,
        p50_us=percentile_us(took, 0.50),
        p99_us=percentile_us(took, 0.99),
        client_cpu=0.0,
        server_cpu_s=cpu,
        fault_count=0,
        faults=[],
    )


def _copy_on_and_on(
    channel: socket.socket, source: NDArray[np.float32], memory: mmap.mmap, seconds: float
) -> list[int]:
    """Nanoseconds of each round."""
    target = np.frombuffer(memory, np.float32)
    until = time.monotonic_ns() + int(seconds * 1e9)
    took = []
    before = time.monotonic_ns()
    while before < until:
        np.copyto(target, source)
        channel.sendall(_ROUND)
        channel.recv(1)
        now = time.monotonic_ns()
        took.append(now - before)
        before = now
    return took


def main() -> int:
    """Print the report as one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.copy_loop")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--warmup", type=float, default=0.2)
    parser.add_argument("--core", type=int, help="run on this core only")
    arguments = parser.parse_args()
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    return told(run_rounds(arguments.seconds, arguments.warmup))


if __name__ == "__main__":
    sys.exit(main())
