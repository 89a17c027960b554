"""Callers in processes of their own, what they have seen, and what a service uses meanwhile."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from tests.services.process import ServiceProcess


class Answer(NamedTuple):
    """When it was due, asked for and there (seconds of the monotonic clock), its version, and the
    number of the caller's connection.
    """

    due: float
    begun: float
    done: float
    version: int
    connection: int = 0


@dataclass
class Told:
    """What one caller has seen."""

    answers: list[Answer] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@contextmanager
def callers(
    server: ServiceProcess,
    kinds: Sequence[str],
    rate: float,
    call: Callable[[str, int, int, float, Connection], None],
) -> Iterator[list[Told]]:
    """Load for the time of the block; filled at its end, one for each caller.

    Args:
        server: is called.
        kinds: of the callers; those of the HTTP port have names that begin with ``http``.
        rate: requests a second of each.
        call: called in a process of its own with the kind, the port, a number, the rate, and a
            pipe: gets something when it is enough, and is sent a ``Told`` at the end.
    """
    spawn = multiprocessing.get_context("spawn")
    told: list[Told] = []
    started = []
    for seed, kind in enumerate(kinds):
        ours, theirs = spawn.Pipe()
        port = server.http_port if kind.startswith("http") else server.rpc_port
        process = spawn.Process(target=call, args=(kind, port, seed, rate, theirs), daemon=True)
        process.start()
        theirs.close()
        started.append((process, ours))
    try:
        yield told
        for _, pipe in started:
            pipe.send(None)
        told += [pipe.recv() for _, pipe in started]
    finally:
        for process, _ in started:
            process.kill()
            process.join()


@dataclass
class Use:
    """What a service has at one time."""

    memory: int
    descriptors: int
    processes: int
    threads: int
    cached_files: int
    cached_bytes: int


def _descriptors(process: psutil.Process) -> int:
    """The number of its descriptors, but for those of connections, which come and go.

    A connection that is closed meanwhile is counted, one that is accepted meanwhile is not: the
    least of several counts is the right one.
    """
    descriptors = {int(each) for each in os.listdir(f"/proc/{process.pid}/fd")}
    return len(descriptors - {x.fd for x in process.net_connections("inet") if x.raddr})


def use_of(server: ServiceProcess, cache: Path | None = None) -> Use:
    """What a service has now."""
    processes = [psutil.Process(server.pid), *server.descendants()]
    all_files = [] if cache is None else [x for x in cache.rglob("*") if x.is_file()]
    files = {each.stat().st_ino: each.stat().st_size for each in all_files}
    return Use(
        memory=server.memory(),
        descriptors=min(sum(map(_descriptors, processes)) for _ in range(5)),
        processes=len(processes),
        threads=sum(each.num_threads() for each in processes),
        cached_files=len(files),
        cached_bytes=sum(files.values()),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """That of values, of which there must be some."""
    return float(np.quantile(values, share)) if values else float("nan")
