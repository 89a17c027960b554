"""All errors of Penstock, as one tree.

    PenstockError
    ├── StartupError            the operator must act: the service does not start
    │   ├── ConfigError         the configuration is wrong (lists every problem at once)
    │   ├── GraphError          the graph of ops is invalid
    │   ├── ModelError          a model folder or file cannot be opened as configured
    │   │   └── MissingDevice   the configured device does not exist
    │   ├── VersionsError       a change of a model's versions makes no sense
    │   └── HookError           an op's hook cannot be called
    ├── StoreError              operator: a model's files cannot be had; what serves goes on
    │   ├── StoreUnavailable    nobody: the store does not answer, a later try may succeed
    │   │   └── EmptyListing    operator: a store that had models lists none
    │   ├── VersionUnfinished   nobody: files are still being copied, a later try may succeed
    │   ├── ContentRefused      operator: digest, signature or names; the same content never passes
    │   └── CacheFull           operator: the cache's limit, or its disk, has no room
    ├── RequestError            one request ends with it; others are not affected
    │   ├── Undecodable         caller: the bytes are not the message
    │   │   ├── UnknownEncoding caller: the content coding is not supported
    │   │   └── UnknownMediaType caller: the route does not support the media type
    │   ├── TooLarge            caller: the message is over the limit
    │   ├── UnknownService      caller: another service's name
    │   ├── Unauthenticated     caller: no valid key, token or certificate
    │   ├── PermissionDenied    caller: known, but not allowed to do this
    │   ├── TooManyRequests     caller: beyond its own limit; others are not affected
    │   ├── PackageError        caller: decodable, but pairs or tensors are invalid
    │   ├── InputMismatch       caller: names, types or shapes do not match the op
    │   │   └── InvalidInput    caller: the types of a typed function do not match
    │   ├── WrongType           op author: a hook returned a value of the wrong type
    │   ├── NotProvided         op author: the op does not implement what was needed
    │   ├── ServiceBusy         nobody: at capacity, a later retry may succeed
    │   ├── ServiceClosed       nobody: draining or stopped, retry elsewhere
    │   │   └── NoWorker        operator: no external worker is connected
    │   ├── DeadlineExceeded    nobody: the request's deadline passed
    │   ├── OpTimeout           op author: one ``process`` call took too long
    │   ├── InferenceFailed     op author: ``process`` returned no valid result
    │   │   ├── WorkerDied      op author: the worker process died with the batch
    │   │   │   └── WorkerBrokeProtocol   author of an external worker
    │   │   ├── NoProcess       op author: all worker processes die at the start
    │   │   ├── KillsWorkers    op author: workers die of this request; it is not run
    │   │   ├── Unreachable     operator: the server that an op calls did not answer
    │   │   └── ValueLost       operator: the external store has lost a value between two ops
    │   ├── HookFailed          op author: a hook raised
    │   │   └── WrongCount      op author: a batch of n requests got another number of results
    │   ├── HttpError           the op itself: an error with its own HTTP status
    │   ├── NumberedError       the op itself: an error with its own number
    │   │   ├── DeclaredError   raised CustomException, or process returned a code
    │   │   └── ProductError    a business error
    │   └── Cancelled           the caller disconnected; no answer is sent
    └── InternalError           us: a bug, please report it

The word before each description says who must act to prevent the error.

Errors of requests are passed as values (in an ``Outcome``); they are raised only inside the hooks
and decoders that create them. Their numbers and statuses are in one place,
``protocols/status.py``, and not here.
"""

from __future__ import annotations

from http import HTTPStatus
from operator import index
from typing import Any, ClassVar, Final, NamedTuple, Self

INT32: Final = range(-(2**31), 2**31)
"""The values of ``err_no`` in messages."""

ERROR_STATUSES: Final = range(400, 600)
"""The HTTP statuses of errors."""


class PenstockError(Exception):
    """Root of the tree. ``str(error)`` may be shown to those who must act."""

    code: ClassVar[str] = "error"


class InternalError(PenstockError):
    """A bug of Penstock; please report it."""

    code = "internal"


class StartupError(PenstockError):
    """The service cannot start."""

    code = "startup"


class ConfigError(StartupError):
    """The configuration is invalid. ``problems`` lists all problems."""

    code = "config"

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class GraphError(StartupError):
    """The ops do not form a valid graph."""

    code = "graph"


class ModelError(StartupError):
    """A model cannot be opened as configured."""

    code = "model"


class MissingDevice(ModelError):
    """The configured device does not exist."""


class VersionsError(StartupError, ValueError):
    """Versions of a model, labels and weights do not fit together; nothing has changed."""

    code = "versions"


class RolloutRuns(VersionsError):
    """A change that has to wait for the end of a rollout; nothing has changed."""

    code = "rollout"


class HookError(StartupError):
    """A hook's signature fits no generation of the API."""

    code = "hook"


class StoreError(PenstockError):
    """The files of a model cannot be had from a repository. What serves is not affected."""

    code = "store"


class StoreUnavailable(StoreError):
    """The store does not answer, or refuses to: an outage, or wrong credentials."""

    code = "store_unavailable"


class EmptyListing(StoreUnavailable):
    """A store that had files lists none. That is taken for an outage, not for a deletion."""

    code = "store_empty"


class VersionUnfinished(StoreError):
    """Files of a version are missing, or still change."""

    code = "version_unfinished"


class ContentRefused(StoreError):
    """The files of a version are refused: a digest, the signature, or a name is wrong.

    Attributes:
        fingerprint: of the files as the store lists them (``repository.manifest``): the same files
            are refused again.
    """

    code = "content_refused"

    def __init__(self, text: str, fingerprint: str = "") -> None:
        self.fingerprint = fingerprint
        super().__init__(text)


class CacheFull(StoreError):
    """The cache has no room: everything in it is in use, or the disk is full."""

    code = "cache_full"


class Raised(NamedTuple):
    """The exception of user code behind an error, for operators; callers do not see it.

    Attributes:
        op: the op's name in the log; empty for the hooks at the ends of a graph.
        kind: the class's name, with its module unless it is built in.
        traceback: as Python prints it, its end if it is long.
    """

    op: str
    kind: str
    traceback: str


class RequestError(PenstockError):
    """Ends one request. The caller may read ``str(error)``."""

    code = "request"

    raised: Raised | None = None
    """The exception of user code that caused it, if one did."""

    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Fields of the answer: of its head over HTTP, of its trailing metadata over gRPC. Names are in
    lower case."""
    retry_after: float | None = None
    """Seconds after which a retry may succeed; None if the error does not say."""

    def with_text(self, text: str) -> Self:
        """A copy of the error with another text."""
        twin = Exception.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.args = (text,)
        return twin

    def forget_origin(self) -> None:
        """Drop the traceback and the exceptions that led to this one.

        Their frames hold the request, and in their variables often this error: a cycle, which would
        keep both in memory until a garbage collection.
        """
        self.__traceback__ = self.__cause__ = self.__context__ = None


class Undecodable(RequestError):
    """The bytes are not a valid message."""

    code = "undecodable"


class UnknownEncoding(Undecodable):
    """The body has a content coding that we do not support, or several."""

    code = "unknown_encoding"


class UnknownMediaType(Undecodable):
    """The body's media type is not accepted by the route."""

    code = "unknown_media_type"


class TooLarge(RequestError):
    """The message, compressed or not, is over ``max_message_bytes``."""

    code = "too_large"


class UnknownService(RequestError):
    """The request names another service."""

    code = "unknown_service"


class Unauthenticated(RequestError):
    """The caller has not shown who it is. A retry needs another key, token or certificate.

    Args:
        text: what was missing or wrong; never the secret.
        challenge: the value of the field ``www-authenticate``.
    """

    code = "unauthorized"

    def __init__(self, text: str, challenge: str = 'Bearer realm="penstock"') -> None:
        super().__init__(text)
        self.headers = ((b"www-authenticate", challenge.encode("latin-1")),)


class PermissionDenied(RequestError):
    """The caller is known, and may not do this."""

    code = "forbidden"


class TooManyRequests(RequestError):
    """The caller is beyond its own limit. Other callers are not affected.

    Args:
        text: which limit.
        retry_after: seconds after which a retry may succeed; None if unknown.
    """

    code = "too_many_requests"

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class PackageError(RequestError):
    """The request decodes, but its pairs or tensors are invalid; or a reply cannot be packed."""

    code = "package"


class InputMismatch(RequestError):
    """Names, dtypes, ranks or fixed dimensions do not match the op's model."""

    code = "input_mismatch"


class InvalidInput(InputMismatch):
    """A request does not match the types of a function.

    Args:
        details: the invalid values, each a dict with ``loc`` (a list of names and indexes),
            ``msg`` and ``type``.
    """

    code = "invalid_input"

    def __init__(self, details: list[dict[str, Any]]) -> None:
        self.details = details
        texts = []
        for each in details[:3]:
            place = ".".join(map(str, each["loc"][1:]))
            texts.append(f"{place}: {each['msg']}" if place else each["msg"])
        more = f"; and {len(details) - 3} more" if len(details) > 3 else ""
        super().__init__("; ".join(texts) + more)

    def __reduce__(self) -> tuple[type[Self], tuple[list[dict[str, Any]]]]:
        return type(self), (self.details,)


class WrongType(RequestError):
    """A hook returned, or a model was given, a value of the wrong type."""

    code = "wrong_type"


class NotProvided(RequestError):
    """The op does not implement a hook that this graph needs (such as joining several inputs)."""

    code = "not_provided"


class ServiceBusy(RequestError):
    """At capacity. A later retry may succeed."""

    code = "busy"
    retry_after: float | None = 1.0

    has_begun = False
    """Whether a part of the request may have run, so that a retry may run it twice."""
    of_queue = False
    """Whether the queue of an op had no place for the request, or kept it too long."""

    @classmethod
    def in_queue(cls, text: str) -> Self:
        """One of an op's queue: this op has not run."""
        error = cls(text)
        error.of_queue = True
        return error

    def after_begin(self) -> None:
        """Note that a part of the request may have run: callers are not told when to repeat it."""
        self.has_begun, self.retry_after = True, None


class ServiceClosed(RequestError):
    """Draining or stopped. A retry elsewhere may succeed."""

    code = "closed"

    admitted = False
    """Whether it was admitted before, so that it may have run."""


class NoWorker(ServiceClosed):
    """No external worker of the op is connected, and none has been for a while."""

    code = "no_worker"


class DeadlineExceeded(RequestError):
    """The request's deadline has passed.

    ``by_client``: whether it was the caller's own deadline; otherwise it was the server's.
    """

    code = "deadline"

    def __init__(self, text: str, *, by_client: bool = False) -> None:
        super().__init__(text)
        self.by_client = by_client

    def with_text(self, text: str) -> Self:
        """A copy with another text, and ``by_client`` False: a further caller does not know it."""
        twin = super().with_text(text)
        twin.by_client = False
        return twin


class OpTimeout(RequestError):
    """A ``process`` call exceeded the op's ``timeout`` on its last attempt."""

    code = "op_timeout"


class InferenceFailed(RequestError):
    """``process`` ended without a valid result, or its worker died.

    A retry hardly helps, except after the errors of derived classes that say so.
    """

    code = "inference"


class WorkerDied(InferenceFailed):
    """The worker process ended while it ran the request's batch, and not because we ended it.

    A retry may help: some other request of the batch may have been the cause.
    """

    code = "worker_died"


class WorkerBrokeProtocol(WorkerDied):
    """An external worker broke its protocol while it had the request's batch.

    It was disconnected. The cause is the worker, not the request: another worker may answer it.
    """

    code = "worker_protocol"


class NoProcess(InferenceFailed):
    """The op has no worker process: all die at the start. A later start may succeed."""

    code = "no_process"


class KillsWorkers(InferenceFailed):
    """Two workers have died while running these inputs. A retry does not help."""

    code = "kills_workers"


class Unreachable(InferenceFailed):
    """No server that the op calls could be reached, or the connection broke before the answer.

    A later retry may succeed; the call may have run.
    """

    code = "unreachable"


class ValueLost(InferenceFailed):
    """A value between two ops cannot be had from the external store.

    A retry may succeed: the ops before it run again.
    """

    code = "value_lost"


class HookFailed(RequestError):
    """A hook raised an exception of the user's."""

    code = "hook_failed"


class WrongCount(HookFailed):
    """A function of batches returned another number of results than its batch has requests.

    No request causes it: the whole batch fails, and is not run again in halves.
    """

    code = "wrong_count"


class HttpError(RequestError):
    """An error with an HTTP status of the op's choice, such as ``HttpError(404, "no such item")``.

    Args:
        status: 400 to 599. Other protocols have the status of theirs that is nearest.
        text: for callers.
        kind: the member ``error`` of the answer, for programs; by default of the status, such as
            ``not_found``.

    Raises:
        TypeError: the status is not an integer.
        ValueError: it is not that of an error.
    """

    code = "http"

    def __init__(self, status: int, text: str = "", kind: str | None = None) -> None:
        self.status = index(status)
        if self.status not in ERROR_STATUSES:
            raise ValueError(f"the status of an error is 400 to 599, not {status}")
        self.kind = kind or _name_of(self.status)
        super().__init__(text or self.kind.replace("_", " "))

    def __reduce__(self) -> tuple[type[Self], tuple[int, str, str]]:
        return type(self), (self.status, str(self), self.kind)


def _name_of(status: int) -> str:
    """The name of a status, such as ``not_found``."""
    try:
        return HTTPStatus(status).name.lower()
    except ValueError:
        return f"http_{status}"


class NumberedError(RequestError):
    """An error with a number of the op.

    Raises:
        TypeError: the number is not an integer.
        ValueError: the number is 0, or not an int32.
    """

    code = "numbered"

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = index(number)
        if self.number == 0 or self.number not in INT32:
            raise ValueError(f"an error's number is an int32 other than 0, not {number}")

    def __reduce__(self) -> tuple[type[Self], tuple[int, str]]:
        return type(self), (self.number, str(self))


class DeclaredError(NumberedError):
    """An op raised ``CustomException(..., isSendToUser=True)``; ``number`` is the op's choice."""

    code = "declared"


class ProductError(NumberedError):
    """A business error: a hook returned ``prod_errcode``; ``number`` is the product's own."""

    code = "product"


class Cancelled(RequestError):
    """The caller disconnected. The request is recorded, and not answered."""

    code = "cancelled"


def text_of(error: BaseException) -> str:
    """The text of an exception, or its class's name if the ``__str__`` of a user's class raises."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - only the user's __str__ can raise
        return type(error).__name__
