"""The threaded client of a pipeline service."""

from __future__ import annotations

import itertools
import os
from types import TracebackType
from typing import Any, Literal, Self, overload

from penstock.client.address import KnownAddress
from penstock.client.channel import Channel
from penstock.client.deadlines import deadline_after
from penstock.client.endpoints import parse_endpoints
from penstock.client.errors import CallFailed, NotConnected
from penstock.client.future import PredictFuture
from penstock.client.packing import encode_request, pack_request
from penstock.client.replies import decode_reply
from penstock.client.tls import Tls
from penstock.protocols import pb


class _Connection:
    """What ``connect`` made; never changed afterwards, so that no lock is needed to use it."""

    def __init__(self, endpoints: object, tls: Tls | None) -> None:
        self.endpoints = parse_endpoints(endpoints)
        self.own_address = KnownAddress()
        self.process = os.getpid()
        self.channels = [Channel(endpoint, tls) for endpoint in self.endpoints]
        self._turns = itertools.count()  # next() on it is atomic

    def in_turn(self) -> list[Channel]:
        """Every channel, beginning with the one whose turn it is."""
        first = next(self._turns) % len(self.channels)
        return self.channels[first:] + self.channels[:first]

    def call(self, request: bytes, deadline: float | None) -> bytes:
        """Try one endpoint after the other while certainly none has seen the request."""
        *others, last = self.in_turn()
        for channel in others:
            try:
                return channel.call(request, deadline=deadline)
            except CallFailed as error:
                if error.sent:
                    raise
        return last.call(request, deadline=deadline)

    def close(self) -> None:
        # In a forked child the sockets are the parent's; they are not ours to say goodbye on.
        if self.process == os.getpid():
            for channel in self.channels:
                channel.close()


class PipelineClient:
    """Calls a pipeline service over gRPC. Any thread.

        with PipelineClient() as client:
            client.connect(["127.0.0.1:9993"])
            response = client.predict({"x": array})

    Calls take turns between the endpoints; one that cannot be reached is passed over for as long as
    another can. All threaded clients of a process share one thread, which runs while any of them is
    connected and in use. After a fork a child must call ``connect`` for itself: using the parent's
    connection raises ``NotConnected``, and calls under way stay the parent's. Nothing is printed.

    Source: ``docs/compatibility.md`` (pipeline client).
    """

    def __init__(self, *, tls: Tls | None = None) -> None:
        self._tls = tls
        self._connection: _Connection | None = None

    def connect(self, endpoints: list[str]) -> None:
        """Say where to call; nothing is sent before the first call.

        Connecting again leaves the former endpoints; calls to them that are under way fail.

        Args:
            endpoints: ``host:port`` each; the host is a name or an address, IPv6 in brackets.

        Raises:
            TypeError: not a list of texts.
            ValueError: empty, or an entry is not ``host:port``.
            OSError: a file of ``tls`` cannot be read.
        """
        former, self._connection = self._connection, _Connection(endpoints, self._tls)
        if former is not None:
            former.close()

    @overload
    def predict(
        self,
        feed_dict: dict[str, Any],
        fetch: list[str] | None = None,
        asyn: Literal[False] = False,
        pack_tensor_format: bool = False,
        use_tensor_bytes: bool = False,
        profile: bool = False,
        log_id: int | None = None,
        *,
        timeout: float | None = None,
        name: str = "",
        method: str = "",
    ) -> pb.Response: ...

    @overload
    def predict(
        self,
        feed_dict: dict[str, Any],
        fetch: list[str] | None = None,
        *,
        asyn: Literal[True],
        pack_tensor_format: bool = False,
        use_tensor_bytes: bool = False,
        profile: bool = False,
        log_id: int | None = None,
        timeout: float | None = None,
        name: str = "",
        method: str = "",
    ) -> PredictFuture: ...

    @overload
    def predict(
        self,
        feed_dict: dict[str, Any],
        fetch: list[str] | None = None,
        asyn: bool = False,
        pack_tensor_format: bool = False,
        use_tensor_bytes: bool = False,
        profile: bool = False,
        log_id: int | None = None,
        *,
        timeout: float | None = None,
        name: str = "",
        method: str = "",
    ) -> pb.Response | PredictFuture: ...

    def predict(
        self,
        feed_dict: dict[str, Any],
        fetch: list[str] | None = None,
        asyn: bool = False,
        pack_tensor_format: bool = False,
        use_tensor_bytes: bool = False,
        profile: bool = False,
        log_id: int | None = None,
        *,
        timeout: float | None = None,
        name: str = "",
        method: str = "",
    ) -> pb.Response | PredictFuture:
        """Make one call.

        Args:
            feed_dict: names to texts, arrays or (without ``pack_tensor_format``) lists; only read.
                ``logid`` and ``clientip`` in it become the call's own fields. With
                ``pack_tensor_format``, ``x.lod`` is the lod of ``x``.
            fetch: checked to be a list, and otherwise without effect.
            asyn: return at once with a future; the result comes from its ``result()``.
            pack_tensor_format: send typed tensors instead of texts.
            use_tensor_bytes: with tensors, send each array as ``.npy`` bytes.
            profile: with texts, ask for the server's profile of this call.
            log_id: int64; None means the feed's ``logid``, or else 0.
            timeout: seconds for the whole call; None means no limit of the client's.
            name: the service's name; every service accepts an empty one.
            method: the method's name; most services ignore it.

        Returns:
            The reply, also when its ``err_no`` is not 0 (see ``raise_for_error``).

        Raises:
            CallFailed: there was no reply; ``retryable`` tells whether another call may do better.
            NotConnected: before ``connect``, after ``close``, or in a forked child.
            TypeError: the feed is not a dict, or holds something that cannot be sent.
            ValueError: the log id is no int64, a list is ragged, or the timeout is not a positive
                number.
            TooLarge: the request is over 512 MiB.
        """
        deadline = deadline_after(timeout)
        connection = self._usable()
        message = pack_request(
            feed_dict,
            fetch,
            own_address=connection.own_address,
            pack_tensor_format=pack_tensor_format,
            use_tensor_bytes=use_tensor_bytes,
            profile=profile,
            log_id=log_id,
            name=name,
            method=method,
        )
        request = encode_request(message)
        if asyn:
            return PredictFuture(connection.in_turn(), request, deadline)
        return decode_reply(connection.call(request, deadline))

    def close(self) -> None:
        """Disconnect; calls under way end with ``CallFailed``. Closing twice is allowed."""
        former, self._connection = self._connection, None
        if former is not None:
            former.close()

    def _usable(self) -> _Connection:
        connection = self._connection
        if connection is None:
            raise NotConnected("call connect() first")
        if connection.process != os.getpid():
            raise NotConnected("this process was forked off the one that connected: connect() anew")
        return connection

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        connection = self._connection
        if connection is None:
            return "<PipelineClient not connected>"
        return f"<PipelineClient {', '.join(map(str, connection.endpoints))}>"
