"""The clients of a pipeline service: for threads, and for an event loop."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Any, Final, Generic, Literal, Self, TypedDict, TypeVar, Unpack, overload

from numpy.typing import NDArray

from penstock.client.call import METHOD
from penstock.client.channels import AsyncChannel, Channel
from penstock.client.endpoints import parse_endpoints
from penstock.client.errors import NotConnected
from penstock.client.message_stream import AsyncMessages, Messages
from penstock.client.messages import decode_reply, encode_request, pack_request
from penstock.client.model_stream import BY_MODEL_STREAM, encode_feed
from penstock.client.routed_call import Sent
from penstock.client.routed_channel import RoutedCalls, RoutedChannel, RoutedFuture
from penstock.client.routing import Attempts
from penstock.client.tls import Tls
from penstock.client.token import Token
from penstock.protocols import pb

AnyCalls = TypeVar("AnyCalls", RoutedCalls, RoutedChannel)

_STRATEGY: Final = "round_robin"
"""As the original: gRPC's policy."""

_RETRIES: Final = 2
"""Attempts after the first one of a call that no server has begun."""


class CallOptions(TypedDict, total=False):
    """Options of a call; see ``PipelineClient.predict``."""

    pack_tensor_format: bool
    use_tensor_bytes: bool
    profile: bool
    log_id: int | None
    timeout: float | None
    name: str
    method: str


class PredictFuture(RoutedFuture[pb.Response]):
    """The future of a call, returned by ``predict(..., asyn=True)``. Any thread.

    Its result is the reply; one with an ``err_no`` is returned like any other.
    """


class _Client(Generic[AnyCalls]):
    """The base class of both clients."""

    def __init__(self, *, tls: Tls | None = None, token: Token | None = None) -> None:
        self._tls = tls
        self._token = token
        self._calls: AnyCalls | None = None

    def _request(
        self, feed_dict: object, fetch: object, timeout: float | None = None, **options: Any
    ) -> tuple[AnyCalls, Sent]:
        """What makes a call, and what it sends."""
        calls, deadline = self._begin(timeout)
        message = pack_request(feed_dict, fetch, own_address=calls.channel.own_address, **options)
        frame, fields = calls.channel.framed(encode_request(message))
        return calls, Sent(
            frame=frame, method=METHOD, fields=fields, deadline=deadline, decode=decode_reply
        )

    def _stream_request(
        self, feed_dict: dict[str, Any], name: str, timeout: float | None, log_id: int
    ) -> tuple[AnyCalls, bytes, float | None]:
        """The same for a model whose answer comes in pieces, with its deadline."""
        calls, deadline = self._begin(timeout)
        return calls, encode_feed(feed_dict, name, str(log_id)), deadline

    def _begin(self, timeout: float | None) -> tuple[AnyCalls, float | None]:
        """What makes a call that begins now, and its deadline."""
        if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
            raise ValueError(f"timeout must be a positive number of seconds or None, got {timeout}")
        deadline = None if timeout is None else time.monotonic() + timeout
        calls = self._calls
        if calls is None:
            raise NotConnected("call connect() first")
        if not calls.channel.is_ours():
            raise NotConnected("connected in another process or on another event loop")
        return calls, deadline

    def __repr__(self) -> str:
        calls = self._calls
        where = "not connected" if calls is None else ", ".join(map(str, calls.channel.endpoints))
        return f"<{type(self).__name__} {where}>"


class PipelineClient(_Client[RoutedCalls]):
    """Calls a pipeline service over gRPC. Thread-safe.

        with PipelineClient() as client:
            client.connect(["127.0.0.1:9993"])
            response = client.predict({"x": array})

    Calls go to the endpoints in turn; one that cannot be reached, or whose calls fail, is asked
    last for a while. A call that no server has begun, since it cannot be reached or refuses the
    call, is sent to the next one, and to all again up to twice after pauses, which the servers'
    hints make longer, while the timeout allows it. Nothing that may have run is repeated.
    ``Endpoint`` has more of this: weights, backup requests, idempotent calls.

    All threaded clients of a process share one thread, which runs while any of them is
    connected and in use. After a fork the child must call ``connect`` itself: using the parent's
    connection raises ``NotConnected``, and calls in flight stay with the parent. Nothing is
    printed; problems of endpoints are in the log.

    Args:
        tls: encrypts connections; None for plain text.
        token: a key or token for a service with ``security``, or a function that returns the
            current one. The function is called for each call, on the caller's thread, so it should
            remember a token until shortly before it expires. Without TLS the token can be read on
            the network.

    Source: ``docs/compatibility.md`` (pipeline client).
    """

    def connect(self, endpoints: list[str]) -> None:
        """Set the endpoints; nothing is sent before the first call.

        A second ``connect`` replaces the endpoints; calls in flight to the former ones fail.

        Args:
            endpoints: ``host:port`` each; the host is a name or an address, IPv6 in brackets.

        Raises:
            TypeError: not a list of texts.
            ValueError: empty, an entry is not ``host:port``, or a header field cannot hold the
                token.
            OSError: a file of ``tls`` cannot be read.
        """
        channel = Channel(parse_endpoints(endpoints), self._tls, token=self._token)
        self._replace(RoutedCalls(channel, _STRATEGY))

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
        **options: Unpack[CallOptions],
    ) -> PredictFuture: ...

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
            fetch: must be a list; no other effect.
            asyn: return at once with a future; the result comes from its ``result()``.
            pack_tensor_format: send typed tensors instead of texts.
            use_tensor_bytes: with tensors, send each array as ``.npy`` bytes.
            profile: with texts, request the server's profile of this call.
            log_id: int64; None means the feed's ``logid``, or else 0.
            timeout: seconds for the whole call; None means no limit by the client.
            name: the service's name; every service accepts an empty one.
            method: the method's name; most services ignore it.

        Returns:
            The reply, also when its ``err_no`` is not 0 (see ``raise_for_error``).

        Raises:
            CallFailed: there was no reply; ``retryable``: whether a retry may succeed.
            NotConnected: before ``connect``, after ``close``, or in a forked child.
            TypeError: the feed is not a dict, or has a value that cannot be sent.
            ValueError: the log id is no int64, a list is ragged, or the timeout is not a positive
                number.
            TooLarge: the request is over 512 MiB.
        """
        calls, sent = self._request(
            feed_dict,
            fetch,
            timeout,
            pack_tensor_format=pack_tensor_format,
            use_tensor_bytes=use_tensor_bytes,
            profile=profile,
            log_id=log_id,
            name=name,
            method=method,
        )
        attempts = Attempts(_RETRIES, sent.deadline, idempotent=False)
        if asyn:
            future = PredictFuture(calls)
            future.begin(sent, attempts)
            return future
        response: pb.Response = calls.call(sent, attempts)
        return response

    def stream(
        self,
        feed_dict: dict[str, Any],
        *,
        name: str,
        timeout: float | None = None,
        log_id: int = 0,
    ) -> Messages[dict[str, NDArray[Any]]]:
        """Call a function or a graph whose answer comes in pieces, by ``ModelStreamInfer``.

            with client.stream({"word": "ab"}, name="spell") as pieces:
                for piece in pieces:
                    print(piece["text"][0])

        The pipeline protocol has no pieces. So the called function or graph must be a model of the
        Open Inference Protocol: docs/streams.md says when it is. One that answers at once has one
        piece.

        Args:
            feed_dict: the inputs by name; only read. Arrays are sent as they are; a text or a
                number is a tensor of the shape [1], a list of them one with as many elements.
            name: the model's name.
            timeout: seconds for the whole call; None means no limit by the client.
            log_id: the request's id in the server's log.

        Returns:
            An iterator of the pieces: arrays by output; texts are arrays of ``str``. The call
            begins at once. Closing the iterator, or dropping it, cancels the call, also on the
            server; a slow reader holds up its own generator only.

        Raises:
            CallFailed: raised by ``next()``: the server refused the call, or an error ended the
                answer; UNIMPLEMENTED: the server has no streams.
            NotConnected: before ``connect``, after ``close``, or in a forked child.
            TypeError: the feed is not a dict, or has a value that cannot be sent.
            ValueError: the timeout is not a positive number.
        """
        calls, request, deadline = self._stream_request(feed_dict, name, timeout, log_id)
        return calls.channel.stream(request, deadline=deadline, **BY_MODEL_STREAM)

    def close(self) -> None:
        """Disconnect; in-flight calls end with ``CallFailed``. Closing twice is allowed."""
        self._replace(None)

    def _replace(self, calls: RoutedCalls | None) -> None:
        former, self._calls = self._calls, calls
        if former is not None and former.channel.is_ours():
            former.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncPipelineClient(_Client[RoutedChannel]):
    """``PipelineClient`` for one event loop.

        async with AsyncPipelineClient() as client:
            await client.connect(["127.0.0.1:9993"])
            response = await client.predict({"x": array})

    Cancelling a task that awaits ``predict`` cancels the call on the server too. Use it only on the
    event loop that ran ``connect``.
    """

    async def connect(self, endpoints: list[str]) -> None:
        """Set the endpoints, as in ``PipelineClient.connect``, and bind the client to this loop."""
        channel = AsyncChannel(parse_endpoints(endpoints), self._tls, token=self._token)
        await self._replace(RoutedChannel(channel, _STRATEGY, _RETRIES, logs_rows=True))

    async def predict(
        self,
        feed_dict: dict[str, Any],
        fetch: list[str] | None = None,
        **options: Unpack[CallOptions],
    ) -> pb.Response:
        """Make one call; arguments, result and errors as in ``PipelineClient.predict``."""
        calls, sent = self._request(feed_dict, fetch, **options)
        response: pb.Response = await calls.send(sent)
        return response

    def stream(
        self,
        feed_dict: dict[str, Any],
        *,
        name: str,
        timeout: float | None = None,
        log_id: int = 0,
    ) -> AsyncMessages[dict[str, NDArray[Any]]]:
        """Call a function or a graph whose answer comes in pieces; as ``PipelineClient.stream``.

            async with client.stream({"word": "ab"}, name="spell") as pieces:
                async for piece in pieces:
                    print(piece["text"][0])

        Cancelling a task that waits for a piece cancels the call on the server too.
        """
        calls, request, deadline = self._stream_request(feed_dict, name, timeout, log_id)
        return calls.channel.stream(request, deadline=deadline, **BY_MODEL_STREAM)

    async def close(self) -> None:
        """Disconnect; in-flight calls end with ``CallFailed``. Closing twice is allowed."""
        await self._replace(None)

    async def _replace(self, calls: RoutedChannel | None) -> None:
        former, self._calls = self._calls, calls
        if former is not None and former.channel.is_ours():
            await former.channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
