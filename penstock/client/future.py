"""A call whose reply is fetched later."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from copy import copy

from penstock.client.channel import Call, Channel
from penstock.client.deadlines import time_left
from penstock.client.errors import CallFailed, NotConnected
from penstock.client.replies import decode_reply
from penstock.protocols import pb
from penstock.protocols.status import GrpcCode


class PredictFuture:
    """One call under way: what ``predict(..., asyn=True)`` returns. Any thread.

    It tries one endpoint after the other for as long as certainly none has seen the request.
    """

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
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._outcome: pb.Response | CallFailed | None = None
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
        if not self._ended.is_set() and self._process != os.getpid():
            raise NotConnected("the call belongs to the process that this one was forked from")
        if not self._ended.wait(timeout):
            raise TimeoutError(f"no reply within {timeout} s")
        outcome = self._outcome
        assert outcome is not None
        if isinstance(outcome, CallFailed):
            raise copy(outcome)  # every raise writes its traceback into the exception it raises
        return outcome

    def done(self) -> bool:
        """Whether ``result`` returns or raises without waiting."""
        return self._ended.is_set()

    def cancel(self) -> bool:
        """Give up; the server is told. False when the call had ended already."""
        if self._process != os.getpid():
            return False
        if not self._finish(CallFailed(GrpcCode.CANCELLED, "cancelled by the caller")):
            return False
        self._call.cancel()
        return True

    def _try_next(self) -> None:
        with self._lock:
            if self._outcome is not None:
                return
            self._call = call = self._untried.pop().start(
                self._request, timeout=time_left(self._deadline)
            )
        # Outside the lock: the answer may come within this very call.
        call.when_ended(self._heard)

    def _heard(self, outcome: bytes | CallFailed) -> None:
        try:
            if isinstance(outcome, bytes):
                self._finish(decode_reply(outcome))
            elif self._untried and not outcome.sent:
                self._try_next()
            else:
                self._finish(outcome)
        except CallFailed as error:
            self._finish(copy(error))  # the original's traceback would hold this future

    def _finish(self, outcome: pb.Response | CallFailed) -> bool:
        with self._lock:
            if self._outcome is not None:
                return False
            self._outcome = outcome
            self._request = b""  # a finished future is often kept; its request need not be
            self._untried.clear()
        self._ended.set()
        return True

    def __repr__(self) -> str:
        if self._outcome is None:
            return "<PredictFuture waiting>"
        if isinstance(self._outcome, CallFailed):
            return f"<PredictFuture failed: {self._outcome}>"
        return f"<PredictFuture err_no={self._outcome.err_no}>"
