"""Guarded: instruments that may be wrong, without harm to the requests they watch."""

from __future__ import annotations

import logging

from penstock.errors import RequestError
from penstock.instrument import Instrument
from penstock.request import Batch

_log = logging.getLogger(__name__)


class Guarded(Instrument):
    """Tells several instruments; one that raises is logged once and never told anything again."""

    def __init__(self, *instruments: Instrument) -> None:
        self._instruments = list(instruments)

    def admitted(self, data_id: int, log_id: int, now: float) -> None:
        """See Instrument."""
        self._tell("admitted", data_id, log_id, now)

    def refused(self, error: RequestError, now: float) -> None:
        """See Instrument."""
        self._tell("refused", error, now)

    def dispatched(self, op: str, batch: Batch, now: float) -> None:
        """See Instrument."""
        self._tell("dispatched", op, batch, now)

    def taken_back(self, op: str, batch: Batch, now: float) -> None:
        """See Instrument."""
        self._tell("taken_back", op, batch, now)

    def returned(self, op: str, batch: Batch, errors: int, now: float) -> None:
        """See Instrument."""
        self._tell("returned", op, batch, errors, now)

    def late(self, op: str, batch: Batch, now: float) -> None:
        """See Instrument."""
        self._tell("late", op, batch, now)

    def replied(self, data_id: int, error: RequestError | None, now: float) -> None:
        """See Instrument."""
        self._tell("replied", data_id, error, now)

    def cancelled(self, data_id: int, now: float) -> None:
        """See Instrument."""
        self._tell("cancelled", data_id, now)

    def _tell(self, moment: str, *facts: object) -> None:
        for instrument in tuple(self._instruments):
            try:
                getattr(instrument, moment)(*facts)
            except Exception:  # noqa: BLE001 - whatever it is, requests go on
                self._instruments.remove(instrument)
                _log.exception("instrument %r raised and is dropped", instrument)
