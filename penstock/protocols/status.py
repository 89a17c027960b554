"""The one table of error numbers and statuses, by error class.

Servers read the table forwards (error class to numbers), the client backwards (``err_no`` to error
class). Sources: ``docs/compatibility.md`` (error codes), the gRPC status codes, RFC 9110, and
``errno.proto`` of brpc.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cache
from math import ceil

from penstock import errors
from penstock.errors import RequestError
from penstock.protocols.heads import Headers


class CustomExceptionCode(Enum):
    """The error numbers that existing clients test. Names and numbers are wire format."""

    OK = 0
    PRODUCT_ERROR = 50
    NOT_IMPLEMENTED = 3000
    CLOSED_ERROR = 3001
    NO_SERVICE = 3002
    INIT_ERROR = 3003
    SERVICE_BUSY = 3004
    CONF_ERROR = 4000
    INPUT_PARAMS_ERROR = 5000
    TIMEOUT = 6000
    TYPE_ERROR = 7000
    RPC_PACKAGE_ERROR = 8000
    CLIENT_ERROR = 9000
    UNKNOW = 10000


class GrpcCode(IntEnum):
    """gRPC status codes (the gRPC HTTP/2 protocol's ``grpc-status``)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class BrpcCode(IntEnum):
    """The error codes of brpc that we send or recognise. After ELIMIT, ELOGOFF and EOVERCROWDED
    brpc's clients call another server.
    """

    ENOSERVICE = 1001
    ENOMETHOD = 1002
    EREQUEST = 1003
    ERPCAUTH = 1004
    ERPCTIMEDOUT = 1008
    EOVERCROWDED = 1011
    EINTERNAL = 2001
    ERESPONSE = 2002
    ELOGOFF = 2003
    ELIMIT = 2004


@dataclass(frozen=True, slots=True)
class Status:
    """The numbers of one class of error in each protocol.

    Attributes:
        err_no: the number on the Paddle routes.
        http: the HTTP status on other routes, and on the Paddle routes for transport failures.
        grpc: the same for gRPC.
        transport: whether the Paddle routes fail the call instead of answering with ``err_no``.
        retryable: whether the same request may succeed later, unchanged.
        brpc: the error code of baidu_std; None for that of ``BRPC_OF_GRPC``.
    """

    err_no: CustomExceptionCode
    http: int
    grpc: GrpcCode
    transport: bool = False
    retryable: bool = False
    brpc: BrpcCode | None = None


_Code = CustomExceptionCode

STATUS: dict[type[RequestError], Status] = {
    errors.Undecodable: Status(
        _Code.RPC_PACKAGE_ERROR, 400, GrpcCode.INVALID_ARGUMENT, transport=True
    ),
    errors.UnknownEncoding: Status(
        _Code.RPC_PACKAGE_ERROR,
        415,
        GrpcCode.UNIMPLEMENTED,
        transport=True,
        brpc=BrpcCode.EREQUEST,
    ),
    errors.UnknownMediaType: Status(
        _Code.RPC_PACKAGE_ERROR, 415, GrpcCode.INVALID_ARGUMENT, transport=True
    ),
    errors.TooLarge: Status(
        _Code.RPC_PACKAGE_ERROR,
        413,
        GrpcCode.RESOURCE_EXHAUSTED,
        transport=True,
        brpc=BrpcCode.EREQUEST,
    ),
    errors.UnknownService: Status(_Code.NO_SERVICE, 404, GrpcCode.NOT_FOUND),
    errors.Unauthenticated: Status(
        _Code.CLIENT_ERROR, 401, GrpcCode.UNAUTHENTICATED, transport=True
    ),
    errors.PermissionDenied: Status(
        _Code.CLIENT_ERROR, 403, GrpcCode.PERMISSION_DENIED, transport=True
    ),
    errors.TooManyRequests: Status(
        _Code.SERVICE_BUSY, 429, GrpcCode.RESOURCE_EXHAUSTED, transport=True, retryable=True
    ),
    errors.PackageError: Status(_Code.RPC_PACKAGE_ERROR, 400, GrpcCode.INVALID_ARGUMENT),
    errors.InputMismatch: Status(_Code.INPUT_PARAMS_ERROR, 400, GrpcCode.INVALID_ARGUMENT),
    errors.InvalidInput: Status(_Code.INPUT_PARAMS_ERROR, 422, GrpcCode.INVALID_ARGUMENT),
    errors.WrongType: Status(_Code.TYPE_ERROR, 500, GrpcCode.INTERNAL),
    errors.NotProvided: Status(
        _Code.NOT_IMPLEMENTED, 500, GrpcCode.UNIMPLEMENTED, brpc=BrpcCode.EINTERNAL
    ),
    errors.ServiceBusy: Status(
        _Code.SERVICE_BUSY, 429, GrpcCode.RESOURCE_EXHAUSTED, retryable=True
    ),
    errors.ServiceClosed: Status(_Code.CLOSED_ERROR, 503, GrpcCode.UNAVAILABLE, retryable=True),
    errors.DeadlineExceeded: Status(_Code.TIMEOUT, 504, GrpcCode.DEADLINE_EXCEEDED, retryable=True),
    errors.OpTimeout: Status(_Code.TIMEOUT, 504, GrpcCode.DEADLINE_EXCEEDED, retryable=True),
    # Most often the library refuses the input's values: a retry would fail as well.
    errors.InferenceFailed: Status(_Code.CLIENT_ERROR, 500, GrpcCode.INTERNAL),
    **dict.fromkeys(
        (errors.WorkerDied, errors.NoProcess, errors.Unreachable, errors.ValueLost),
        Status(
            _Code.CLIENT_ERROR, 503, GrpcCode.UNAVAILABLE, retryable=True, brpc=BrpcCode.EINTERNAL
        ),
    ),
    errors.HookFailed: Status(_Code.UNKNOW, 500, GrpcCode.INTERNAL),
    errors.DeclaredError: Status(_Code.UNKNOW, 500, GrpcCode.INTERNAL),
    errors.ProductError: Status(_Code.PRODUCT_ERROR, 400, GrpcCode.FAILED_PRECONDITION),
    errors.Cancelled: Status(_Code.CLOSED_ERROR, 408, GrpcCode.CANCELLED, transport=True),
}

INTERNAL = Status(_Code.UNKNOW, 500, GrpcCode.INTERNAL)
"""The row of a RequestError without one of its own."""

GRPC_OF_HTTP: dict[int, GrpcCode] = {
    400: GrpcCode.INVALID_ARGUMENT,
    401: GrpcCode.UNAUTHENTICATED,
    403: GrpcCode.PERMISSION_DENIED,
    404: GrpcCode.NOT_FOUND,
    405: GrpcCode.UNIMPLEMENTED,
    408: GrpcCode.CANCELLED,
    409: GrpcCode.ABORTED,
    412: GrpcCode.FAILED_PRECONDITION,
    413: GrpcCode.RESOURCE_EXHAUSTED,
    422: GrpcCode.INVALID_ARGUMENT,
    429: GrpcCode.RESOURCE_EXHAUSTED,
    500: GrpcCode.INTERNAL,
    501: GrpcCode.UNIMPLEMENTED,
    503: GrpcCode.UNAVAILABLE,
    504: GrpcCode.DEADLINE_EXCEEDED,
}

BRPC_OF_GRPC: dict[GrpcCode, BrpcCode] = {
    GrpcCode.INVALID_ARGUMENT: BrpcCode.EREQUEST,
    GrpcCode.OUT_OF_RANGE: BrpcCode.EREQUEST,
    GrpcCode.FAILED_PRECONDITION: BrpcCode.EREQUEST,
    GrpcCode.NOT_FOUND: BrpcCode.ENOSERVICE,
    GrpcCode.UNIMPLEMENTED: BrpcCode.ENOMETHOD,
    GrpcCode.DEADLINE_EXCEEDED: BrpcCode.ERPCTIMEDOUT,
    GrpcCode.CANCELLED: BrpcCode.ERPCTIMEDOUT,
    GrpcCode.RESOURCE_EXHAUSTED: BrpcCode.ELIMIT,
    GrpcCode.UNAVAILABLE: BrpcCode.ELOGOFF,
    GrpcCode.PERMISSION_DENIED: BrpcCode.ERPCAUTH,
    GrpcCode.UNAUTHENTICATED: BrpcCode.ERPCAUTH,
}
"""brpc's error codes by gRPC status; EINTERNAL for any other."""

GRPC_OF_BRPC: dict[int, GrpcCode] = {
    BrpcCode.ENOSERVICE: GrpcCode.UNIMPLEMENTED,
    BrpcCode.ENOMETHOD: GrpcCode.UNIMPLEMENTED,
    BrpcCode.EREQUEST: GrpcCode.INVALID_ARGUMENT,
    BrpcCode.ERPCAUTH: GrpcCode.UNAUTHENTICATED,
    BrpcCode.ERPCTIMEDOUT: GrpcCode.DEADLINE_EXCEEDED,
    BrpcCode.EOVERCROWDED: GrpcCode.RESOURCE_EXHAUSTED,
    BrpcCode.ELOGOFF: GrpcCode.UNAVAILABLE,
    BrpcCode.ELIMIT: GrpcCode.RESOURCE_EXHAUSTED,
}
"""gRPC statuses by brpc's error code, for our clients; INTERNAL for any other."""


def status_of(error: RequestError) -> Status:
    """Return the row of the error's nearest ancestor in the table; an HttpError has its own."""
    if isinstance(error, errors.HttpError):
        return _of_http(error.status)
    for cls in type(error).__mro__:
        row = STATUS.get(cls)
        if row is not None:
            return row
    return INTERNAL


def reply_fields(error: RequestError, status: int | None = None) -> Headers:
    """Return the fields that an error adds to the head of its answer over HTTP.

    Args:
        error: the error.
        status: of the answer, if 429 and 503 are to have ``retry-after`` whatever the error.
    """
    seconds = error.retry_after
    if seconds is None and status in (429, 503):
        seconds = 1.0
    if seconds is None:
        return error.headers
    return (*error.headers, (b"retry-after", b"%d" % max(1, ceil(seconds))))


def reply_metadata(error: RequestError) -> Headers:
    """Return the trailing metadata that an error adds to its answer over gRPC."""
    seconds = error.retry_after
    if seconds is None:
        return error.headers
    return (*error.headers, (b"grpc-retry-pushback-ms", b"%d" % ceil(1000 * seconds)))


@cache
def _of_http(status: int) -> Status:
    """Return the row of an HTTP status that an op chose."""
    other = GrpcCode.FAILED_PRECONDITION if status < 500 else GrpcCode.INTERNAL
    err_no = _Code.PRODUCT_ERROR if status < 500 else _Code.UNKNOW
    return Status(
        _ERR_NO_OF_HTTP.get(status, err_no),
        status,
        GRPC_OF_HTTP.get(status, other),
        retryable=status in (429, 503, 504),
    )


_ERR_NO_OF_HTTP = {
    400: _Code.INPUT_PARAMS_ERROR,
    408: _Code.TIMEOUT,
    422: _Code.INPUT_PARAMS_ERROR,
    429: _Code.SERVICE_BUSY,
    504: _Code.TIMEOUT,
}


def brpc_code_of(error: RequestError) -> BrpcCode:
    """Return brpc's error code of an error."""
    row = status_of(error)
    code = row.brpc or brpc_code_of_grpc(row.grpc)
    has_run = (
        isinstance(error, errors.HttpError)
        or (isinstance(error, errors.ServiceClosed) and error.admitted)
        or (isinstance(error, errors.ServiceBusy) and error.has_begun)
    )
    if has_run and code in (BrpcCode.ELIMIT, BrpcCode.ELOGOFF):
        return BrpcCode.EINTERNAL  # clients repeat what is refused with these
    return code


def brpc_code_of_grpc(code: GrpcCode) -> BrpcCode:
    """Return brpc's error code of a gRPC status."""
    return BRPC_OF_GRPC.get(code, BrpcCode.EINTERNAL)


def err_no_of(error: RequestError) -> int:
    """Return the ``err_no`` of an error; product and declared errors have their own."""
    if isinstance(error, errors.NumberedError):
        return error.number
    return status_of(error).err_no.value


def error_for(err_no: int, text: str) -> RequestError:
    """Return the error of an ``err_no`` for clients (the table read backwards).

    A number outside the enum is a product error.
    """
    for cls, row in STATUS.items():
        if row.err_no.value == err_no and not row.transport and cls is not errors.DeclaredError:
            if cls is errors.ProductError:
                return errors.ProductError(err_no, text)
            return cls(text)
    return errors.ProductError(err_no, text)
