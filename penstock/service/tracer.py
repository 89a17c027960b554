"""Writes the tracer's periodic report for all engines, in the first of them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from penstock.config.schema import ServiceConfig
from penstock.engine.engine import Engine
from penstock.graph.dag import REQUEST
from penstock.observe.log_files import to_a_file
from penstock.observe.tracer import TRACER, Channel, Window, is_empty, report
from penstock.request import REQUEST_OP_NAME
from penstock.supervisor.queries import AllEngines

QUESTION: Final = "tracer"
"""The query for the engines' figures since the last report."""

_log = logging.getLogger(TRACER)


def window_of(window: Window, engine: Engine) -> list[Any]:
    """An engine's figures since the last report, and its queue lengths."""
    return [window.take(), [each.waiting for each in engine.statistics().stages]]


async def report_every(config: ServiceConfig, engines: AllEngines, engine: Engine) -> None:
    """Write reports until cancelled; without a file, skip empty ones.

    Args:
        config: with the interval.
        engines: queries the engines.
        engine: this engine; the others have the same graphs.
    """
    seconds, most = config.dag.tracer.interval_s, config.dag.channel_size or 0
    assert seconds is not None, "the tracer is on"
    while True:
        await asyncio.sleep(seconds)
        answers = await engines.ask(QUESTION)
        windows = [window for window, _ in answers]
        own_file = to_a_file()
        if is_empty(windows) and not own_file:
            continue
        waiting = [sum(each) for each in zip(*(found for _, found in answers), strict=False)]
        channels = _channels(engine, waiting, most)
        for line in report(windows, channels, config.worker_num or 1, seconds):
            _log.info("%s", line if own_file else line.expandtabs(4))


def _channels(engine: Engine, waiting: list[int], most: int) -> list[Channel]:
    """The queue of each op, and the channel from each graph's last op to its reply."""
    found: list[Channel] = []
    ends: list[Channel] = []
    left = iter(waiting)
    for graph in engine.graphs:
        names = [stage.name for stage in graph.stages]
        for name, inputs in zip(names, graph.plan.inputs, strict=True):
            before = [REQUEST_OP_NAME if i == REQUEST else names[i] for i in inputs]
            found.append((before, name, next(left, 0), most))
        ends.append(([names[graph.plan.last]], REQUEST_OP_NAME, 0, most))
    return found + ends
