"""Paired hooks around the named moments of a request's life.

The engine tells; nobody is asked. A hook must be quick, must not block and must not raise: an
exception from it is logged once and the instrument is dropped, so that it never harms a request.
All hooks run on the engine's loop; times are monotonic seconds.
"""

from __future__ import annotations

from penstock.errors import RequestError
from penstock.request import Batch


class Instrument:
    """Base class with silent hooks; override the ones you care about."""

    def admitted(self, data_id: int, log_id: int, now: float) -> None:
        """A request got its id and will be answered exactly once."""

    def refused(self, error: RequestError, now: float) -> None:
        """A request was refused at the entrance; it has no id."""

    def dispatched(self, op: str, batch: Batch, now: float) -> None:
        """A batch was handed over to a worker."""

    def taken_back(self, op: str, batch: Batch, now: float) -> None:
        """A batch that its worker had not begun was taken back; it will be handed over again."""

    def returned(self, op: str, batch: Batch, errors: int, now: float) -> None:
        """A batch came back, ``errors`` of its samples with an error."""

    def late(self, op: str, batch: Batch, now: float) -> None:
        """The results of a batch that had been given up arrived and were dropped."""

    def replied(self, data_id: int, error: RequestError | None, now: float) -> None:
        """The request was answered."""

    def cancelled(self, data_id: int, now: float) -> None:
        """The caller went away first; the request counts as ended."""
