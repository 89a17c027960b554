"""What every connection of a door has, whichever HTTP it speaks.

Its transport, when it is due to be looked at, what waits for its reader, and how it ends: an
orderly end never loses the last answer. Output is written once per turn of the loop for all
connections that have some (``DoorState.flush``), or at the end of a read.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import sys
import termios
from abc import ABC, abstractmethod
from collections import deque
from http import HTTPStatus
from math import inf
from typing import Final

from penstock.frontends.door_state import DoorState
from penstock.frontends.http import HttpReply

_log = logging.getLogger(__name__)

HIGH_MARK: Final = 64 << 10
"""Bytes in a transport's buffer from which on its connection is not read any more."""

_LOW_MARK: Final = 16 << 10

_SLICE: Final = 64 << 10
"""Bytes given to TLS at once. Of a larger write it would not say how much waits: it encrypts all of
it, and the layer below keeps that."""

NEVER: Final = inf


class Connection(asyncio.Protocol, ABC):
    """One connection; a subclass speaks one protocol on it.

    Attributes:
        due: when the wheel is to look at it.
        closing: it is ending: input is thrown away, and nothing more is begun.
        dirty: it will be flushed in this turn anyway.
        lagging: its client does not read what we write; so it is not read either.
        counted: bytes of it that the budget counts as waiting to be read.
        secure: it speaks TLS.
        written: bytes written until now.
    """

    __slots__ = (
        "_backlog",
        "_backlog_size",
        "_linger_until",
        "_lingers",
        "_read",
        "_read_at",
        "_reading",
        "closing",
        "counted",
        "dirty",
        "due",
        "eof",
        "lagging",
        "secure",
        "shared",
        "transport",
        "written",
    )

    def __init__(self, shared: DoorState, transport: asyncio.Transport | None) -> None:
        self.shared = shared
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.due = NEVER
        self.closing = False
        self.dirty = False
        self.eof = False
        self.lagging = False
        self.counted = 0
        self.written = 0
        self.secure = False
        self._backlog: deque[memoryview] = deque()
        self._backlog_size = 0
        self._linger_until = 0.0
        self._lingers = False
        self._read = -1
        self._read_at = 0.0
        self._reading = True

    def __repr__(self) -> str:
        state = "closing" if self.closing else "lagging" if self.lagging else "open"
        return f"<{type(self).__name__} {state}, {self.written} bytes written>"

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
    def leave(self) -> None:
        """The door closes: end as soon as no exchange is open. ``drain`` came before."""

    def pending(self) -> int:
        """Bytes that wait behind the peer's windows."""
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
        self.written += len(data)
        if not self.secure:
            self.transport.write(data)
            return
        self._backlog.append(memoryview(data))
        self._backlog_size += len(data)
        if not self.lagging:
            self._pour()

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

    def count(self) -> None:
        """Let the budget know what waits for the client to read."""
        waiting = self.pending()
        if self.lagging:
            waiting += self.waiting()
        more = waiting - self.counted
        if more:
            self.counted = waiting
            self.shared.unsent += more
            if more > 0:
                self.shared.budget.add(more)
            else:
                self.shared.budget.release(-more)

    def pause_writing(self) -> None:
        """The transport's buffer is above its mark; called by it."""
        self.lagging = True
        self.due = min(self.due, self.shared.wheel.after(self.shared.period))
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
        """Whether the client has read nothing of what waits for too long."""
        # The kernel takes more only in bursts, of a megabyte even; what it holds shrinks steadily
        # while the client reads.
        descriptor = self.transport.get_extra_info("socket").fileno()
        queue = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4))
        read = self.written - waiting - int.from_bytes(queue, sys.byteorder)
        if read != self._read:
            self._read = read
            self._read_at = now
            return False
        return now - self._read_at >= self.shared.limits.write_timeout

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
        self.due = self.shared.wheel.now + self.shared.period
        if not self._backlog:
            self._finish()

    def _finish(self) -> None:
        """Everything is with the transport: close, or wait for the client to do so."""
        self._linger_until = self.shared.wheel.after(self.shared.limits.linger)
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
        """Cut it off."""
        self.closing = True
        self.due = NEVER
        self.transport.abort()

    def broken(self) -> None:
        """The exception that is being handled is a fault of ours; this connection ends by it."""
        _log.exception("a connection failed inside penstock; please report this")
        self.shared.counters.errors += 1
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport's last word."""
        self.closing = True
        shared = self.shared
        shared.unsent -= self.counted
        shared.budget.release(self.counted)
        self.counted = 0
        try:
            self.gone()
        finally:
            shared.leave(self)


def wire(reply: HttpReply) -> bytes:
    """The last answer of an HTTP/1.1 connection, outside of any exchange."""
    head = b"HTTP/1.1 %d %s\r\n" % (reply.status, HTTPStatus(reply.status).phrase.encode())
    fields = b"".join(b"%s: %s\r\n" % pair for pair in reply.headers)
    end = b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(reply.body)
    return head + fields + end + reply.body
