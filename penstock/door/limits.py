"""What a door bears, and what it has seen."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.protocols.http1 import Http1Limits
from penstock.protocols.http2 import Http2Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorLimits:
    """What the connections of a door enforce. Times are in seconds, and kept to within a second.

    Attributes:
        max_connections: beyond it a connection gets 503 and is closed; an eighth is kept for each
            listener.
        max_calls: requests open at once on all connections, those included whose body has not
            come; further ones are marked ``Exchange.over_limit``: the application refuses them.
        header_timeout: for a request's head to arrive, from its first byte, or from the connection.
        body_timeout: for its body, from its head.
        body_pace: bytes a second; what arrives makes the time for a body longer at this pace, and
            what is read the time for an answer, up to ``write_timeout`` from then on.
        keep_alive: an idle connection of HTTP/1.1 is kept so long, and up to a fifth longer.
        http2_idle: the same for one of HTTP/2 without open streams.
        write_timeout: within which a client must read some of what waits for it, at ``body_pace``.
        tls_timeout: for the handshake.
        linger: input of a connection that was refused is thrown away so long, so that the client
            reads the answer before it sees a reset.
        max_unsent: bytes that may wait for one connection's reader; with more no further stream of
            it is begun, and a streamed answer that goes on regardless is broken off.
        backlog: connections that wait in the kernel to be accepted.
        busy_poll: when no request is open, the loop looks for the next one so long before it
            sleeps, if the last ones came as quickly; 0 means never.
        half_close_probe: a client of HTTP/1.1 that has closed its half while a request is open is
            asked by ``100 Continue`` whether it is still there. Otherwise it is taken to be.
        http1: of heads, chunks and pipelining in HTTP/1.1.
        http2: of streams, windows, heads and nuisances in HTTP/2.
    """

    max_connections: int = 1024
    max_calls: int = 4096
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    body_pace: int = 64 << 10
    keep_alive: float = 5.0
    http2_idle: float = 300.0
    write_timeout: float = 30.0
    tls_timeout: float = 10.0
    linger: float = 2.0
    max_unsent: int = 64 << 20
    backlog: int = 1024
    busy_poll: float = 0.001
    half_close_probe: bool = False
    http1: Http1Limits = field(default_factory=Http1Limits)
    http2: Http2Limits = field(default_factory=Http2Limits)

    @property
    def period(self) -> float:
        """Seconds between two looks at a connection that is busy: short against every limit."""
        times = (
            self.header_timeout,
            self.body_timeout,
            self.keep_alive,
            self.http2_idle,
            self.write_timeout,
            self.linger,
        )
        return min(1.0, min(times) / 4)


@dataclass(slots=True, kw_only=True)
class DoorStatistics:
    """Counters of a door, from its start on; ``open``, ``calls`` and ``unsent`` are of now.

    Attributes:
        open: connections.
        calls: requests that have no complete answer yet.
        unsent: bytes that wait for clients to read them, without what the system has taken.
        accepted: connections.
        refused: connections beyond the limit.
        requests: whose head was legal.
        heads_late: connections whose head, or first byte, did not come in time.
        bodies_late: requests whose body did not come in time.
        idle: connections closed because nothing was asked for long.
        stalled: connections and streams cut off because nobody read, or too slowly.
        malformed: requests of HTTP/1.1, or connections of HTTP/2, that broke the protocol.
        heads_too_large: requests whose head was over a limit; in HTTP/1.1 they are malformed, too.
        bodies_too_large: requests whose body, or a message in it, was over the limit.
        bodies_refused: requests refused because too many bytes were in flight.
        calls_refused: requests refused because too many were open.
        calmed: connections of HTTP/2 ended because their peer was a nuisance.
        abuses: the same, by what there was too much of; of HTTP/1.1 the bodies in too many
            chunks, which are malformed, too.
        resets: streams that were reset for breaking the protocol.
        streams_beyond: streams refused because their connection had as many as it may have.
        streams_refused: streams not begun because too much waited to be read.
        overrun: answers broken off because too much waited for their readers; a connection that is
            cut counts once.
        gone: requests whose client left before the answer was complete.
        tls_failed: handshakes.
        errors: requests or connections that failed by a fault of the application or of the door.
        cut: connections that ``close`` did not wait for.
    """

    open: int = 0
    calls: int = 0
    unsent: int = 0
    accepted: int = 0
    refused: int = 0
    requests: int = 0
    heads_late: int = 0
    bodies_late: int = 0
    idle: int = 0
    stalled: int = 0
    malformed: int = 0
    heads_too_large: int = 0
    bodies_too_large: int = 0
    bodies_refused: int = 0
    calls_refused: int = 0
    calmed: int = 0
    abuses: dict[str, int] = field(default_factory=dict)
    resets: int = 0
    streams_beyond: int = 0
    streams_refused: int = 0
    overrun: int = 0
    gone: int = 0
    tls_failed: int = 0
    errors: int = 0
    cut: int = 0

    def count_abuse(self, kind: str) -> None:
        """A connection of HTTP/2 ends because its peer made too much of this."""
        self.calmed += 1
        self.abuses[kind] = self.abuses.get(kind, 0) + 1

    def count_malformed(self, status: int, abuse: str) -> None:
        """A request of HTTP/1.1 is answered with this status, and its connection ends."""
        self.malformed += 1
        self.heads_too_large += status in (414, 431)
        if abuse:
            self.abuses[abuse] = self.abuses.get(abuse, 0) + 1
