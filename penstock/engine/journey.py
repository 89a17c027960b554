"""One admitted request on its way: whose it is, when it is due, and who gets the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from penstock.engine.deadlines import Due
from penstock.graph.dag import Plan
from penstock.graph.flight import Flight
from penstock.request import Outcome, Request, Sample

Reply: TypeAlias = Callable[[Outcome], None]
"""Takes the answer of a request; called on the engine's loop, once."""


class Journey(Flight):
    """One admitted request until it is answered: its flight, and whom it concerns.

    Attributes:
        due: those whose time is over together with its own; set when it is admitted.
    """

    __slots__ = (
        "data_id",
        "due",
        "over",
        "reply",
        "request",
        "samples",
    )

    due: Due[Journey]

    def __init__(self, data_id: int, request: Request, plan: Plan, reply: Reply) -> None:
        # Without super(): this runs for every request.
        self.plan = plan
        self.attempt = 1
        self.ended = False
        self._feed = self._joins = None
        self.data_id = data_id
        self.request = request
        self.reply = reply
        self.samples: list[Sample] = []  # those that are queued or running
        self.over = False

    def __repr__(self) -> str:
        return f"<Journey {self.data_id} {super().__repr__()}{' over' if self.over else ''}>"
