"""Which streams' answers are not taken: their windows stay closed, or open byte by byte."""

from __future__ import annotations

from penstock.door.limits import DoorLimits
from penstock.door.pace import Pace
from penstock.protocols.http2 import Stream
from penstock.protocols.http2.stream import Outbox


class Readers:
    """Those who are waited for on one connection."""

    __slots__ = ("_limits", "_paces")

    def __init__(self, limits: DoorLimits) -> None:
        self._limits = limits
        self._paces: dict[Outbox, Pace] = {}

    def late(self, blocked: list[Stream], now: float) -> list[Stream]:
        """Those among the streams that have something queued whose time is over."""
        limits = self._limits
        pace = limits.body_pace / max(len(blocked), 1)  # they share what the client can take
        before, self._paces = self._paces, {}
        late = []
        for stream in blocked:
            outbox = stream.outbox
            assert outbox is not None
            reader = before.get(outbox) or Pace(outbox.taken, now, limits.write_timeout)
            if reader.is_late(outbox.taken, now, pace):
                late.append(stream)
            else:
                self._paces[outbox] = reader
        return late
