"""OpenAI's form of errors.

    {"error": {"message": "the model 'x' does not exist", "type": "invalid_request_error",
     "param": "model", "code": "model_not_found"}}

Its clients retry 408, 409, 429 and 5xx, unless ``x-should-retry`` says that a retry cannot help.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from penstock.api.errors import fail as fail_in_form
from penstock.api.errors import http_status, text_for_caller
from penstock.api.http import JSON, HttpCall
from penstock.door.exchange import HttpReply
from penstock.errors import (
    HttpError,
    InvalidInput,
    RequestError,
    TooManyRequests,
    Unauthenticated,
    UnknownService,
)
from penstock.protocols.heads import Headers
from penstock.protocols.status import reply_fields, status_of

_RETRIED: Final = frozenset((408, 409, 429))
_NO_RETRY: Final = (b"x-should-retry", b"false")
_RETRY: Final = (b"retry-after", b"1")

_TYPES: Final = {403: "permission_error", 429: "rate_limit_error"}
_CODES: Final = {
    401: "invalid_api_key",
    429: "rate_limit_exceeded",
}
_INVALID: Final = {
    "missing": "missing_required_parameter",
    "unsupported_value": "unsupported_value",
}


def error_reply(error: RequestError, log_id: int | None = None) -> HttpReply:
    """The answer to an error.

    Args:
        error: why the request failed.
        log_id: its id in the log; None for a request that has none.
    """
    param, code, status = None, error.code, http_status(error)
    if isinstance(error, InvalidInput):
        status = 400
        param, code = _first_fault(error)
    elif isinstance(error, UnknownService):
        param, code = "model", "model_not_found"
    elif isinstance(error, (Unauthenticated, TooManyRequests)):
        code = _CODES[status]
    elif isinstance(error, HttpError):
        code = error.kind
    headers: Headers = (JSON, *reply_fields(error, status))
    retried = status in _RETRIED or status >= 500
    if retried and not isinstance(error, HttpError) and not status_of(error).retryable:
        headers = (*headers, _NO_RETRY)
    body = error_body(status, text_for_caller(error, log_id), param, code)
    return HttpReply(status, headers, body, close=status == 413)


def _first_fault(error: InvalidInput) -> tuple[str | None, str]:
    """The parameter and the code of the first invalid value."""
    first = error.details[0]
    place = ".".join(map(str, first["loc"][1:]))
    kind = first["type"]
    code = "invalid_type" if kind.endswith("_type") else _INVALID.get(kind, "invalid_value")
    return place or None, code


def error_body(status: int, message: str, param: str | None, code: str | None) -> bytes:
    """The body of an error."""
    kind = "server_error" if status >= 500 else _TYPES.get(status, "invalid_request_error")
    content: dict[str, Any] = {"message": message, "type": kind, "param": param, "code": code}
    return orjson.dumps({"error": content})


def refusal(status: int, text: str) -> HttpReply:
    """The answer of a refusal without an error object; see ``Http.refusal``."""
    headers = (JSON, _RETRY) if status in (429, 503) else (JSON,)
    body = error_body(status, text, None, _CODES.get(status))
    return HttpReply(status, headers, body, close=True)


def no_route(path: str) -> HttpReply:
    """The answer to a path without a route."""
    text = f"there is no route {path[:100]}"
    return HttpReply(404, (JSON,), error_body(404, text, None, "unknown_url"))


def failed(call: HttpCall, error: RequestError) -> None:
    """Answer an error before a handler is called; see ``Http.failed``."""
    fail(call, error)


def fail(call: HttpCall, error: RequestError, log_id: int | None = None) -> None:
    """Answer an error."""
    fail_in_form(call, error, log_id, error_reply)
