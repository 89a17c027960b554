"""A custom instrument that reports for all engines, and is in every process of the service."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from penstock.errors import RequestError
from penstock.instrument import Instrument, ProcessInfo, RequestInfo, ServiceInfo


class Reporter(Instrument):
    """Writes to the standard output of the first process."""

    def __init__(self) -> None:
        self._out, self._count, self._paths = 1, 0, set[str]()

    def _write_line(self, *words: object) -> None:
        os.write(self._out, (" ".join(["told", *map(str, words)]) + "\n").encode())

    @contextmanager
    def in_process(self, process: ProcessInfo) -> Iterator[None]:
        if process.is_first:
            process.kept["output"] = os.dup(1)
        self._out = process.kept["output"]
        self._write_line("in", "the first" if process.is_first else "another", os.getpid())
        yield
        self._write_line("left", os.getpid())

    def replied(self, request: RequestInfo, error: RequestError | None, now: float) -> None:
        self._count += 1

    def engine_started(self, service: ServiceInfo, now: float) -> None:
        service.listen(lambda timeline: self._paths.add(timeline.route))
        self._task = asyncio.get_running_loop().create_task(self._report(service))

    async def _report(self, service: ServiceInfo) -> None:
        while service.is_first:
            counts, paths = zip(*await service.ask(self), strict=True)
            self._write_line("sum", sum(counts), "of", len(counts), *sorted(set().union(*paths)))
            await asyncio.sleep(0.05)

    def answer(self) -> list[object]:
        return [self._count, sorted(self._paths)]

    async def engine_ended(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._write_line("ended", os.getpid())
