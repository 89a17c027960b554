"""The id of an engine among those of its service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_IDS: Final = 10**12
"""Data ids reserved for one process: more than it will ever use."""

_PROCESSES: Final = 10**6 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineId:
    """The id of an engine; by default of the only one.

    Attributes:
        index: index of the engine, from 0.
        engines: number of engines of the service.
        generation: number of earlier processes of this engine.
        first: the generation of its first process of the same code.
    """

    index: int = 0
    engines: int = 1
    generation: int = 0
    first: int = 0

    @property
    def name(self) -> str | None:
        """The engine's name for logs; None if it is the only one."""
        return None if self.engines == 1 else f"engine {self.index}"

    @property
    def is_first(self) -> bool:
        """Whether it is the engine that reports for all."""
        return self.index == 0 and self.generation == self.first

    @property
    def first_id(self) -> int:
        """Its first data id; with steps of ``engines`` the ids are unique in the service."""
        return self.index + self.engines * _IDS * (self.generation % (_PROCESSES // self.engines))

    def card(self, workers: int = 1, worker: int = 0) -> int:
        """The index of a worker's GPU, modulo their number.

        Args:
            workers: number of workers of the op in each engine; 1 if they share one model.
            worker: index of the worker.
        """
        return self.index * workers + worker
