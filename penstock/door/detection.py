"""Protocol detection: HTTP/1.1, HTTP/2 or baidu_std, by a connection's first bytes."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final, cast

from penstock.door.baidu_std import BaiduStdSession
from penstock.door.connection import Connection, wire
from penstock.door.http1 import Http1Session
from penstock.door.http2 import Http2Session
from penstock.door.state import DoorState, ListenerQuota
from penstock.protocols.baidu_std import MAGIC
from penstock.protocols.http2 import PREFACE

PROTOCOLS: Final = ["h2", "http/1.1"]
"""Protocols offered by ALPN; a client without ALPN is detected by its first bytes."""

_TLS_HANDSHAKE: Final = 0x16


class ProtocolDetection(Connection):
    """A connection whose protocol is not known yet.

    Args:
        shared: the door's state.
        quota: the listener's quota.
        counted: the connection already counts in the limit of connections.
    """

    def __init__(self, shared: DoorState, quota: ListenerQuota, *, counted: bool = False) -> None:
        super().__init__(shared, None)
        self._by = quota
        self._counted = counted
        self._early = b""

    def connection_made(self, made: asyncio.BaseTransport) -> None:
        """Accept the connection, or refuse it if there are too many."""
        shared = self.shared
        transport = self.transport = cast(asyncio.Transport, made)
        if not self._counted and shared.is_full(self._by):
            shared.refuse()
            # Without lingering: a client that opens many connections must not keep them.
            self.closing = True
            transport.write(
                wire(shared.failure(None, 503, "too many connections"), shared.date_line)
            )
            transport.close()
            return
        shared.counters.accepted += 1
        shared.connections.add(self)
        shared.silent.add(self)
        notify = shared.instruments.connection_opened
        if notify is not None:
            notify(self.peer.address, monotonic())
        self.quota = self._by
        self._by.open += 1
        self.due = min(shared.sweeper.after(shared.limits.header_timeout), shared.last_head)
        tls = transport.get_extra_info("ssl_object")
        chosen = None if tls is None else tls.selected_alpn_protocol()
        if chosen == "h2":
            self._become(Http2Session(shared, transport))
        elif chosen is not None:
            self._become(Http1Session(shared, transport, self.due))

    def data_received(self, data: bytes) -> None:
        """Detect the protocol by the 24 bytes of the HTTP/2 preface, or the magic of baidu_std."""
        if self.closing:
            return
        data = self._early + data if self._early else data
        if len(data) < len(PREFACE) and PREFACE.startswith(data):
            self._early = data
        elif data.startswith(PREFACE):
            self._become(Http2Session(self.shared, self.transport), data)
        elif data.startswith(MAGIC):
            self._become(BaiduStdSession(self.shared, self.transport), data)
        elif len(data) < len(MAGIC) and MAGIC.startswith(data):
            self._early = data
        else:
            session = Http1Session(self.shared, self.transport, self.due)
            if data[0] == _TLS_HANDSHAKE:
                self._become(session)
                session.refuse_tls()
            else:
                self._become(session, data)

    def _become(self, session: Connection, data: bytes = b"") -> None:
        connections = self.shared.connections
        connections.discard(self)
        connections.add(session)
        session.quota, self.quota = self.quota, None
        session._peer = self._peer
        session.start(data)
        self.shared.heard(self)
        if self.shared.leaving and not session.closing:
            session.refuse_partial()
            session.leave()

    def flush(self) -> None:
        """Do nothing: there is no output."""

    def check(self, now: float) -> None:
        """Refuse a client whose first bytes did not arrive in time."""
        if self._early:
            # The protocol is still unknown, so this counts as a late HTTP/1.1 request.
            self._become(Http1Session(self.shared, self.transport, self.due), self._early)
        else:
            self.shared.counters.heads_late += 1
            self.abort()

    def gone(self) -> None:
        """No request has begun."""

    def drain(self) -> None:
        """Do nothing: the protocol of an announcement is not known yet."""

    def refuse_partial(self) -> None:
        """No request has begun."""

    def leave(self) -> None:
        """A new client may be about to send its first bytes."""
        self.due = min(self.due, self.shared.last_head)
