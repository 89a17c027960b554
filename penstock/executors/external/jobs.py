"""Encodes samples as bodies for external workers, and decodes their answers to outcomes.

A typed route's sample has its request's body, which is sent unchanged. Any other sample is a dict
of plain values, which is encoded in the workers' format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from penstock.errors import (
    ERROR_STATUSES,
    Cancelled,
    DeadlineExceeded,
    HookFailed,
    HttpError,
    InferenceFailed,
    InputMismatch,
    InvalidInput,
    NotProvided,
    ProductError,
    RequestError,
    TooLarge,
    Undecodable,
    UnknownMediaType,
    WrongType,
)
from penstock.ops.failures import log_fault
from penstock.ops.product import product_error
from penstock.protocols import media
from penstock.request import Outcome, Sample
from penstock.typed.op import BODY, HEAD, KIND
from penstock.typed.response import Response

_MOST_TEXT: Final = 16 << 10  # most bytes of a refusal's text; a guess
_MOST_DETAILS: Final = 100
_CALLERS: Final = {
    each.code: each for each in (Undecodable, UnknownMediaType, TooLarge, InputMismatch)
}
"""Errors caused by callers that our own workers report, apart from InvalidInput."""


def body_of(sample: Sample, kind: str, now: float) -> bytes:
    """A request's body for a worker.

    Args:
        sample: not sent yet.
        kind: the media type that the workers read.
        now: monotonic seconds.

    Raises:
        RequestError: its deadline has passed, or its body cannot be sent.
    """
    if sample.gone:
        raise Cancelled("the request was cancelled")
    if sample.deadline <= now:
        raise DeadlineExceeded("the request's deadline passed before a worker was idle")
    if len(sample.inputs) != 1:
        raise NotProvided("an op with external workers has one input")
    (feed,) = sample.inputs.values()
    body: bytes | None = feed.get(BODY)
    if body is None:
        try:
            return media.encode(feed, kind)
        except (TypeError, ValueError) as error:
            raise WrongType(f"the input cannot be sent to an external worker: {error}") from None
    given = feed[KIND]
    if given != kind and not _may_be(given, kind):
        raise UnknownMediaType(f"the content-type {given!r} is not supported here: send {kind}")
    return body


def _may_be(given: str, kind: str) -> bool:
    """Whether a body of a media type may be sent to the workers.

    Types other than JSON, msgpack and forms, such as images, are left to the workers.
    """
    if media.is_json(given):
        return kind == media.JSON
    if media.is_msgpack(given):
        return kind == media.MSGPACK
    return media.essence(given) != media.FORM


def heads_of(heads: bytes) -> dict[str, Any]:
    """The heads of answers by id; empty if there are none, or they are no JSON object."""
    try:
        found = orjson.loads(heads) if heads else {}
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


def outcome_of(sample: Sample, body: bytes, kind: str, head: Any = None) -> Outcome:
    """The outcome of a successful answer.

    Args:
        sample: the request.
        body: the answer's body.
        kind: the media type that the worker writes.
        head: the answer's own media type, status and header fields; None for the usual ones.
    """
    (feed,) = sample.inputs.values()
    if head is not None and BODY in feed:
        try:
            own, status, fields = head
            checked = Response(None, status=status, headers=fields, media_type=own or None)
        except (ValueError, TypeError) as error:
            text = f"the head of an external worker's answer cannot be sent: {error}"
            return Outcome(None, WrongType(text))
        return Outcome({BODY: body, KIND: own, HEAD: [status, [*map(list, checked.headers)]]})
    if BODY in feed:
        return Outcome({BODY: body, KIND: kind})
    try:
        value = media.decode(body, kind)
    except RequestError as error:
        return Outcome(None, WrongType(f"an external worker's answer cannot be read: {error}"))
    return Outcome(value if isinstance(value, dict) else {"result": value})


def refusal_of(op: str, sample: Sample, body: bytes, kind: str, *, failed: bool) -> RequestError:
    """The error of a request that a worker refused, or failed to run; a failure is logged here.

    Args:
        op: the op's name.
        sample: the request.
        body: the worker's text: an error in our format, a list of details, or any text.
        kind: the media type that it writes.
        failed: whether the worker reports a failure of its own.
    """
    try:
        answer = media.decode(body, kind)
    except RequestError:
        answer = None
    text = answer if isinstance(answer, str) else body[:_MOST_TEXT].decode(errors="replace")
    if isinstance(answer, Mapping) and isinstance(answer.get("message"), str):
        text = answer["message"]
        status, code = answer.get("status"), answer.get("error")
        if type(status) is int and status in ERROR_STATUSES and isinstance(code, str):
            found = HttpError(status, text[:_MOST_TEXT], code[:_MOST_TEXT])
            if failed or status >= 500:
                log_fault(op, "an external worker", sample, found)
            return found
    if failed:
        error = HookFailed(f"op {op!r}: an external worker failed: {text}")
        log_fault(op, "an external worker", sample, error)
        return error
    if isinstance(answer, Mapping):
        known = _CALLERS.get(answer.get("error", ""))
        if known is not None:
            return known(text)
        if answer.get("error") == ProductError.code:
            return product_error(answer.get("number"), text)
    return InvalidInput(_details(answer) or [_detail(["body"], text or "refused", "worker")])


def _details(answer: Any) -> list[dict[str, Any]]:
    """The validation details, from an error of our workers or a list like pydantic's.

    Empty if it is neither.
    """
    own = isinstance(answer, Mapping)
    listed = answer.get("details") if own else answer
    if not isinstance(listed, list):
        return []
    found = []
    for each in listed[:_MOST_DETAILS]:
        if not isinstance(each, Mapping):
            return []
        place, text, sort = each.get("loc"), each.get("msg"), each.get("type")
        if not (isinstance(place, list) and isinstance(text, str) and isinstance(sort, str)):
            return []
        if not all(isinstance(step, str | int) for step in place):
            return []
        found.append(_detail(place if own else ["body", *place], text, sort))
    return found


def _detail(place: list[Any], text: str, sort: str) -> dict[str, Any]:
    return {"loc": place, "msg": text[:_MOST_TEXT], "type": sort}


def no_answer(op: str, sample: Sample) -> RequestError:
    """Log and return the error of a request that a worker omitted from its answer."""
    error = InferenceFailed(f"op {op!r}: an external worker omitted the request from its answer")
    log_fault(op, "an external worker", sample, error)
    return error


def refusal_body(error: RequestError, text: str, kind: str) -> bytes:
    """For the worker: encode an error in our format.

    Args:
        error: the error of one request.
        text: what the caller may read.
        kind: the worker's media type.
    """
    body: dict[str, Any] = {"error": error.code, "message": text}
    if isinstance(error, InvalidInput):
        body["details"] = error.details
    if isinstance(error, ProductError):
        body["number"] = error.number
    if isinstance(error, HttpError):
        body |= {"error": error.kind, "status": error.status}
    return media.encode(body, kind)


def is_callers(error: RequestError) -> bool:
    """Whether the request's caller caused the error, and gets the worker's text."""
    return isinstance(error, (HttpError, InputMismatch, Undecodable, TooLarge, ProductError))
