"""Which of a service's engines a process is, or works for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_IDS: Final = 10**12
"""Data ids kept for one process: more than it will ever hand out."""

_PROCESSES: Final = 10**6 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The first and only engine, unless said otherwise.

    Attributes:
        index: of the engine, from 0.
        engines: how many the service has.
        generation: how many processes were this engine before.
    """

    index: int = 0
    engines: int = 1
    generation: int = 0

    @property
    def name(self) -> str | None:
        """Of the engine, for people; None when there is no other to be told from."""
        return None if self.engines == 1 else f"engine {self.index}"

    @property
    def is_first(self) -> bool:
        """Whether it is the one to tell what holds for all."""
        return self.index == 0 and self.generation == 0

    @property
    def first_id(self) -> int:
        """Its first data id; with a step of ``engines`` no other process of the service has it."""
        return self.index + self.engines * _IDS * (self.generation % (_PROCESSES // self.engines))

    def card(self, workers: int = 1, worker: int = 0) -> int:
        """Which of an op's cards a worker of it takes, counted on beyond their number.

        Args:
            workers: of that op, in each engine; 1 when they share one model.
            worker: which of them.
        """
        return self.index * workers + worker
