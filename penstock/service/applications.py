"""Applications: what answers routes behind the door, ours and those that others add."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from penstock.api.calls import Grpc, Http
from penstock.engine.engine import Engine


class Application(Protocol):
    """One protocol, or some pages."""

    def routes(self) -> Iterable[Http | Grpc]:
        """What it answers, and by which handlers; called once."""


MakeApplication: TypeAlias = Callable[[Engine], Application]
"""Called in each engine's process, before the door opens. An application submits its requests with
``penstock.engine.submission.Submission``."""
