"""One endpoint's line, threaded and async: the only module that knows the transport.

Bytes go in, bytes or ``CallFailed`` come out; no type of the transport passes. A connection is made
by the first call and made again after it broke. A compressed reply is refused, because its size is
unknown until it is unpacked. Proxy settings of the environment are not used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from penstock.client.endpoints import Endpoint
from penstock.client.errors import CallFailed
from penstock.client.packing import MAX_MESSAGE_BYTES
from penstock.client.tls import File, Tls
from penstock.protocols.status import GrpcCode

METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"

CONNECT_TIMEOUT_MS = 2000
"""How long one attempt to connect may take, as in the original's client configuration."""

_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A name with several addresses is several servers.
    ("grpc.service_config", '{"loadBalancingConfig":[{"round_robin":{}}]}'),
    ("grpc.compression_enabled_algorithms_bitset", 1),  # identity only
    ("grpc.enable_http_proxy", 0),
    # Else the back-off of a dead server would outlive the client that met it.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),  # it bounds the attempt, not the pause
    ("grpc.max_reconnect_backoff_ms", 5000),
]

# How the transport words a call that never left: it gives no other sign of it.
_NEVER_SENT = (
    "connections to all backends failing",
    "failed to connect to all addresses",
    "errors resolving",
    "DNS resolution failed",
)
_RETRYABLE = {GrpcCode.UNAVAILABLE, GrpcCode.DEADLINE_EXCEEDED, GrpcCode.ABORTED}
_PUSH_BACK = "grpc-retry-pushback-ms"

_CLOSED = "the client was closed"


class Call:
    """A call under way. Any thread."""

    def __init__(self, rpc: Any, endpoint: Endpoint) -> None:
        self._rpc = rpc
        self._endpoint = endpoint

    def when_ended(self, heard: Callable[[bytes | CallFailed], None]) -> None:
        """Have ``heard`` called once with the result, from whichever thread; at once if ended."""
        self._rpc.add_done_callback(lambda _: heard(self._outcome()))

    def cancel(self) -> None:
        """Tell the server that nobody waits any more; nothing happens if it has ended."""
        self._rpc.cancel()

    def _outcome(self) -> bytes | CallFailed:
        rpc = self._rpc
        if rpc.code() is not grpc.StatusCode.OK:
            return _failure(rpc, self._endpoint)
        reply = rpc.result()
        return reply if isinstance(reply, bytes) else _no_message(self._endpoint)


class Channel:
    """A line to one endpoint for threaded callers. Any thread."""

    def __init__(self, endpoint: Endpoint, tls: Tls | None) -> None:
        self._endpoint = endpoint
        self._channel = _open(grpc, endpoint, tls)
        self._inference = self._channel.unary_unary(METHOD)

    def call(self, request: bytes, *, timeout: float | None) -> bytes:
        """Make one call and wait for it, without the thread that ``start`` needs.

        Raises:
            CallFailed: no reply; CANCELLED when the channel is or was closed.
        """
        try:
            reply = self._inference(request, timeout=timeout)
        except grpc.RpcError as error:
            raise _failure(error, self._endpoint) from error
        except ValueError as error:  # how the transport says that it is closed
            raise CallFailed(GrpcCode.CANCELLED, _CLOSED, sent=False) from error
        if not isinstance(reply, bytes):
            raise _no_message(self._endpoint)
        return reply

    def start(self, request: bytes, *, timeout: float | None) -> Call:
        """Begin a call and return at once.

        Raises:
            CallFailed: CANCELLED; the channel is closed.
        """
        try:
            return Call(self._inference.future(request, timeout=timeout), self._endpoint)
        except ValueError as error:  # how the transport says that it is closed
            raise CallFailed(GrpcCode.CANCELLED, _CLOSED, sent=False) from error

    def close(self) -> None:
        """Disconnect; calls under way end with CANCELLED."""
        self._channel.close()


class AsyncChannel:
    """A line to one endpoint for the running event loop."""

    def __init__(self, endpoint: Endpoint, tls: Tls | None) -> None:
        self._endpoint = endpoint
        self._channel = _open(grpc.aio, endpoint, tls)
        self._inference = self._channel.unary_unary(METHOD)

    async def call(self, request: bytes, *, timeout: float | None) -> bytes:
        """Make one call. Cancelling the task cancels the call.

        Raises:
            CallFailed: no reply; CANCELLED when the channel was closed meanwhile.
        """
        try:
            rpc = self._inference(request, timeout=timeout)
        except grpc.aio.UsageError as error:  # how the transport says that it is closed
            raise CallFailed(GrpcCode.CANCELLED, _CLOSED, sent=False) from error
        try:
            reply = await rpc
        except grpc.aio.AioRpcError as error:
            raise _failure(error, self._endpoint) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Nobody cancelled the task: the transport says so when the channel is closed.
            raise CallFailed(GrpcCode.CANCELLED, _CLOSED) from error
        if not isinstance(reply, bytes):
            raise _no_message(self._endpoint)
        return reply

    async def close(self) -> None:
        """Disconnect; calls under way end with CANCELLED."""
        await self._channel.close()


def _open(library: Any, endpoint: Endpoint, tls: Tls | None) -> Any:
    """A channel of ``grpc`` or ``grpc.aio``, which agree on how to make one."""
    target = f"dns:///{endpoint}"
    if tls is None:
        return library.insecure_channel(target, _OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        _read(tls.ca_file), _read(tls.key_file), _read(tls.cert_file)
    )
    if tls.server_name is None:
        return library.secure_channel(target, credentials, _OPTIONS)
    named = [*_OPTIONS, ("grpc.ssl_target_name_override", tls.server_name)]
    return library.secure_channel(target, credentials, named)


def _read(file: File | None) -> bytes | None:
    return None if file is None else Path(file).read_bytes()


def _no_message(endpoint: Endpoint) -> CallFailed:
    return CallFailed(GrpcCode.INTERNAL, f"{endpoint}: OK without a message")


def _failure(ended: Any, endpoint: Endpoint) -> CallFailed:
    """What a call, or the exception about one, says of its end."""
    status = GrpcCode(ended.code().value[0])
    text = ended.details() or "no reason given"
    sent = not (status is GrpcCode.UNAVAILABLE and text.startswith(_NEVER_SENT))
    retryable = status in _RETRYABLE or _pushed_back(ended.trailing_metadata())
    return CallFailed(status, f"{endpoint}: {text}", retryable=retryable, sent=sent)


def _pushed_back(metadata: Iterable[Any] | None) -> bool:
    """Whether the server said after how long to come back; anything but digits says never."""
    for key, value in metadata or ():
        if key == _PUSH_BACK:
            return isinstance(value, str) and value.isascii() and value.isdigit()
    return False
