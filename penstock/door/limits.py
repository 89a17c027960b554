"""The limits of a door's connections, and their counters."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.protocols.http1 import Http1Limits
from penstock.protocols.http2 import Http2Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorLimits:
    """What the connections of a door enforce. Times are in seconds, and kept to within a second.

    Keys of the configuration have the same names, and ``docs/configuration.md`` says what they
    mean. Here is what it does not say.

    Attributes:
        max_connections: an eighth of them is kept for each listener.
        max_calls: further ones are marked ``Exchange.over_limit``: the application refuses them.
        header_timeout: from the first byte of a request, or from the connection.
        keep_alive: of HTTP/1.1, and up to a fifth longer.
        linger: input of a connection that was refused is thrown away so long, so that the client
            reads the answer before it sees a reset.
        max_unsent: beyond it a streamed answer that goes on regardless is broken off.
        backlog: connections that wait in the kernel to be accepted.
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
        malformed: requests of HTTP/1.1, or connections of HTTP/2 and baidu_std, that broke the
            protocol.
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
        error_answers: those with an HTTP status of 400 and more, by it; gRPC calls that ended in
            another status than OK, and baidu_std calls with an error code, by its name.
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
    error_answers: dict[str, int] = field(default_factory=dict)
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
