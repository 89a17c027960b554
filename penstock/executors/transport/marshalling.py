"""Converts samples and outcomes to plain values and back, for workers behind a link.

Workers send plain values only: an invalid answer is a FrameError, and the worker is ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final, TypeAlias

import orjson

from penstock.caller import Caller
from penstock.errors import (
    DeadlineExceeded,
    HttpError,
    InternalError,
    InvalidInput,
    NumberedError,
    Raised,
    RequestError,
)
from penstock.executors.transport.frames import FrameError
from penstock.request import Batch, Feed, Outcome, Sample

Plain: TypeAlias = list[Any]

_TIMES: Final = 4
_WITHOUT_CALLERS: Final = 3
_TEXT: Final = frozenset((str,))


def batches_out(
    batches: Sequence[Sequence[Sample]], now: float, keys: Sequence[str | None] | None = None
) -> Plain:
    """The samples of these batches as plain values; deadlines as the time left.

    Args:
        batches: at least one sample in all.
        now: monotonic seconds.
        keys: for each sample, under which its large outputs may be put into the external store.
    """
    samples = list(chain.from_iterable(batches))
    sizes = None if len(samples) == len(batches) else list(map(len, batches))
    numbers = [(each.data_id, each.log_id, each.deadline - now) for each in samples]
    value: Plain = [sizes, [*chain.from_iterable(numbers)], [each.inputs for each in samples]]
    if hasattr(samples[0], "caller"):  # as of all: their op asks for it
        value.append([_caller_out(each.caller) for each in samples])
    if keys is not None:
        value += [None, keys] if len(value) == _WITHOUT_CALLERS else [keys]
    return value


def batches_in(value: Plain, now: float) -> Iterator[list[Sample]]:
    """For the worker: yields the batches one by one; the engine is trusted.

    Earlier batches are not kept in memory.
    """
    sizes, numbers, inputs, *more = value
    inputs.reverse()
    callers = map(_caller_in, more[0]) if more and more[0] is not None else None
    keys = iter(more[1]) if len(more) > 1 else None
    each = iter(numbers)
    samples = zip(each, each, each, strict=True)
    for size in [1] * len(inputs) if sizes is None else sizes:
        batch = [
            Sample(data_id, inputs.pop(), now + left, log_id)
            for data_id, log_id, left in islice(samples, size)
        ]
        if callers is not None:
            for sample in batch:
                sample.caller = next(callers)
        if keys is not None:
            for sample in batch:
                sample.store_key = next(keys)
        yield batch


def _caller_out(caller: Caller | None) -> Plain | None:
    if caller is None:
        return None
    return [caller.name, caller.how, [*caller.scopes], dict(caller.claims)]


def _caller_in(value: Plain | None) -> Caller | None:
    if value is None:
        return None
    name, how, scopes, claims = value
    return Caller(name=name, how=how, scopes=frozenset(scopes), claims=claims)


def outcomes_out(batch: Batch, outcomes: Sequence[Outcome]) -> Plain:
    """For the worker: a batch's answer, with its times, and its outcomes in order.

    Raises:
        FrameError: an output is no dict with texts as keys.
    """
    flat: Plain = [batch.began, batch.ran, batch.prepared, batch.processed]
    for each in outcomes:
        if each.error is None:
            flat += output(each.value or {}), None, each.jump
        else:
            flat += None, [*_error_out(each.error), _raised_out(each.error)], False
    return flat


def outcomes_in(value: Any, batch: Batch) -> list[Outcome]:
    """Decode the outcomes, one for each sample of the batch, and set the batch's times.

    Raises:
        FrameError: the value is invalid.
    """
    try:
        batch.began, batch.ran, batch.prepared, batch.processed = value[:_TIMES]
        each = iter(value[_TIMES:])
        outcomes = [_outcome_in(*parts) for parts in zip(each, each, each, strict=True)]
    except (ValueError, TypeError, LookupError) as error:
        raise FrameError("the worker's answer is none") from error
    if len(outcomes) != len(batch.samples):
        raise FrameError("the worker did not answer each sample once")
    return outcomes


def output(value: Feed) -> Feed:
    """An op's output as a plain dict: a subclass would be pickled, and the engine does not
    unpickle.

    Raises:
        FrameError: a key is no text, or it cannot be read.
    """
    if type(value) is dict and _TEXT.issuperset(map(type, value)):
        return value
    try:
        items = list(value.items())
    except Exception as error:
        raise FrameError(f"its items cannot be read: {type(error).__name__}: {error}") from error
    for key, _ in items:
        if not isinstance(key, str):
            raise FrameError(f"a key of an output is a text, not {type(key).__name__}")
    return {str.__str__(key): each for key, each in items}


def _error_out(error: RequestError) -> Plain:
    number = error.number if isinstance(error, NumberedError) else 0
    by_client = isinstance(error, DeadlineExceeded) and error.by_client
    if isinstance(error, InvalidInput):
        # As JSON, so that the decoded details are plain values.
        return [_code_of(error), orjson.dumps(error.details, default=str).decode(), 0, False]
    if isinstance(error, HttpError):
        text = orjson.dumps([str(error), error.kind]).decode()
        return [_code_of(error), text, error.status, False]
    return [_code_of(error), str(error), number, by_client]


def _raised_out(error: RequestError) -> Plain | None:
    return None if error.raised is None else [*error.raised]


def _outcome_in(value: Any, error: Any, jump: bool) -> Outcome:
    return Outcome(value, None, jump) if error is None else Outcome(None, _error_of(*error))


def _code_of(error: RequestError) -> str:
    """The code of its class, or of its nearest base class that the engine knows."""
    for kind in type(error).__mro__:
        code = str(kind.__dict__.get("code"))
        if _KINDS.get(code) is kind:
            return code
    raise InternalError(f"{type(error).__name__} is no error of a request")


def _error_of(code: str, text: str, number: int, by_client: bool, raised: Any) -> RequestError:
    error = _plain_error_of(code, text, number, by_client)
    if raised is not None:
        op, kind, traceback = map(str, raised)
        error.raised = Raised(op, kind, traceback)
    return error


def _plain_error_of(code: str, text: str, number: int, by_client: bool) -> RequestError:
    kind = _KINDS[code]
    if issubclass(kind, NumberedError):
        return kind(number, text)
    if issubclass(kind, HttpError):
        return kind(number, *orjson.loads(text))
    if issubclass(kind, InvalidInput):
        return kind(orjson.loads(text))
    if issubclass(kind, DeadlineExceeded):
        return kind(text, by_client=by_client)
    return kind(text)


def _kinds(kind: type[RequestError]) -> Iterator[type[RequestError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


# Without classes of a user's script, which may already be imported, and may inherit our codes.
_KINDS: Final = {
    kind.code: kind
    for kind in _kinds(RequestError)
    if kind.__module__ == RequestError.__module__ and "code" in kind.__dict__
}
