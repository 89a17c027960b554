"""The base class of connections, for all protocols.

It has the transport, the next check for timeouts, the unsent output, and the shutdown: an orderly
shutdown never loses the last answer. Output is written once per turn of the loop for all
connections (``DoorState.flush``), at the end of a read, or at once if it is a single piece.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import select
import socket
import struct
import sys
import termios
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from http import HTTPStatus
from math import inf
from typing import Final

from penstock.door.exchange import HttpReply, Peer
from penstock.door.state import DoorState, ListenerQuota, Member

_log = logging.getLogger(__name__)

HIGH_MARK: Final = 64 << 10
"""Bytes in a transport's write buffer above which its connection is not read."""

_LOW_MARK: Final = 16 << 10

_JOIN_LIMIT: Final = 16 << 10
"""Maximum bytes of pieces that are joined into one write; larger ones are written separately."""

_SLICE: Final = 64 << 10
"""Maximum bytes of one write to TLS. TLS encrypts a whole write at once, into a buffer whose size
is unknown here."""

_PYTHON: Final = tuple(sys.version_info[:3])
_WRITELINES_PAUSES: Final = not ((3, 12) <= _PYTHON < (3, 12, 9) or (3, 13) <= _PYTHON < (3, 13, 2))
"""In other Pythons asyncio never calls ``pause_writing`` after it: CVE-2024-12254."""

PAUSE: Final = 0.001
"""Seconds between two parts of a large read. Otherwise a flooded loop would never sleep, and worker
threads would wait for the GIL."""

NEVER: Final = inf

_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: close drops data that the peer has not received."""

_FIRST_LOOK: Final = 0.006
"""Seconds until a reset is first looked for; later looks are a sweep's period apart."""


class Pace:
    """Decides whether a client reads its answer fast enough.

    The client has a timeout to begin; bytes that it reads extend its deadline at a pace, but never
    beyond the timeout from now: so a client that stops, or reads single bytes, is detected soon,
    and earlier fast reads give no credit.

    Args:
        taken: bytes the client has read so far.
        now: monotonic seconds.
        timeout: seconds.
    """

    __slots__ = ("_taken", "_timeout", "_until")

    def __init__(self, taken: int, now: float, timeout: float) -> None:
        self._taken = taken
        self._timeout = timeout
        self._until = now + timeout

    def is_late(self, taken: int, now: float, pace: float) -> bool:
        """Whether the client's deadline has passed.

        Args:
            taken: bytes the client has read so far.
            now: monotonic seconds, not before the last call's.
            pace: bytes that extend the deadline by one second.
        """
        until = self._until + max(taken - self._taken, 0) / pace
        self._taken = taken
        self._until = min(until, now + self._timeout)
        return now >= self._until


class Connection(asyncio.Protocol, Member):
    """One connection; each subclass implements one protocol. Further attributes as of ``Member``.

    Attributes:
        dirty: a flush is scheduled in this turn.
        lagging: the client does not read output, so its input is not read.
        piece: bytes of the largest piece written since the output was last empty.
        secure: the connection uses TLS.
        written: bytes written so far.
    """

    __slots__ = (
        "_backlog",
        "_backlog_size",
        "_cut",
        "_input",
        "_linger_until",
        "_lingers",
        "_looked",
        "_peer",
        "_reader",
        "_reading",
        "_watch",
        "dirty",
        "eof",
        "lagging",
        "piece",
        "secure",
        "shared",
        "transport",
        "written",
    )

    def __init__(self, shared: DoorState, transport: asyncio.Transport | None) -> None:
        self.shared = shared
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.due = NEVER
        self.quota: ListenerQuota | None = None
        self.closing = False
        self.dirty = False
        self.eof = False
        self.lagging = False
        self.counted = 0
        self.written = 0
        self.piece = 0
        self.secure = False
        self._backlog: deque[memoryview] = deque()
        self._backlog_size = 0
        self._cut = False
        self._input = 0  # bytes of unprocessed input, as counted in the budget
        self._linger_until = 0.0
        self._lingers = False
        self._looked = 0.0
        self._peer: Peer | None = None
        self._reader: Pace | None = None  # while output is unsent
        self._reading = True
        self._watch: asyncio.Task[None] | None = (
            None  # of a client that has closed its sending half
        )

    @property
    def peer(self) -> Peer:
        if self._peer is None:
            name = self.transport.get_extra_info("peername")
            address, port = name[:2] if isinstance(name, tuple) else ("", 0)
            self._peer = Peer(address, port, self.transport.get_extra_info("peercert") or None)
        return self._peer

    # Methods of subclasses.

    @abstractmethod
    def check(self, now: float) -> None:
        """``due`` has passed, and the client reads: enforce timeouts, and set ``due``."""

    @abstractmethod
    def gone(self) -> None:
        """The connection is lost: notify its open exchanges."""

    def pending(self) -> int:
        """Bytes that are blocked by the peer's flow control."""
        return 0

    def buffered(self) -> int:
        """Memory held by data blocked on flow control. A partly sent buffer counts in full."""
        return 0

    def start(self, data: bytes) -> None:
        """Take over the transport, with the data that was already read."""
        self.secure = self.transport.get_extra_info("ssl_object") is not None
        self.transport.set_write_buffer_limits(HIGH_MARK, _LOW_MARK)
        self.transport.set_protocol(self)
        if data:
            self.data_received(data)
        else:
            self.mark()

    # Writing.

    def mark(self) -> None:
        """Schedule a flush at the end of this turn."""
        if not self.dirty:
            self.dirty = True
            self.shared.mark(self)

    def write(self, data: bytes) -> None:
        """Write; over TLS in slices, so that the unsent bytes are known.

        Data is dropped if the connection was lost in this turn.
        """
        if self.transport.is_closing():
            return
        size = len(data)
        self.written += size
        if not self.lagging or size > self.piece:
            self.piece = size
        if not self.secure:
            self.transport.write(data)
            return
        self._backlog.append(memoryview(data))
        self._backlog_size += size
        if not self.lagging:
            self._write_backlog()

    def write_joined(self, pieces: Sequence[bytes]) -> None:
        """Write several pieces, small ones joined."""
        if len(pieces) > 1 and sum(map(len, pieces)) <= _JOIN_LIMIT:
            pieces = (b"".join(pieces),)
        for piece in pieces:
            self.write(piece)

    def write_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write pieces without joining them, if the loop supports it; not over TLS."""
        if self.transport.is_closing():
            return
        size = sum(map(len, pieces))
        self.written += size
        if not self.lagging or size > self.piece:
            self.piece = size
        if _WRITELINES_PAUSES:
            self.transport.writelines(pieces)
        else:
            for piece in pieces:
                self.transport.write(piece)

    def _write_backlog(self) -> None:
        backlog = self._backlog
        while backlog and not self.lagging:
            data = backlog.popleft()
            if len(data) > _SLICE:
                backlog.appendleft(data[_SLICE:])
                data = data[:_SLICE]
            self._backlog_size -= len(data)
            self.transport.write(data)

    def waiting(self) -> int:
        """Bytes that were written, but not yet accepted by the system."""
        return self._backlog_size + self.transport.get_write_buffer_size()

    def unread(self) -> int:
        if self._cut:
            return 0
        return self.pending() + self.waiting() if self.lagging else self.pending()

    def count(self) -> None:
        """Update the budget with the output that is buffered for the client."""
        shared = self.shared
        buffered = 0 if self._cut else self.buffered()
        if self.lagging and not self._cut:
            # The sent part of a large piece uses memory as long as the rest of it is unsent.
            buffered += max(self.waiting() + self._in_system(), self.piece)
        more = buffered - self.counted
        if more:
            self.counted = buffered
            shared.buffered += more
            if more > 0:
                shared.budget.add(more)
            else:
                shared.budget.release(-more)
        if shared.budget.arrived > shared.budget.limit:
            shared.drop_unread_output()

    def _in_system(self) -> int:
        """Bytes in the system's send buffer."""
        if self.transport.is_closing():
            return 0
        descriptor = self.transport.get_extra_info("socket").fileno()
        return int.from_bytes(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)), sys.byteorder)

    def give_up(self) -> None:
        self.abort()
        self.count()

    def pause_writing(self) -> None:
        """Called by the transport when its write buffer exceeds the high mark."""
        self.lagging = True
        self.due = min(self.due, self.shared.sweeper.after(self.shared.period))
        self.update_reading()

    def resume_writing(self) -> None:
        """Called by the transport when its write buffer falls below the low mark."""
        self.lagging = False
        if self._backlog:
            self._write_backlog()
            self.count()
        if self.closing:
            if not self._backlog:
                self._finish()
        elif not self.lagging:
            self.update_reading()
            self.mark()

    # Reading.

    def wants_data(self) -> bool:
        """Whether the connection can process more input."""
        return not self.lagging

    def update_reading(self) -> None:
        """Resume or pause reading. While it is paused, the kernel's buffer fills: back-pressure."""
        reading = self.closing or self.wants_data()
        if reading is not self._reading and not self.eof and not self.transport.is_closing():
            self._reading = reading
            if reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def count_input(self, count: int) -> None:
        """Update the budget with the input that was read, but not yet processed."""
        budget = self.shared.budget
        budget.release(self._input)
        budget.add(count)
        self._input = count

    # Shutdown.

    def on_due(self, now: float) -> None:
        try:
            waiting = self.waiting()
            if not waiting:
                self._reader = None
            if waiting and self._stalls(waiting, now):
                self.shared.counters.stalled += 1
                self.abort()
            elif not self.closing:
                self.check(now)
                if waiting:
                    self.due = min(self.due, now + self.shared.period)
            elif waiting or now < self._linger_until:
                self.due = now + self.shared.period
            else:
                self.abort()
        except Exception:  # noqa: BLE001 - only this connection fails
            self.broken()

    def _stalls(self, waiting: int, now: float) -> bool:
        """Whether the client reads too slowly."""
        limits = self.shared.limits
        # The kernel accepts data in bursts of up to a megabyte; its buffer shrinks steadily while
        # the client reads.
        read = self.written - waiting - self._in_system()
        before, self._looked = self._looked, now
        if self._reader is None or now - before > self.shared.recheck_interval:
            self._reader = Pace(read, now, limits.write_timeout)
        return self._reader.is_late(read, now, limits.body_pace)

    def end(self, *, linger: bool = False) -> None:
        """Close after everything has been written.

        Args:
            linger: the client may still be sending. Closing a socket with unread input makes the
                kernel send a reset, and the client may lose an answer that it has not read yet. So
                only our half is closed, and input is discarded until the client closes its half, or
                for ``DoorLimits.linger``.
        """
        if self.closing:
            return
        self.closing = True
        self._lingers = linger and not self.eof
        self.due = self.shared.sweeper.now + self.shared.period
        if not self._backlog:
            self._finish()

    def _finish(self) -> None:
        """Everything has been written: close, or wait until the client closes."""
        self._linger_until = self.shared.sweeper.after(self.shared.limits.linger)
        if self._lingers:
            try:
                if self.transport.can_write_eof():
                    self.transport.write_eof()
                self.update_reading()
            except OSError:  # the client has closed before us
                self.transport.close()
        else:
            self.transport.close()

    def abort(self) -> None:
        self.closing = self._cut = True
        self.due = NEVER
        if self.waiting():
            # Otherwise the system would retransmit up to megabytes of unread output for a minute.
            link = self.transport.get_extra_info("socket")
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self.transport.abort()

    async def watch_for_reset(self) -> None:
        """Abort once the client, which has closed its sending half, is known to have disconnected:
        its system has replied with a reset to what was written.

        The transport of a half-closed connection does not read any more, so the socket is polled.
        """
        if self.closing or self.transport.is_closing():
            return
        watched = select.poll()
        watched.register(self.transport.get_extra_info("socket"), 0)
        pause = _FIRST_LOOK
        while True:
            await asyncio.sleep(pause)
            if self.closing or self.transport.is_closing():
                return
            if watched.poll(0):  # POLLERR or POLLHUP, which are always reported
                self.abort()
                return
            pause = min(1.0, self.shared.period)

    def broken(self) -> None:
        """Log the exception that is being handled as a bug, and abort the connection."""
        _log.exception("a connection failed inside penstock; please report this")
        self.shared.counters.errors += 1
        try:
            self.abort()
        except Exception:  # noqa: BLE001 - aborting failed too: close the transport directly
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the transport: the connection is lost."""
        # A flush that was scheduled before must not count the output again.
        self.closing = self._cut = True
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        shared = self.shared
        shared.buffered -= self.counted
        shared.budget.release(self.counted)
        self.counted = 0
        try:
            self.gone()
        finally:
            shared.leave(self)


def wire(reply: HttpReply, date: bytes) -> bytes:
    """Encode the last answer of an HTTP/1.1 connection, outside of any exchange."""
    head = b"HTTP/1.1 %d %s\r\n" % (reply.status, HTTPStatus(reply.status).phrase.encode())
    fields = b"".join(b"%s: %s\r\n" % pair for pair in reply.headers)
    end = b"%bconnection: close\r\ncontent-length: %d\r\n\r\n" % (date, len(reply.body))
    return head + fields + end + reply.body
