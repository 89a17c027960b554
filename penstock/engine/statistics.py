"""Counters and gauges of one op."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStatistics:
    """A snapshot for tests, logs and status pages.

    Attributes:
        deaths: batches whose worker died.
        suspects: inputs that are suspected of killing workers.
        refused: requests refused because their inputs have killed workers.
        elements: elements of arrays that may be padded, in all batches, padding included.
        filled_in: elements of padding.
    """

    name: str
    workers: int
    idle: int
    waiting: int
    batches: int
    samples: int
    timeouts: int
    deaths: int
    suspects: int
    refused: int
    elements: int = 0
    filled_in: int = 0
