"""One admitted request on its way: whose it is, when it is due, and who gets the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from penstock.graph.flight import Flight
from penstock.request import Outcome, Request, Sample

Reply: TypeAlias = Callable[[Outcome], None]
"""Takes the answer of a request; called on the engine's loop, once."""


class Journey:
    """One admitted request until it is answered. Opaque to callers."""

    __slots__ = (
        "data_id",
        "deadline",
        "deadline_by_client",
        "feed",
        "flight",
        "log_id",
        "over",
        "reply",
        "samples",
    )

    def __init__(self, data_id: int, request: Request, flight: Flight, reply: Reply) -> None:
        self.data_id = data_id
        self.log_id = request.log_id
        self.deadline = request.deadline
        self.deadline_by_client = request.deadline_by_client
        self.feed = request.feed
        self.flight = flight
        self.reply = reply
        self.samples: list[Sample] = []  # those that are queued or running
        self.over = False

    def __repr__(self) -> str:
        return f"<Journey {self.data_id} {self.flight}{' over' if self.over else ''}>"
