"""Samples to the bodies that external workers get, and what they answer to outcomes.

A typed route's sample has its request's body, which goes out as it came. Any other sample is a dict
of plain values, which is written in the workers' format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.errors import (
    Cancelled,
    DeadlineExceeded,
    HookFailed,
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
from penstock.ops.failures import tell_fault
from penstock.ops.product import product_error
from penstock.protocols import media
from penstock.request import Outcome, Sample
from penstock.typed.op import BODY, KIND

_MOST_TEXT: Final = 16 << 10  # bytes of a refusal's text that are kept; a guess at what is read
_MOST_DETAILS: Final = 100
_CALLERS: Final = {
    each.code: each for each in (Undecodable, UnknownMediaType, TooLarge, InputMismatch)
}
"""What our own workers tell of their callers' mistakes, apart from InvalidInput."""


def body_of(sample: Sample, kind: str, now: float) -> bytes:
    """A request's body for a worker.

    Args:
        sample: not sent yet.
        kind: the media type that the workers read.
        now: monotonic seconds.

    Raises:
        RequestError: nobody waits for it any more, or it cannot be sent.
    """
    if sample.gone:
        raise Cancelled("nobody waits for it any more")
    if sample.deadline <= now:
        raise DeadlineExceeded("the request's deadline passed before a worker was free")
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
        raise UnknownMediaType(f"the content-type {given!r} is not read here: send {kind}")
    return body


def _may_be(given: str, kind: str) -> bool:
    """Whether a body of a type may be what the workers read.

    What is neither JSON nor msgpack nor a form, such as an image, is theirs to judge.
    """
    if media.is_json(given):
        return kind == media.JSON
    if media.is_msgpack(given):
        return kind == media.MSGPACK
    return media.essence(given) != media.FORM


def outcome_of(sample: Sample, body: bytes, kind: str) -> Outcome:
    """A worker's good answer."""
    (feed,) = sample.inputs.values()
    if BODY in feed:
        return Outcome({BODY: body, KIND: kind})
    try:
        value = media.decode(body, kind)
    except RequestError as error:
        return Outcome(None, WrongType(f"an external worker's answer cannot be read: {error}"))
    return Outcome(value if isinstance(value, dict) else {"result": value})


def refusal_of(op: str, sample: Sample, body: bytes, kind: str, *, failed: bool) -> RequestError:
    """The error of a request that a worker refuses, or failed with; the latter is now logged.

    Args:
        op: the op's name.
        sample: the request.
        body: what the worker says: an error in our form, a list of details, or any text.
        kind: in which form it writes.
        failed: whether it says that this is its own fault.
    """
    try:
        told = media.decode(body, kind)
    except RequestError:
        told = None
    text = told if isinstance(told, str) else body[:_MOST_TEXT].decode(errors="replace")
    if isinstance(told, Mapping) and isinstance(told.get("message"), str):
        text = told["message"]
    if failed:
        error = HookFailed(f"op {op!r}: an external worker failed: {text}")
        tell_fault(op, "an external worker", sample, error)
        return error
    if isinstance(told, Mapping):
        known = _CALLERS.get(told.get("error", ""))
        if known is not None:
            return known(text)
        if told.get("error") == ProductError.code:
            return product_error(told.get("number"), text)
    return InvalidInput(_details(told) or [_detail(["body"], text or "refused", "worker")])


def _details(told: Any) -> list[dict[str, Any]]:
    """What is wrong, piece by piece: our own workers give it as an error's, others as pydantic's.

    Nothing if it is neither.
    """
    own = isinstance(told, Mapping)
    listed = told.get("details") if own else told
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
    """The error, now logged, of a request that a worker left out of its answer."""
    error = InferenceFailed(f"op {op!r}: an external worker left the request out of its answer")
    tell_fault(op, "an external worker", sample, error)
    return error


def refusal_body(error: RequestError, text: str, kind: str) -> bytes:
    """The worker's side: an error in our form.

    Args:
        error: of one request.
        text: what the caller may read.
        kind: the worker's media type.
    """
    said: dict[str, Any] = {"error": error.code, "message": text}
    if isinstance(error, InvalidInput):
        said["details"] = error.details
    if isinstance(error, ProductError):
        said["number"] = error.number
    return media.encode(said, kind)


def is_callers(error: RequestError) -> bool:
    """Whether the request's caller has to act, and is told what a worker says."""
    return isinstance(error, (InputMismatch, Undecodable, TooLarge, ProductError))
