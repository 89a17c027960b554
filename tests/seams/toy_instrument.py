"""A custom instrument: writes a line for each event that it handles."""

from __future__ import annotations

import os

from penstock.errors import RequestError
from penstock.instrument import Instrument, RequestInfo
from penstock.request import Batch


class Teller(Instrument):
    """Writes to standard output, with one write per line."""

    def _write_line(self, *words: object) -> None:
        os.write(1, (" ".join(["told", *map(str, words)]) + "\n").encode())

    def admitted(self, request: RequestInfo, now: float) -> None:
        self._write_line("admitted", request.graph.name, request.data_id)

    def batch_closed(self, op: str, batch: Batch, now: float) -> None:
        self._write_line("closed", op, batch.reason.value)

    def returned(self, op: str, batch: Batch, errors: int, now: float) -> None:
        self._write_line("returned", op, min(batch.phases) >= 0.0, errors)

    def replied(self, request: RequestInfo, error: RequestError | None, now: float) -> None:
        self._write_line("replied", request.data_id, 0.0 <= now - request.admitted_at < 30.0, error)
