"""The limits of a door's connections, and their counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from penstock.protocols.http1 import Http1Limits
from penstock.protocols.http2 import Http2Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorLimits:
    """The limits of a door's connections. Times are in seconds, accurate to about a second.

    They are configuration keys of the same names, described in ``docs/configuration.md``.
    Additions to that page:

    Attributes:
        max_connections: an eighth is reserved for each listener.
        max_calls: requests beyond it are marked ``Exchange.over_limit``; the application refuses
            them.
        header_timeout: counts from the first byte of a request, or from the connection.
        keep_alive: of HTTP/1.1; each connection adds a tenth to three tenths.
        max_connection_age: each connection of HTTP/1.1 and HTTP/2 adds or takes up to a tenth.
        linger: for so long, input of a refused connection is discarded, so that the client reads
            the answer before it sees a reset.
        max_unsent: a streamed answer beyond it is aborted.
        backlog: maximum number of connections that the kernel queues before they are accepted.
    """

    max_connections: int = 1024
    max_calls: int = 4096
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    body_pace: int = 64 << 10
    keep_alive: float = 5.0
    http2_idle: float = 300.0
    max_connection_age: float = inf
    write_timeout: float = 30.0
    tls_timeout: float = 10.0
    linger: float = 2.0
    max_unsent: int = 64 << 20
    backlog: int = 1024
    busy_poll: float = 0.001
    half_close_probe: bool = True
    http1: Http1Limits = field(default_factory=Http1Limits)
    http2: Http2Limits = field(default_factory=Http2Limits)

    @property
    def period(self) -> float:
        """Seconds between two checks of a busy connection: a fraction of the shortest limit."""
        times = (
            self.header_timeout,
            self.body_timeout,
            self.keep_alive,
            self.http2_idle,
            self.max_connection_age,
            self.write_timeout,
            self.linger,
        )
        return min(1.0, min(times) / 4)


@dataclass(slots=True, kw_only=True)
class DoorStatistics:
    """Counters of a door since its start; ``open``, ``calls`` and ``unsent`` are current values.

    Attributes:
        open: connections.
        calls: requests without a complete answer.
        unsent: bytes that clients have not read, without those in the system's send buffers.
        accepted: connections.
        refused: connections beyond the limit.
        requests: requests with a valid head.
        heads_late: connections whose head, or first byte, did not arrive in time.
        bodies_late: requests whose body did not arrive in time.
        idle: connections closed because they were idle.
        stalled: connections and streams aborted because the client read too slowly, or not at all.
        malformed: requests of HTTP/1.1, or connections of HTTP/2 and baidu_std, that broke the
            protocol.
        heads_too_large: requests whose head was over a limit; in HTTP/1.1 also in ``malformed``.
        bodies_too_large: requests whose body, or a message in it, was over the limit.
        bodies_refused: requests refused because too many bytes were in flight.
        calls_refused: requests refused because too many were open.
        callers_refused: requests refused because of who made them.
        caller_refusals: the same by reason, the error's code or ``quota``.
        calmed: connections of HTTP/2 closed because the peer abused the protocol.
        abuses: the same by kind of abuse; for HTTP/1.1, bodies in too many chunks, also in
            ``malformed``.
        resets: streams that were reset for breaking the protocol.
        streams_beyond: streams refused because their connection had the maximum of open streams.
        streams_refused: streams refused because the client had too much unread output.
        overrun: answers aborted because of too much unsent output; an aborted connection counts
            once.
        gone: requests whose client disconnected before the answer was complete.
        tls_failed: failed handshakes.
        errors: requests or connections that failed by a bug of the application or the door.
        error_answers: answers with an HTTP status of 400 and more, by status; failed gRPC calls and
            baidu_std calls, by the code's name.
        cut: connections that were still open at the timeout of ``close``.
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
    callers_refused: int = 0
    caller_refusals: dict[str, int] = field(default_factory=dict)
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
        """Count an HTTP/2 connection that is closed because of this kind of abuse."""
        self.calmed += 1
        self.abuses[kind] = self.abuses.get(kind, 0) + 1

    def count_malformed(self, status: int, abuse: str) -> None:
        """Count an HTTP/1.1 request that is refused with this status."""
        self.malformed += 1
        self.heads_too_large += status in (414, 431)
        if abuse:
            self.abuses[abuse] = self.abuses.get(abuse, 0) + 1
