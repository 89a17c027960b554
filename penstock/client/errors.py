"""Errors of calls that got no answer.

    PenstockError
    ├── NotConnected    the caller: no connection to use; call ``connect`` first
    └── CallFailed      depends on its status: the call itself failed

A reply with an ``err_no`` is not a failed call; ``raise_for_error`` raises its error.
"""

from __future__ import annotations

from typing import Self

from penstock.errors import PenstockError
from penstock.protocols.status import GrpcCode


class NotConnected(PenstockError):
    """The client has no connection.

    ``connect`` was not called, the client was closed, or it was connected in another process (a
    fork) or on another event loop.
    """

    code = "not_connected"


class CallFailed(PenstockError):
    """The call ended without a reply.

    Attributes:
        status: the gRPC status of the failure.
        retryable: whether the same call may succeed later, unchanged.
        sent: False if no server can have seen the request, so that a retry repeats nothing.
        retry_after: seconds after which the server, which has not begun the call, asks for it
            again; None if it does not.
    """

    code = "call_failed"

    def __init__(
        self,
        status: GrpcCode,
        text: str,
        *,
        retryable: bool = False,
        sent: bool = True,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(status, text)  # all arguments, so that it can be pickled
        self.status = status
        self.retryable = retryable
        self.sent = sent
        self.retry_after = retry_after

    def at(self, endpoint: str) -> Self:
        """Return the same failure with the endpoint in its text."""
        text = f"{endpoint}: {self.args[1]}"
        return type(self)(
            self.status,
            text,
            retryable=self.retryable,
            sent=self.sent,
            retry_after=self.retry_after,
        )

    def __str__(self) -> str:
        return f"{self.status.name}: {self.args[1]}"


def garbage(error: object) -> CallFailed:
    """The failure of a reply that is no message of the service: another server may do better."""
    return CallFailed(GrpcCode.INTERNAL, f"the answer cannot be read: {error}", retryable=True)
