"""The JSON error format of our own routes.

    {"error": "invalid_input", "message": "x: Field required", "details": [{"loc": ["body", "x"],
     "msg": "Field required", "type": "missing"}]}

``error`` is a code for programs, ``message`` a text for people. ``details`` is present with status
422, ``number`` with product errors, ``id`` with errors that the service or an op caused: the log
has the same id with the reason, which callers do not get.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import orjson

from penstock.api.http import JSON, HttpCall
from penstock.door.exchange import STOPPING, HttpReply
from penstock.errors import (
    DeadlineExceeded,
    HttpError,
    InvalidInput,
    NumberedError,
    PermissionDenied,
    RequestError,
    ServiceBusy,
    ServiceClosed,
    TooLarge,
    TooManyRequests,
    Unauthenticated,
    Undecodable,
    UnknownEncoding,
    UnknownService,
)
from penstock.ops.failures import without_sentence
from penstock.protocols.heads import Headers
from penstock.protocols.status import reply_fields, status_of

_RETRY: Headers = (JSON, (b"retry-after", b"1"))
_HEADERS: Headers = (JSON,)
_WORDS = {
    400: Undecodable.code,
    401: Unauthenticated.code,
    403: PermissionDenied.code,
    404: UnknownService.code,
    405: "method_not_allowed",
    408: DeadlineExceeded.code,
    413: TooLarge.code,
    415: UnknownEncoding.code,
    429: TooManyRequests.code,
    431: TooLarge.code,
    503: ServiceBusy.code,
    504: DeadlineExceeded.code,
}
"""Codes of refusals that have only a status."""
_DOCS = "/docs"
_LONGEST_COMPARED = 100
"""Most characters of a path that are compared with routes."""
_OURS = "the service failed to answer; its log says why, under this id"


def http_status(error: RequestError) -> int:
    """The HTTP status of an error on our own routes."""
    if isinstance(error, DeadlineExceeded) and not error.by_client:
        return 408
    return status_of(error).http


def error_body(
    status: int, code: str, message: str, log_id: int | None = None, **more: Any
) -> HttpReply:
    """An error as a whole answer."""
    body: dict[str, Any] = {"error": code, "message": message, **more}
    if log_id is not None:
        body["id"] = str(log_id)
    headers = _RETRY if status in (429, 503) else _HEADERS
    return HttpReply(status, headers, orjson.dumps(body, default=str), close=status == 413)


def error_reply(error: RequestError, log_id: int | None = None) -> HttpReply:
    """The error answer of our own routes.

    Args:
        error: why the request failed.
        log_id: its id in the log; None for a request that has none.
    """
    status = http_status(error)
    if isinstance(error, InvalidInput):
        return error_body(status, error.code, str(error), details=error.details)
    if isinstance(error, HttpError):
        return error_body(status, error.kind, str(error))
    if isinstance(error, NumberedError):
        text = without_sentence(str(error), names_op=False)
        return error_body(status, error.code, text, number=error.number)
    if _is_for_callers(error):
        reply = error_body(status, error.code, without_sentence(str(error)))
        return reply._replace(headers=(JSON, *reply_fields(error, status)))
    return error_body(status, error.code, _OURS, log_id)


def text_for_caller(error: RequestError, log_id: int | None) -> str:
    """The same as one text, for other protocols.

    Args:
        error: why the request failed.
        log_id: its id in the log; None for a request that has none.
    """
    if isinstance(error, NumberedError) or _is_for_callers(error):
        return without_sentence(str(error), names_op=not isinstance(error, NumberedError))
    return _OURS if log_id is None else f"{_OURS}: {log_id}"


def _is_for_callers(error: RequestError) -> bool:
    """Whether the caller gets the error's text; other texts are only in the log."""
    return http_status(error) < 500 or isinstance(
        error, (HttpError, ServiceClosed, ServiceBusy, DeadlineExceeded, TooLarge)
    )


def refusal(status: int, text: str) -> HttpReply:
    """The answer of a refusal without an error object; see ``Http.refusal``."""
    other = Undecodable.code if status < 500 else "internal"
    code = ServiceClosed.code if text == STOPPING else _WORDS.get(status, other)
    return error_body(status, code, text)._replace(close=True)


def no_route(routes: Sequence[str], path: str) -> HttpReply:
    """The answer to a path without a route.

    Args:
        routes: paths of routes; the answer names the nearest, or the page that lists them.
        path: the requested path.
    """
    near = [each for each in routes if each == path.rstrip("/")]
    if not near and len(path) <= _LONGEST_COMPARED:
        near = get_close_matches(path, routes, n=1)
    hint = "; /docs lists them" if _DOCS in routes else ""
    if near:
        hint = f"; did you mean {near[0]}?"
    text = f"there is no route {path[:_LONGEST_COMPARED]}{hint}"
    return error_body(404, UnknownService.code, text)


def failed(call: HttpCall, error: RequestError) -> None:
    """Answer an error before a handler is called; see ``Http.failed``."""
    fail(call, error)


def fail(
    call: HttpCall,
    error: RequestError,
    log_id: int | None = None,
    form: Callable[[RequestError, int | None], HttpReply] = error_reply,
) -> None:
    """Answer an error, in the form of ``error_reply`` by default."""
    call.send(noted(call, error, log_id, form))


def noted(
    call: HttpCall,
    error: RequestError,
    log_id: int | None = None,
    form: Callable[[RequestError, int | None], HttpReply] = error_reply,
) -> HttpReply:
    """The answer to an error, which is noted."""
    found = call.note(error)
    if isinstance(found, RequestError):
        return form(found, log_id if found is error else None)
    return found
