"""A call whose reply is fetched later."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from copy import copy

from penstock.client.answers import Outcome
from penstock.client.call import Call
from penstock.client.channel import Channel
from penstock.client.errors import CallFailed, NotConnected
from penstock.client.replies import decode_reply
from penstock.protocols import pb
from penstock.protocols.status import GrpcCode


class PredictFuture:
    """One call under way: what ``predict(..., asyn=True)`` returns. Any thread.

    It tries one endpoint after the other for as long as certainly none has seen the request.
    """

    __slots__ = (
        "__weakref__",
        "_call",
        "_channel",
        "_deadline",
        "_gate",
        "_lock",
        "_outcome",
        "_process",
        "_request",
        "_untried",
    )

    def __init__(self, channels: Sequence[Channel], request: bytes, deadline: float | None) -> None:
        """Start the call.

        Args:
            channels: at least one, in the order to try them.
            request: the message's bytes.
            deadline: monotonic seconds for all attempts together; None means no limit.

        Raises:
            CallFailed: the channels are closed.
        """
        self._process = os.getpid()
        self._deadline = deadline
        self._untried = list(reversed(channels))
        self._request = request
        self._lock = threading.RLock()  # a call may fail within its own start
        self._gate = threading.Lock()  # free as soon as there is an outcome
        self._gate.acquire()
        self._outcome: bytes | pb.Response | CallFailed | None = None
        self._channel: Channel
        self._call: Call
        self._try_next()

    def result(self, timeout: float | None = None) -> pb.Response:
        """Wait for the reply; a reply with an ``err_no`` is returned like any other.

        Args:
            timeout: seconds to wait here; the call itself goes on afterwards.

        Raises:
            TimeoutError: no reply yet.
            CallFailed: there will be none; ``retryable`` tells whether another call may do better.
            NotConnected: the call was started before this process was forked.
        """
        if self._outcome is None:
            self._wait(timeout)
        outcome = self._outcome
        if isinstance(outcome, bytes):
            # Here and not where it arrived, so that the thread of all calls is not held up.
            try:
                outcome = decode_reply(outcome)
            except CallFailed as error:
                outcome = copy(error)
            self._outcome = outcome
        if isinstance(outcome, CallFailed):
            raise copy(outcome)  # every raise writes its traceback into the exception it raises
        assert outcome is not None
        return outcome

    def done(self) -> bool:
        """Whether ``result`` returns or raises without waiting."""
        return self._outcome is not None

    def cancel(self) -> bool:
        """Give up; the server is told. False when the call had ended already."""
        if self._process != os.getpid():
            return False
        if not self._finish(CallFailed(GrpcCode.CANCELLED, "cancelled by the caller")):
            return False
        self._channel.cancel(self._call)
        return True

    def _wait(self, timeout: float | None) -> None:
        if self._process != os.getpid():
            raise NotConnected("the call belongs to the process that this one was forked from")
        if not self._gate.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            raise TimeoutError(f"no reply within {timeout} s")
        self._gate.release()  # the next one who waits passes too

    def _try_next(self) -> None:
        with self._lock:
            if self._outcome is not None:
                return
            self._channel = self._untried.pop()
            self._call = self._channel.start(self._request, self._heard, deadline=self._deadline)

    def _heard(self, outcome: Outcome) -> None:
        if isinstance(outcome, CallFailed) and self._untried and not outcome.sent:
            try:
                self._try_next()
            except CallFailed as error:
                self._finish(copy(error))  # the original's traceback would hold this future
        else:
            self._finish(outcome)

    def _finish(self, outcome: Outcome) -> bool:
        with self._lock:
            if self._outcome is not None:
                return False
            self._outcome = outcome
            self._request = b""  # a finished future is often kept; its request need not be
            self._untried.clear()
        self._gate.release()
        return True

    def __repr__(self) -> str:
        outcome = self._outcome
        if outcome is None:
            return "<PredictFuture waiting>"
        if isinstance(outcome, bytes):
            return f"<PredictFuture with {len(outcome)} bytes>"
        if isinstance(outcome, CallFailed):
            return f"<PredictFuture failed: {outcome}>"
        return f"<PredictFuture err_no={outcome.err_no}>"
