"""Runs the probe of a model, within a time limit."""

from __future__ import annotations

import time
from typing import Final

from penstock.batching.probe import Answer, Found, Probing, TimeIsUp
from penstock.errors import InferenceFailed, RequestError
from penstock.runtimes.model import Model

VERIFYING: Final = "its batches are compared with single runs"
"""The step of an op's start in which the probe runs."""

PROBE_SECONDS: Final = 2.0
"""Default of ``verify_seconds``. A run that has begun is not ended."""


def run_probe(model: Model, probing: Probing, seconds: float) -> Found:
    """Run the probe's inputs in the calling thread.

    Args:
        model: runs them.
        probing: the probe.
        seconds: no run begins later than this.
    """
    until = time.monotonic() + seconds
    try:
        feed = next(probing)
        while True:
            feed = probing.send(_answer(model, feed) if time.monotonic() < until else TimeIsUp())
    except StopIteration as end:
        found: Found = end.value
        return found


def _answer(model: Model, feed: dict[str, object]) -> Answer:
    try:
        return model.run(feed)
    except RequestError as error:
        return error
    except Exception as error:  # noqa: BLE001 - a library may raise anything for generated inputs
        return InferenceFailed(f"{type(error).__name__}: {error}")
