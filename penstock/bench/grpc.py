"""gRPC calls on shared connections.

Each call has its own trace context and id: the pipeline protocol's ``logid``, or the Open Inference
Protocol's ``id``. Messages are encoded once, and the id, which may be at any position in a message,
is appended. Sources: the gRPC HTTP/2 protocol; the protobuf encoding.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import Final

from google.protobuf.message import DecodeError

from penstock.bench.generator import Attempt, Ended, Failure
from penstock.bench.results import TIMEOUT
from penstock.bench.target import Target
from penstock.client.call import Call, Outcome
from penstock.client.endpoint_channel import EndpointChannel
from penstock.client.endpoints import Endpoint
from penstock.client.errors import CallFailed
from penstock.client.tls import Security, Tls
from penstock.protocols import pb
from penstock.protocols.grpc import encode_message
from penstock.protocols.http2 import encode_block
from penstock.protocols.protobuf import varint
from penstock.protocols.status import GrpcCode

_LOG_ID: Final = b"\x30"  # the tag of field 6 of a pipeline's Request
_ID: Final = b"\x1a"  # the tag of field 3 of a ModelInferRequest
_ERR_NO: Final = (
    b"\x08"  # the tag of field 1 of a pipeline's Response, which is left out if it is 0
)
_CONTEXT_BYTES: Final = 55


class GrpcSender:
    """The connections to one service.

    Args:
        target: the service and its requests.
        timeout: seconds for a reply, including connecting; sent as the call's timeout.
        connections: number of connections.
        ended: called for every attempt.

    Raises:
        OSError: the file of certificates cannot be read.
    """

    def __init__(self, target: Target, timeout: float, connections: int, ended: Ended) -> None:
        self._target = target
        self._timeout = timeout
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        security = Security(Tls(ca_file=target.ca_file)) if target.tls else None
        endpoint = Endpoint(host=target.host, port=target.port)
        self._channels = [
            EndpointChannel(endpoint, self._loop, security) for _ in range(connections)
        ]
        fields = [(name.lower().encode(), value.encode()) for name, value in target.headers]
        fields.append((b"traceparent", bytes(_CONTEXT_BYTES)))
        self._head = encode_block(fields)[:-_CONTEXT_BYTES]
        self._run = os.urandom(8).hex().encode()
        self._number = 0
        self._sending = False

    def send(self, attempt: Attempt) -> None:
        """Make the next call."""
        number = self._number
        self._number = number + 1
        message = self._target.bodies[number % len(self._target.bodies)].content
        if self._target.calls == "pipeline":
            message += _LOG_ID + varint(number + 1)
        else:
            name = b"%b-%d" % (self._run, number)
            message = _ID + varint(len(name)) + name + message
        call = Call(
            encode_message(message),
            time.monotonic() + self._timeout,
            partial(self._outcome, attempt),
            self._target.path,
            b"%b00-%b%016x-%016x-00" % (self._head, self._run, number, number + 1),
        )
        self._sending = True
        self._channels[number % len(self._channels)].start(call)
        self._sending = False

    async def close(self) -> None:
        """Disconnect; in-flight calls end."""
        for channel in self._channels:
            channel.close()
        await asyncio.gather(*(channel.closed() for channel in self._channels))

    def _outcome(self, attempt: Attempt, outcome: Outcome) -> None:
        failure = self._failure(outcome)
        if self._sending:  # the call failed at once
            self._loop.call_soon(self._ended, attempt, failure)
        else:
            self._ended(attempt, failure)

    def _failure(self, outcome: Outcome) -> Failure | None:
        """Return the failure of a call; a pipeline's errors are replies. None for a good reply."""
        if isinstance(outcome, CallFailed):
            text = str(outcome.args[1])
            if outcome.status is GrpcCode.DEADLINE_EXCEEDED:
                return Failure(TIMEOUT, text)
            reached = outcome.status is not GrpcCode.UNAVAILABLE
            return Failure(f"gRPC {outcome.status.name}", text, reached)
        if self._target.calls == "pipeline" and outcome.startswith(_ERR_NO):
            try:
                reply = pb.Response.FromString(outcome)
            except DecodeError as error:
                return Failure("no reply", str(error))
            return Failure(f"err_no {reply.err_no}", reply.err_msg)
        return None
