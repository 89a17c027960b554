"""What every connection of a door has, whichever HTTP it speaks.

Its transport, when it is due to be looked at, what waits for its reader, and how it ends: an
orderly end never loses the last answer. Output is written once per turn of the loop for all
connections that have some (``DoorState.flush``), at the end of a read, or at once where one piece
is all there is to write.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import struct
import sys
import termios
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from http import HTTPStatus
from math import inf
from typing import Final

from penstock.door.exchange import HttpReply, Peer
from penstock.door.state import DoorState, ListenerQuota

_log = logging.getLogger(__name__)

HIGH_MARK: Final = 64 << 10
"""Bytes in a transport's buffer from which on its connection is not read any more."""

_LOW_MARK: Final = 16 << 10

_JOIN_LIMIT: Final = 16 << 10
"""Bytes of pieces that are joined to be written at once; larger ones are handed on one by one."""

_SLICE: Final = 64 << 10
"""Bytes given to TLS at once. Of a larger write it would not say how much waits: it encrypts all of
it, and the layer below keeps that."""

PAUSE: Final = 0.001
"""Seconds between two parts of a large read. A loop that somebody floods never rests otherwise, and
worker threads wait for the interpreter's lock until it does."""

NEVER: Final = inf

_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""Of SO_LINGER: what the peer has not taken is dropped with the socket."""


class Pace:
    """Whether a client takes what waits for it fast enough.

    It has a while to begin, and what it takes buys it more at a pace, but never more than that
    while from now on: so neither one that stops nor one that takes a byte now and then goes on for
    long, and one that was quick before has no advantage of it.

    Args:
        taken: bytes until now.
        now: monotonic seconds.
        timeout: seconds that it has.
    """

    __slots__ = ("_taken", "_timeout", "_until")

    def __init__(self, taken: int, now: float, timeout: float) -> None:
        self._taken = taken
        self._timeout = timeout
        self._until = now + timeout

    def is_late(self, taken: int, now: float, pace: float) -> bool:
        """Whether its time is over.

        Args:
            taken: bytes until now.
            now: not before that of the last call.
            pace: bytes that buy a second.
        """
        until = self._until + max(taken - self._taken, 0) / pace
        self._taken = taken
        self._until = min(until, now + self._timeout)
        return now >= self._until


class Connection(asyncio.Protocol, ABC):
    """One connection; a subclass speaks one protocol on it.

    Attributes:
        quota: of the listener by which it came, when it counts.
        due: when the wheel is to look at it.
        closing: it is ending: input is thrown away, and nothing more is begun.
        dirty: it will be flushed in this turn anyway.
        lagging: its client does not read what we write; so it is not read either.
        counted: bytes of it that the budget counts as buffered for its client.
        piece: bytes of the largest piece that was written since its client last read everything.
        secure: it speaks TLS.
        written: bytes written until now.
    """

    __slots__ = (
        "_backlog",
        "_backlog_size",
        "_cut",
        "_linger_until",
        "_lingers",
        "_looked",
        "_peer",
        "_reader",
        "_reading",
        "closing",
        "counted",
        "dirty",
        "due",
        "eof",
        "lagging",
        "piece",
        "quota",
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
        self._linger_until = 0.0
        self._lingers = False
        self._looked = 0.0
        self._peer: Peer | None = None
        self._reader: Pace | None = None  # while something waits for it
        self._reading = True

    @property
    def peer(self) -> Peer:
        """The client."""
        if self._peer is None:
            name = self.transport.get_extra_info("peername")
            address, port = name[:2] if isinstance(name, tuple) else ("", 0)
            self._peer = Peer(address, port, self.transport.get_extra_info("peercert") or None)
        return self._peer

    # What a subclass adds.

    @abstractmethod
    def flush(self) -> None:
        """Write what there is to say."""

    @abstractmethod
    def check(self, now: float) -> None:
        """``due`` has passed, and the client reads: end what takes too long, set ``due`` anew."""

    @abstractmethod
    def gone(self) -> None:
        """The connection is no more: tell those whose exchanges are open."""

    @abstractmethod
    def drain(self) -> None:
        """The door takes no more requests: say so."""

    @abstractmethod
    def refuse_partial(self) -> None:
        """No request is admitted any more: answer those that are not whole."""

    @abstractmethod
    def leave(self) -> None:
        """The door closes: end as soon as no exchange is open, and no first request is expected
        (``DoorState.last_head``). ``drain`` came before, and so did ``refuse_partial``.
        """

    def pending(self) -> int:
        """Bytes that wait behind the peer's windows."""
        return 0

    def buffered(self) -> int:
        """Bytes that are kept for those: of a long piece all while any of it waits."""
        return 0

    def start(self, data: bytes) -> None:
        """Take over the transport, with what was read from it before."""
        self.secure = self.transport.get_extra_info("ssl_object") is not None
        self.transport.set_write_buffer_limits(HIGH_MARK, _LOW_MARK)
        self.transport.set_protocol(self)
        if data:
            self.data_received(data)
        else:
            self.mark()

    # The write side.

    def mark(self) -> None:
        """Have it flushed at the end of this turn."""
        if not self.dirty:
            self.dirty = True
            self.shared.mark(self)

    def write(self, data: bytes) -> None:
        """Write, slice by slice where that is needed to know what waits.

        What is for a client that has gone in this very turn, before we were told, is dropped.
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
            self._pour()

    def write_joined(self, pieces: Sequence[bytes]) -> None:
        """Write several pieces: small ones as one."""
        if len(pieces) > 1 and sum(map(len, pieces)) <= _JOIN_LIMIT:
            pieces = (b"".join(pieces),)
        for piece in pieces:
            self.write(piece)

    def write_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write without joining, where the loop can; not over TLS."""
        if self.transport.is_closing():
            return
        size = sum(map(len, pieces))
        self.written += size
        if not self.lagging or size > self.piece:
            self.piece = size
        self.transport.writelines(pieces)

    def _pour(self) -> None:
        backlog = self._backlog
        while backlog and not self.lagging:
            data = backlog.popleft()
            if len(data) > _SLICE:
                backlog.appendleft(data[_SLICE:])
                data = data[:_SLICE]
            self._backlog_size -= len(data)
            self.transport.write(data)

    def waiting(self) -> int:
        """Bytes that were written and not yet taken by the system."""
        return self._backlog_size + self.transport.get_write_buffer_size()

    def unread(self) -> int:
        """Bytes that wait for the client to read, and not with the system."""
        if self._cut:
            return 0
        return self.pending() + self.waiting() if self.lagging else self.pending()

    def count(self) -> None:
        """Let the budget know what is buffered for the client to read."""
        shared = self.shared
        buffered = 0 if self._cut else self.buffered()
        if self.lagging and not self._cut:
            # What has gone of a large piece is memory of ours as long as the rest of it is.
            buffered += max(self.waiting() + self._in_system(), self.piece)
        more = buffered - self.counted
        if more:
            self.counted = buffered
            shared.buffered += more
            if more > 0:
                shared.budget.add(more)
            else:
                shared.budget.release(-more)
        if shared.budget.there > shared.budget.limit:
            shared.relieve()

    def _in_system(self) -> int:
        """Bytes that the system has taken and the client's has not."""
        if self.transport.is_closing():
            return 0
        descriptor = self.transport.get_extra_info("socket").fileno()
        return int.from_bytes(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)), sys.byteorder)

    def give_up(self) -> None:
        """The budget is used up, and this connection holds the most: hold less, with ``count``."""
        self.abort()
        self.count()

    def pause_writing(self) -> None:
        """The transport's buffer is above its mark; called by it."""
        self.lagging = True
        self.due = min(self.due, self.shared.sweeper.after(self.shared.period))
        self.pace()

    def resume_writing(self) -> None:
        """The transport's buffer has been read; called by it."""
        self.lagging = False
        if self._backlog:
            self._pour()
            self.count()
        if self.closing:
            if not self._backlog:
                self._finish()
        elif not self.lagging:
            self.pace()
            self.mark()

    # The read side.

    def wants_data(self) -> bool:
        """Whether it could do with more input."""
        return not self.lagging

    def pace(self) -> None:
        """Read, or leave the input with the kernel and so with the client."""
        reading = self.closing or self.wants_data()
        if reading is not self._reading and not self.eof and not self.transport.is_closing():
            self._reading = reading
            if reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    # Its end.

    def look(self, now: float) -> None:
        """End what takes too long; called by the wheel."""
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
        except Exception:  # noqa: BLE001 - one connection's fault is not the door's
            self.broken()

    def _stalls(self, waiting: int, now: float) -> bool:
        """Whether the client has read too little of what waits for too long."""
        limits = self.shared.limits
        # The kernel takes more only in bursts, of a megabyte even; what it holds shrinks steadily
        # while the client reads.
        read = self.written - waiting - self._in_system()
        before, self._looked = self._looked, now
        if self._reader is None or now - before > self.shared.glance:
            self._reader = Pace(read, now, limits.write_timeout)
        return self._reader.is_late(read, now, limits.body_pace)

    def end(self, *, linger: bool = False) -> None:
        """Close once everything is written.

        Args:
            linger: the client may still be sending. Closing a socket with unread input makes the
                kernel send a reset, and the client may lose an answer that it has not read yet.
                So only our half is closed, and input is thrown away until the client closes its
                half, or for ``DoorLimits.linger``.
        """
        if self.closing:
            return
        self.closing = True
        self._lingers = linger and not self.eof
        self.due = self.shared.sweeper.now + self.shared.period
        if not self._backlog:
            self._finish()

    def _finish(self) -> None:
        """Everything is with the transport: close, or wait for the client to do so."""
        self._linger_until = self.shared.sweeper.after(self.shared.limits.linger)
        if self._lingers:
            try:
                if self.transport.can_write_eof():
                    self.transport.write_eof()
                self.pace()
            except OSError:  # the client was quicker
                self.transport.close()
        else:
            self.transport.close()

    def abort(self) -> None:
        """Cut it off; who has not read what was written sees a reset."""
        self.closing = self._cut = True
        self.due = NEVER
        if self.waiting():
            # The system would keep megabytes of it for a minute, and offer them again and again.
            link = self.transport.get_extra_info("socket")
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self.transport.abort()

    def broken(self) -> None:
        """The exception that is being handled is a fault of ours; this connection ends by it."""
        _log.exception("a connection failed inside penstock; please report this")
        self.shared.counters.errors += 1
        try:
            self.abort()
        except Exception:  # noqa: BLE001 - the same fault again: cut it off without looking closer
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport's last word."""
        self.closing = True
        shared = self.shared
        shared.buffered -= self.counted
        shared.budget.release(self.counted)
        self.counted = 0
        try:
            self.gone()
        finally:
            shared.leave(self)


def wire(reply: HttpReply, date: bytes) -> bytes:
    """The last answer of an HTTP/1.1 connection, outside of any exchange."""
    head = b"HTTP/1.1 %d %s\r\n" % (reply.status, HTTPStatus(reply.status).phrase.encode())
    fields = b"".join(b"%s: %s\r\n" % pair for pair in reply.headers)
    end = b"%bconnection: close\r\ncontent-length: %d\r\n\r\n" % (date, len(reply.body))
    return head + fields + end + reply.body
