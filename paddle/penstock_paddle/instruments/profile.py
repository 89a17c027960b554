"""Profile lines in the original's format: start and end of each phase of a request, in Unix
microseconds.

A line is ``PROFILE``, ``pid:<pid>`` and items ``<name>_0:<time>`` (begin) and ``<name>_1:<time>``
(end), with tabs between the three and a space after each item. Special characters of op names are
percent-encoded. Source: docs/tracing.md.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from queue import Full, Queue
from threading import Thread
from typing import Final
from urllib.parse import quote

from penstock.instrument import Instrument, ServiceInfo
from penstock.observe.recorder import NO_ID
from penstock.observe.timeline import BatchTimes, Timeline
from penstock.request import REQUEST_OP_NAME

_STAGES: Final = {"preprocess": "prep", "process": "midp", "postprocess": "postp"}
_WAITING: Final = 10_000  # most queued timelines; a guess at a burst
_REMEMBERED: Final = 4096  # most recent batches whose line was written
_LAST: Final = 1.0  # seconds to write the last lines


def profile_text(timeline: Timeline) -> str:
    """The lines of one request: of each of its batches, and of its own phases."""
    batches = [step.batch for step in timeline.steps if step.batch is not None]
    return "".join(_lines(timeline, batches))


def _lines(timeline: Timeline, batches: Iterable[BatchTimes]) -> Iterator[str]:
    for batch in batches:
        worker = f"[{quote(batch.op, safe='/')}|{batch.worker}]"
        parts = [
            (f"{_STAGES[part]}#{worker}", begin, end)
            for part, begin, end in batch.stages
            if part in _STAGES
        ]
        if parts:
            yield _line(parts)
    number = timeline.data_id
    yield "\n" + _line([
        (f"prepack_{number}#{REQUEST_OP_NAME}", timeline.began, timeline.admitted),
        (f"call_{number}#DAG", timeline.admitted, timeline.replied),
        (f"postpack_{number}#{REQUEST_OP_NAME}", timeline.replied, timeline.ended),
    ])  # fmt: skip


def _line(parts: Iterable[tuple[str, float, float]]) -> str:
    offset = time.time() - time.monotonic()
    items = [
        f"{name}_{side}:{round(1e6 * (at + offset))} "
        for name, begin, end in parts
        for side, at in enumerate((begin, end))
    ]
    return f"PROFILE\tpid:{os.getpid()}\t{''.join(items)}\n"


class Profile(Instrument):
    """Writes the lines of all requests to standard error."""

    def engine_started(self, service: ServiceInfo, now: float) -> None:
        """See Instrument."""
        self._writer = ProfileWriter()
        service.listen(self._writer)

    async def engine_ended(self) -> None:
        """See Instrument."""
        await asyncio.to_thread(self._writer.close)


class ProfileWriter:
    """Writes the lines of all requests to standard error, in a separate thread.

    Each batch has one line, whatever its requests.
    """

    def __init__(self) -> None:
        self._timelines: Queue[Timeline | None] = Queue(_WAITING)
        self._written: OrderedDict[int, None] = OrderedDict()
        # A daemon, because a blocked reader must not keep the process from ending.
        self._thread = Thread(target=self._run, name="profile", daemon=True)
        self._thread.start()

    def __call__(self, timeline: Timeline) -> None:
        """Queue a timeline, or drop it if the queue is full."""
        if timeline.data_id != NO_ID and not self._timelines.full():
            self._timelines.put_nowait(timeline)

    def close(self) -> None:
        """Write the queued lines, within a time limit."""
        try:
            self._timelines.put(None, timeout=_LAST)
        except Full:
            return
        self._thread.join(_LAST)

    def _run(self) -> None:
        while (timeline := self._timelines.get()) is not None:
            text = self._text(timeline)
            try:
                sys.stderr.write(text)
                sys.stderr.flush()
            except (OSError, ValueError):  # not writable now: later lines may be
                continue

    def _text(self, timeline: Timeline) -> str:
        new = []
        for step in timeline.steps:
            batch = step.batch
            if batch is not None and batch.number not in self._written:
                self._written[batch.number] = None
                new.append(batch)
        while len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)
        return "".join(_lines(timeline, new))
