"""Bytes to frames: the loop over what was read.

What nearly every frame is, ``usual`` takes in place; everything else goes to the handlers. Frames
other than DATA wait until they are whole, at most one of them, and no longer than we announced to
take.

A read may hold tens of thousands of frames. A driver that serves others meanwhile says how many
events it wants at most; the rest of the read then waits for ``go_on``.

Source: RFC 9113, sections 3.4, 4.1, 4.2.
"""

from __future__ import annotations

from typing import Final

from penstock.protocols.http2.budget import Nuisance
from penstock.protocols.http2.codes import ConnectionFault, ErrorCode
from penstock.protocols.http2.events import (
    ConnectionFailed,
    Event,
    StreamReset,
)
from penstock.protocols.http2.frames import (
    ACK,
    DATA,
    FRAME_HEAD,
    MAX_STREAM_ID,
    PREFACE,
    SETTINGS,
    goaway_frame,
)
from penstock.protocols.http2.limits import Http2Limits, Role
from penstock.protocols.http2.memo import HeadMemo
from penstock.protocols.http2.usual import UsualFrames

_STRIDE: Final = 2048
"""Bytes of frames that are worked through between two looks at how many they were; fewer for whom a
few events are enough."""

_BYTES_PER_EVENT: Final = 64
"""Bytes that they have for each event that is wanted."""

_FEW: Final = 16
"""Frames of one turn that are never too many, however small, unless turns are to be shorter."""

_SMALL: Final = 16
"""Bytes of a frame, with its head, below which it counts as small: not even a message of gRPC with
its prefix and two bytes needs so few."""

_ALL: Final = 1 << 62

_unpack = FRAME_HEAD.unpack_from


class Receiver(UsualFrames):
    """The half of a connection that listens.

    Attributes:
        behind: bytes that were received and wait for ``go_on``.
    """

    __slots__ = (
        "_held",
        "_needed",
        "_preface_left",
        "_rest",
        "_rest_at",
        "behind",
    )

    def __init__(self, role: Role, limits: Http2Limits, heads: HeadMemo) -> None:
        super().__init__(role, limits, heads)
        self._preface_left = PREFACE if role is Role.SERVER else b""
        # Bytes of a frame that is not whole, and how many are needed to go on.
        self._held = bytearray()
        self._needed = 0
        # What waits for go_on: a read, and where its next frame begins.
        self._rest = b""
        self._rest_at = 0
        self.behind = 0

    def receive(self, data: bytes, most: int = _ALL) -> list[Event]:
        """What the peer's next bytes mean, in their order.

        Args:
            data: as read, cut anywhere.
            most: stop after about so many events, or frames without any. What is left of the data
                is ``behind`` then: call ``go_on``, and read no more before nothing is left.

        Returns:
            Events. A broken rule is a StreamReset where it concerns one stream. Otherwise all open
            streams are reset and ConnectionFailed is the last event ever.
        """
        events: list[Event] = []
        try:
            if self.behind:
                self._rest = self._rest[self._rest_at :] + data
                self._rest_at = 0
                self.behind = len(self._rest)
            elif self._steady:
                self._read(data, 0, events, most)
            elif not self.failed:
                self._resume(data, events, most)
        except ConnectionFault as fault:
            self._fail(fault, events)
        return events

    def go_on(self, most: int = _ALL) -> list[Event]:
        """What is behind, as ``receive`` gives it."""
        events: list[Event] = []
        data, at = self._rest, self._rest_at
        self._rest = b""
        self.behind = 0
        try:
            if data:
                self._read(data, at, events, most)
        except ConnectionFault as fault:
            self._fail(fault, events)
        return events

    def _read(self, data: bytes, at: int, events: list[Event], most: int) -> None:
        """Frames from the beginning of one; what is left of the last is kept."""
        size = len(data)
        last = size - 9
        begin = at
        silent = 0  # frames without an event
        needed = 0
        stride = min(_STRIDE, most * _BYTES_PER_EVENT)
        while True:
            until = at + stride
            at = self._read_known(data, at, until if until <= last else last + 1, events)
            count = len(events) + silent
            if at > last:
                break
            if count >= most:
                self._rest = data
                self._rest_at = at
                self.behind = size - at
                break
            if at >= until:
                continue
            word, flags, id = _unpack(data, at)
            if word >= self._too_long:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "frame too large")
            kind = word & 0xFF
            id &= MAX_STREAM_ID
            start = at + 9
            end = start + (word >> 8)
            if kind == DATA and self._begun and not self._block_id:
                needed = self._data(flags, id, data, start, end - start, events)
            elif end <= size:
                needed = 0
                self._check_first(kind, flags)
                self._handle(kind, flags, id, data[start:end], events)
            else:
                needed = end - at
            if needed:
                break
            if len(events) + silent == count:
                silent += 1
            at = end
        if at < size and not self.behind:
            self._hold(data[at:], needed or 9)
        if (count > _FEW or most < _FEW) and self._server:
            self._judge_size(count, at - begin)

    def _judge_size(self, count: int, size: int) -> None:
        """So many frames had so many bytes: each costs us as much as a large one."""
        more = count - size // _SMALL
        if more > 0:
            self._budget.spend(Nuisance.SMALL, count=more)

    def _check_first(self, kind: int, flags: int) -> None:
        if not self._begun and (kind != SETTINGS or flags & ACK):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        self._begun = True

    def _hold(self, data: bytes, needed: int) -> None:
        """Keep the beginning of a frame until ``needed`` bytes of it have come."""
        self._held = bytearray(data)
        self._needed = needed
        self._steady = False

    def _resume(self, data: bytes, events: list[Event], most: int) -> None:
        """Go on in the middle of the preface, of a frame, or of data."""
        if self._preface_left:
            data = self._read_preface(data)
        elif self._data_left or self._data_padding:
            data = data[self._read_data(data, 0, events) :]
        elif self._needed:
            self._held += data
            if len(self._held) < self._needed:
                return
            data = bytes(self._held)
            self._held = bytearray()
            self._needed = 0
        if not (self._preface_left or self._data_left or self._data_padding):
            self._steady = True
            self._read(data, 0, events, most)

    def _read_preface(self, data: bytes) -> bytes:
        expected = self._preface_left
        size = min(len(expected), len(data))
        if data[:size] != expected[:size]:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no HTTP/2 preface")
        self._preface_left = expected[size:]
        return data[size:]

    def _fail(self, fault: ConnectionFault, events: list[Event]) -> None:
        self.failed = self.closing = True
        self._steady = False
        for stream in list(self.streams.values()):
            self._forget(stream)
            events.append(StreamReset(stream, fault.code, fault.text, by_peer=False))
        self._line.clear()
        self._held = bytearray()
        self._rest = b""
        self.behind = 0
        self._block_parts = []
        self._data_stream = None
        text = fault.text.encode("ascii")
        self._out.append(goaway_frame(max(self._last_peer, 0), fault.code, text))
        events.append(ConnectionFailed(fault.code, fault.text, fault.nuisance))
