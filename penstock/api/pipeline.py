"""The pipeline protocol, independent of the transport: from a decoded call to a reply.

Both ports use it, so that they agree. It finds the graph that a call names, submits the call, and
decides which errors are replies (``err_no``) and which fail the call itself; the transports only
translate. Source: ``docs/compatibility.md``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container, Iterable
from concurrent.futures import Executor
from typing import Any, Protocol, TypeAlias

from penstock.api.graph_call import GraphCall, as_request_error, is_large
from penstock.api.threads import run_aside
from penstock.engine.engine import Engine
from penstock.engine.submission import Submission
from penstock.errors import (
    DeadlineExceeded,
    PackageError,
    RequestError,
    ServiceBusy,
    ServiceClosed,
)
from penstock.ops.ends import Ends, error_reply
from penstock.protocols import paddle, pb
from penstock.request import Feed, Outcome

_log = logging.getLogger(__name__)

_LATE = "the request's deadline passed"
_WRONG_NAME = "Failed to inference: Service name error."

Reply: TypeAlias = paddle.Reply | pb.Response
Answer: TypeAlias = Reply | bytes
"""A reply, or its encoded bytes."""


class Port(Protocol):
    """A transport, as the protocol sees it. Called on the engine's loop."""

    def write(self, names: Iterable[Any], texts: Iterable[Any], /) -> bytes | None:
        """Encode the reply to a result of texts only, in the port's format; None for any other
        result.

        Tried first, because an intermediate Reply would take as long as the encoding.
        """

    def encode(self, reply: Reply, /) -> bytes:
        """Encode any reply in the port's format. Called from any thread."""

    def reserve(self, context: Any, size: int, /) -> None:
        """Reserve bytes for a reply; raises ServiceBusy, or PackageError."""

    def done(self, context: Any, answer: Answer | None, error: RequestError | None, /) -> None:
        """End the call with this context, with an answer or an error; the other is None."""


class _Profiled:
    """A port that adds the profile of the call to its replies, as a further pair; see ``Port``.

    Args:
        port: the wrapped port.
        profile: returns the profile of a call; empty for none.
        context: the port's object for the call.
    """

    def __init__(self, port: Port, profile: Callable[[Any], str], context: Any) -> None:
        self._port = port
        self._profile = profile
        self._context = context
        self.reserve = port.reserve

    def write(self, names: Iterable[Any], texts: Iterable[Any], /) -> None:
        """None: the pair is always added."""

    def encode(self, reply: Reply, /) -> bytes:
        """Encode with the pair, of the current profile."""
        text = self._profile(self._context)
        if text:
            reply.key.append(paddle.PROFILE_KEY)
            reply.value.append(text)
        return self._port.encode(reply)

    def done(self, context: Any, answer: Answer | None, error: RequestError | None, /) -> None:
        if answer is not None and not isinstance(answer, bytes):
            answer = encoded(self.encode, answer)
        self._port.done(context, answer, error)


class PipelineProtocol:
    """The pipeline protocol of one engine. Belongs to the engine's loop.

    Args:
        engine: runs requests; each of its graphs has both ends.
        strict_status: a busy engine fails the call (429, RESOURCE_EXHAUSTED) instead of answering
            3004.
        pool: runs user code at the ends; None if there is none.
        writers: encodes large replies; None for the loop's default threads.
        profile: returns the profile of a call, by its port's context, for callers that request it.

    Attributes:
        names: names of the current services.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        strict_status: bool = False,
        pool: Executor | None = None,
        writers: Executor | None = None,
        profile: Callable[[Any], str] | None = None,
    ) -> None:
        self._engine = engine
        self._profile = profile
        self._strict = strict_status
        self._pool = pool
        self.threads = writers
        self._loop = asyncio.get_running_loop()
        self.names: Container[str] = engine.names

    def own_fields(self, name: str) -> Container[str]:
        """Names of the fields that a service has added to its requests; see ``OwnFields``."""
        graph = self._engine.graph(name)
        return () if graph is None or graph.ends is None else graph.ends.own_fields

    def start(
        self,
        call: paddle.Call,
        client_timeout: float | None,
        port: Port,
        context: Any,
    ) -> Callable[[], object] | None:
        """Begin one call; the port's ``done`` is called, now or later.

        Args:
            call: the decoded call.
            client_timeout: the caller's timeout in seconds, from now.
            port: its ``done`` is called exactly once with ``context`` and an answer, or the error
                that ends the call itself: DeadlineExceeded (the caller's own limit passed; the
                server's own is an answer), ServiceClosed (draining), ServiceBusy (at capacity,
                with ``strict_status``). Not called after the cancellation.
            context: passed to ``done``.

        Returns:
            a function that cancels the call; None if ``done`` was already called.
        """
        graph = self._engine.choose(call.name, None, context, call.logid)
        if graph is None:
            port.done(context, error_reply(self._engine.no_graph(call.name, _WRONG_NAME)), None)
            return None
        ends = graph.ends
        assert ends is not None, "the service builds its graphs with both ends"
        if self._profile is not None and paddle.wants_profile(call):
            port = _Profiled(port, self._profile, context)
        feed = call.feed
        submission = _PipelineCall(graph, feed or {}, client_timeout, call.logid, context)
        submission.call = context
        submission.protocol = self
        submission.port = port
        submission.ends = ends
        submission.typed = bool(call.tensors)
        submission.threads = self.threads
        submission.aside = None
        if ends.blocking_unpack:
            submission.aside = self._loop.create_task(submission.unpack_in_pool(call))
            return submission.cancel
        if feed is None:
            submission.feed, _, error = ends.unpack(call)
            if error is not None:
                submission.refuse(error)
                return None if submission.aside is None else submission.cancel
        submission.start(_PipelineCall.answered)
        return None if submission.over and submission.aside is None else submission.cancel

    def prepare(self, call: paddle.Call) -> None:
        """Make a large call's feed in any thread, unless user code makes it."""
        graph = self._engine.graph(call.name)
        if graph is not None and graph.ends is not None and not graph.ends.blocking_unpack:
            paddle.prepare(call)

    def as_reply(self, error: RequestError) -> Reply | None:
        """The error's reply; None if the error fails the call itself."""
        error.forget_origin()
        if isinstance(error, ServiceBusy) and not self._strict:
            return error_reply(error)
        return None

    def ends_the_call(self, submission: Submission, error: RequestError) -> bool:
        """Whether an error fails the call, instead of being its reply."""
        fails = (ServiceClosed, ServiceBusy) if self._strict else ServiceClosed
        if submission.refused and isinstance(error, fails):
            return True
        return isinstance(error, DeadlineExceeded) and error.by_client

    async def until(
        self, submission: Submission, hook: str, function: Callable[..., Any], *args: Any
    ) -> Any:
        """Run user code in a thread, and wait for it until the deadline.

        Raises:
            DeadlineExceeded: it did not return in time.
        """
        try:
            async with asyncio.timeout(submission.deadline - time.monotonic()):
                return await self._loop.run_in_executor(self._pool, function, *args)
        except TimeoutError:
            if not submission.deadline_by_client:
                _log.warning("%s: %s while it ran (log_id=%s)", hook, _LATE, submission.log_id)
            raise DeadlineExceeded(_LATE, by_client=submission.deadline_by_client) from None


class _PipelineCall(GraphCall):
    """One call of the protocol.

    Attributes:
        protocol: its protocol.
        port: its port; ``context`` is the port's object for the call.
        ends: the ends of its graph.
        typed: whether the call had tensors.
    """

    __slots__ = ("ends", "port", "protocol", "typed")

    protocol: PipelineProtocol
    port: Port
    ends: Ends
    typed: bool
    as_text = True

    async def unpack_in_pool(self, call: paddle.Call) -> None:
        """Run the user's ``unpack_request_package``, and submit the request."""
        hook = "unpack_request_package"
        try:
            self.feed, self.log_id, error = await self.protocol.until(
                self, hook, self.ends.unpack, call
            )
        except DeadlineExceeded as late:
            error = late
        except Exception as failure:  # noqa: BLE001 - our bug
            self.fail(as_request_error(failure))
            self.graph.engine.cancel(self)
            return
        self.aside = None
        if error is None:
            self.start(_PipelineCall.answered)
        else:
            self.refuse(error)

    def take(self, size: int) -> None:
        """See ``GraphCall``."""
        self.port.reserve(self.context, size)

    def whole(self, outcome: Outcome) -> Outcome:
        """See ``Submission``: the pieces are one result."""
        if outcome.error is not None:
            return outcome
        try:
            return Outcome(paddle.join(self.gathered.pieces))
        except RequestError as error:
            return Outcome(None, error)

    def refuse(self, error: RequestError) -> None:
        """Answer with an error before it is submitted, and end it."""
        self.answered(Outcome(None, error))
        self.graph.engine.cancel(self)

    def answered(self, outcome: Outcome) -> None:
        """Process the engine's outcome, or its refusal."""
        error = outcome.error
        if error is not None:
            if self.protocol.ends_the_call(self, error):
                self.port.done(self.context, None, error)
                return
        elif not self.ends.blocking_pack:
            value = outcome.value or {}
            try:
                written = self.port.write(value, value.values())
            except Exception:  # noqa: BLE001 - an op's own kind of dict: checked below
                written = None
            if written is not None:
                self.port.done(self.context, written, None)
                return
            if type(value) is dict and is_large(value, as_text=True):
                self.reply_aside(value)
                return
        if self.ends.blocking_pack:
            self.reply_with(asyncio.ensure_future(self.pack_in_pool(outcome)))
            return
        # The default packing, which does not use ids.
        reply = self.ends.pack(*self.facts(outcome))
        self.port.done(self.context, reply, None)

    async def pack_in_pool(self, outcome: Outcome) -> Answer:
        """Run the user's ``pack_response_package``.

        Raises:
            DeadlineExceeded: the caller's own deadline has passed.
        """
        protocol = self.protocol
        try:
            reply: Reply = await protocol.until(
                self, "pack_response_package", self.ends.pack, *self.facts(outcome)
            )
        except DeadlineExceeded as late:
            if late.by_client:
                raise
            return error_reply(late)
        return await run_aside(protocol.threads, encoded, self.port.encode, reply)

    def facts(self, outcome: Outcome) -> tuple[Outcome, int, int, bool]:
        """The arguments of ``Ends.pack``."""
        return outcome, self.data_id, self.log_id, self.typed

    def reserve(self, value: Feed) -> None:
        """See ``GraphCall``; this is an estimate of the default reply, and of its encoded form.

        Raises:
            ServiceBusy: they do not fit now.
            PackageError: they will never fit.
        """
        try:
            self.port.reserve(self.context, 2 * self.ends.reply_size(value, self.typed))
        except RequestError as error:
            _log.warning("a reply is not written (log_id=%s): %s", self.log_id, error)
            raise

    def encode(self, value: Feed) -> bytes:
        """The reply in the port's format."""
        return encoded(self.port.encode, self.ends.pack(*self.facts(Outcome(value))))

    def send(self, reply: Answer) -> None:
        self.port.done(self.context, reply, None)

    def fail(self, error: RequestError) -> None:
        """End the call with an error, or with the reply that has it."""
        if isinstance(error, PackageError):
            self.port.done(self.context, error_reply(error), None)
        else:
            self.port.done(self.context, None, error)


def encoded(encode: Callable[[Reply], bytes], reply: Reply) -> bytes:
    """A reply in a port's format; or an error reply, if it cannot be encoded."""
    try:
        return encode(reply)
    except Exception as error:  # noqa: BLE001 - ops and hooks may put anything into it
        return encode(error_reply(as_request_error(error)))
