"""Tables of rules of documents without section numbers: a case is a heading, a colon and a
sentence."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest

NO_TIME = 0.2
"""Seconds to wait for something that must not happen."""

Step = Callable[[Any], object]


@dataclass(frozen=True)
class Case:
    name: str
    steps: tuple[Step, ...]


class Sentences:
    """Collects the cases of a test module. A step that returns False fails."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def rules(self, *rows: tuple[Any, ...]) -> None:
        for name, *steps in rows:
            self.cases.append(Case(name, tuple(steps)))

    def add(self, name: str) -> Callable[[Step], Step]:
        """Adds the decorated function."""

        def register(step: Step) -> Step:
            self.cases.append(Case(name, (step,)))
            return step

        return register

    def tested(self, site: Callable[[], AbstractContextManager[Any]]) -> Any:
        """The test function of the cases added so far, each with its own peer."""

        def test_sentence(case: Case) -> None:
            with site() as one:
                for number, step in enumerate(case.steps, 1):
                    assert step(one) is not False, f"step {number}"

        return pytest.mark.parametrize("case", self.cases, ids=lambda case: case.name)(
            test_sentence
        )
