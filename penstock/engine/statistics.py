"""How one op stands, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStatistics:
    """A snapshot for tests, logs and status pages.

    Attributes:
        deaths: batches that a worker died with.
        suspects: inputs that are remembered for that.
        refused: requests that were not run because workers die of their like.
        elements: of arrays that may be padded, in all batches, with what was filled in.
        filled_in: how many of them were.
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
