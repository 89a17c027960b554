"""What each frame does that carries no message: windows, resets, settings, pings, farewells.

A violation is a ConnectionFault, which ends everything, or a fault of the stream, which is answered
with RST_STREAM and counted: making us reset streams is as cheap an attack as resetting them.

Source: RFC 9113, sections 5.1, 5.4, 6.3 to 6.9.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.protocols.http2.budget import Nuisance
from penstock.protocols.http2.codes import ConnectionFault, ErrorCode
from penstock.protocols.http2.events import (
    Event,
    GoawayReceived,
    PingAcknowledged,
    StreamReset,
)
from penstock.protocols.http2.frames import (
    ACK,
    MAX_STREAM_ID,
    MAX_WINDOW,
    PING,
    SETTINGS,
    frame,
)
from penstock.protocols.http2.limits import Http2Limits, Role
from penstock.protocols.http2.memo import HeadMemo
from penstock.protocols.http2.sending import Sender
from penstock.protocols.http2.stream import LOCAL_ENDED, REMOTE_ENDED, Stream

GAPS_REMEMBERED: Final = 16
"""Ranges of identifiers that a client has skipped: to use one of them later is another fault than
to go on with a closed stream. Older ones are forgotten; the connection ends in both cases."""

EARNED_BY_TRAFFIC: Final = 4
"""Window updates and priorities that each stream, message and kilobyte sent allows on top."""

_SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0)

_PROTOCOL: Final = ErrorCode.PROTOCOL_ERROR
_SIZE: Final = ErrorCode.FRAME_SIZE_ERROR


class ControlHandler(Sender):
    """Answers to the frames that carry no message, and what their neighbours need as well."""

    __slots__ = (
        "_gaps",
        "_opened_at_refill",
        "_ping_mark",
        "_pings_under_way",
        "_settings_received",
        "_traffic_at_refill",
    )

    def __init__(self, role: Role, limits: Http2Limits, heads: HeadMemo) -> None:
        super().__init__(role, limits, heads)
        self._gaps: deque[range] = deque(maxlen=GAPS_REMEMBERED)
        self._opened_at_refill = 0
        self._ping_mark = (0, 0)
        self._pings_under_way = 0
        self._settings_received = False
        self._traffic_at_refill = 0

    def _window_update(self, id: int, payload: bytes, events: list[Event]) -> None:
        if len(payload) != 4:
            raise ConnectionFault(_SIZE, "WINDOW_UPDATE of a wrong length")
        self._budget.spend(Nuisance.WINDOW_UPDATE, self._earned())
        increment = int.from_bytes(payload, "big") & MAX_WINDOW
        if not id:
            self._window += increment
            if not increment:
                raise ConnectionFault(_PROTOCOL, "WINDOW_UPDATE of nothing")
            if self._window > MAX_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window too large")
            self._pump(events)
            return
        stream = self.streams.get(id)
        if stream is None:
            self._refuse_idle(id)
            return
        stream.window += increment
        if not increment:
            self._fault(stream, _PROTOCOL, "WINDOW_UPDATE of nothing", events)
        elif stream.window > MAX_WINDOW:
            self._fault(stream, ErrorCode.FLOW_CONTROL_ERROR, "window too large", events)
        elif stream.outbox is not None:
            self._line_up(stream)
            self._pump(events)

    def _rst_stream(self, id: int, payload: bytes, events: list[Event]) -> None:
        if len(payload) != 4:
            raise ConnectionFault(_SIZE, "RST_STREAM of a wrong length")
        if self._server:  # a client's calls are its own; that they are refused is no attack
            self._budget.spend(Nuisance.RESET, self._finished())
        stream = self.streams.get(id)
        if stream is None:
            self._refuse_idle(id)
            return
        self._forget(stream)
        code = int.from_bytes(payload, "big")
        events.append(StreamReset(stream, code, "reset by the peer", by_peer=True))

    def _settings(self, flags: int, id: int, payload: bytes, events: list[Event]) -> None:
        if id:
            raise ConnectionFault(_PROTOCOL, "SETTINGS on a stream")
        if flags & ACK:
            if payload:
                raise ConnectionFault(_SIZE, "an acknowledgement with settings")
            self._settings_acknowledged()
            return
        self._budget.spend(Nuisance.SETTINGS)
        peer = self.peer_settings
        if not self._settings_received:
            self._settings_received = True
            peer.max_concurrent_streams = None
        before = peer.initial_window_size
        smallest_table = peer.apply(payload, self.role)
        if smallest_table < self._encoder_table:
            self._encoder_table = 0
            self._table_notice = True
            self._plain_most = -1
        self._answer(_SETTINGS_ACK)
        if peer.initial_window_size != before:
            self._move_windows(peer.initial_window_size - before)
            self._pump(events)

    def _settings_acknowledged(self) -> None:
        if not self._settings_under_way:
            self._budget.spend(Nuisance.SETTINGS)
            return
        self._settings_under_way = 0
        self._blocks.settings_acknowledged()
        smaller = self._stream_room - self.limits.stream_window
        if smaller > 0:
            self._stream_room -= smaller
            for stream in self.streams.values():
                stream.room -= smaller

    def _move_windows(self, change: int) -> None:
        for stream in self.streams.values():
            stream.window += change
            if stream.window > MAX_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window too large")
            self._line_up(stream)

    def _ping(self, flags: int, id: int, payload: bytes, events: list[Event]) -> None:
        if id:
            raise ConnectionFault(_PROTOCOL, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFault(_SIZE, "PING of a wrong length")
        if flags & ACK and self._pings_under_way:
            self._pings_under_way -= 1
            events.append(PingAcknowledged(payload))
            return
        # gRPC clients measure the path with a ping for every round trip in which data moves.
        mark = (self._traffic(), self._room)
        if mark == self._ping_mark or flags & ACK:
            self._budget.spend(Nuisance.PING)
        self._ping_mark = mark
        if not flags & ACK:
            self._answer(frame(PING, ACK, 0, payload))

    def _priority(self, id: int, payload: bytes, events: list[Event]) -> None:
        if not id:
            raise ConnectionFault(_PROTOCOL, "PRIORITY on stream 0")
        self._budget.spend(Nuisance.PRIORITY, self._earned())
        if len(payload) != 5:
            code, text = _SIZE, "PRIORITY of a wrong length"
        elif int.from_bytes(payload[:4], "big") & MAX_STREAM_ID == id:
            code, text = _PROTOCOL, "a stream that depends on itself"
        else:
            return
        stream = self.streams.get(id)
        if stream is None:  # RST_STREAM is not allowed on an idle stream
            raise ConnectionFault(code, text)
        self._fault(stream, code, text, events)

    def _goaway(self, id: int, payload: bytes, events: list[Event]) -> None:
        if id:
            raise ConnectionFault(_PROTOCOL, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFault(_SIZE, "GOAWAY of a wrong length")
        self._budget.spend(Nuisance.OTHER)
        last = int.from_bytes(payload[:4], "big") & MAX_STREAM_ID
        self.closing = True
        events.append(GoawayReceived(last, int.from_bytes(payload[4:8], "big"), payload[8:]))
        if self._server:
            return
        for stream in [s for s in self.streams.values() if s.id > last]:
            self._forget(stream)
            code = ErrorCode.REFUSED_STREAM
            events.append(StreamReset(stream, code, "never looked at", by_peer=True))

    # What several frames need.

    def _end_remote(self, stream: Stream) -> None:
        stream.state |= REMOTE_ENDED
        if stream.state & LOCAL_ENDED:
            self._forget(stream)

    def _fault(
        self,
        stream: Stream,
        code: ErrorCode,
        text: str,
        events: list[Event],
        kind: Nuisance = Nuisance.RESET,
    ) -> None:
        """The peer broke a rule of one stream."""
        self._budget.spend(kind, self._finished())
        self._answer(self._reset(stream, code))
        events.append(StreamReset(stream, code, text, by_peer=False))

    def _earned(self) -> int:
        return (self._traffic() - self._traffic_at_refill) * EARNED_BY_TRAFFIC

    def _finished(self) -> int:
        """Streams that ended otherwise than by a reset since the last refill.

        As many resets are borne on top: a client that gives up many calls has many answered.
        """
        opened = (self._last_peer + self._next_own) // 2 - self._opened_at_refill
        return max(opened - self._budget.spent[Nuisance.RESET] - len(self.streams), 0)

    def _is_idle(self, id: int) -> bool:
        if not id & 1:
            return True
        return id > self._last_peer if self._server else id >= self._next_own

    def _refuse_idle(self, id: int) -> None:
        """A frame that may follow the end of a stream, but not come before its beginning."""
        if self._is_idle(id) and not (self._final and id & 1):
            raise ConnectionFault(_PROTOCOL, "a frame for a stream that was never opened")

    def _pass_over(self, id: int, end: bool) -> None:
        """HEADERS or DATA on a stream that is not open: allowed only where we ended it, lately."""
        if self._is_idle(id):
            if self._final and id & 1:
                return
            raise ConnectionFault(_PROTOCOL, "a frame for a stream that was never opened")
        ended = self._reset_lately.get(id)
        if ended is False:
            self._reset_lately[id] = end
            return
        if ended is None and any(id in gap for gap in self._gaps):
            raise ConnectionFault(_PROTOCOL, "a stream behind one with a higher number")
        raise ConnectionFault(ErrorCode.STREAM_CLOSED, "a frame for a stream that has ended")
