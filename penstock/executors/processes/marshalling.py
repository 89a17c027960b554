"""Samples and outcomes as plain values, for the way to a worker process and back.

What a worker sends is checked as if it came from a stranger, because it may have been taken over
through a native parser: whatever does not fit is a FrameError, and the worker ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from math import inf
from typing import Any, Final, TypeAlias

import orjson

from penstock.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidInput,
    NumberedError,
    RequestError,
)
from penstock.executors.processes.frames import FrameError
from penstock.request import Batch, Feed, Outcome, Sample

Plain: TypeAlias = list[Any]

_TIMES: Final = 3
_TEXT: Final = frozenset((str,))
_FLOATS: Final = frozenset((float,))


def batches_out(batches: Sequence[Sequence[Sample]], now: float) -> Plain:
    """What a worker has to know of the samples of these batches; deadlines as the time left."""
    samples = list(chain.from_iterable(batches))
    sizes = None if len(samples) == len(batches) else list(map(len, batches))
    numbers = [(each.data_id, each.log_id, each.deadline - now) for each in samples]
    return [sizes, [*chain.from_iterable(numbers)], [each.inputs for each in samples]]


def batches_in(value: Plain, now: float) -> Iterator[list[Sample]]:
    """The worker's batches, each until the next is asked for; the engine is trusted.

    Nothing is kept of earlier ones.
    """
    sizes, numbers, inputs = value
    inputs.reverse()
    each = iter(numbers)
    samples = zip(each, each, each, strict=True)
    for size in [1] * len(inputs) if sizes is None else sizes:
        yield [
            Sample(data_id, inputs.pop(), now + left, log_id)
            for data_id, log_id, left in islice(samples, size)
        ]


def outcomes_out(batch: Batch, outcomes: Sequence[Outcome]) -> Plain:
    """The worker's answer to a batch: its times, and its outcomes in order.

    Raises:
        FrameError: an output is no dict whose keys are texts.
    """
    flat: Plain = [batch.ran, batch.prepared, batch.processed]
    for each in outcomes:
        if each.error is None:
            flat += output(each.value or {}), None, each.jump
        else:
            flat += None, _error_out(each.error), False
    return flat


def outcomes_in(value: Any, batch: Batch) -> list[Outcome]:
    """As many outcomes as the batch has samples; its times are set.

    Raises:
        FrameError: it is anything else.
    """
    if type(value) is not list or len(value) != _TIMES + 3 * len(batch.samples):
        raise FrameError("the worker did not answer each sample once")
    times = value[:_TIMES]
    if set(map(type, times)) != _FLOATS or not all(0.0 <= each < inf for each in times):
        raise FrameError("the worker gave no time that a batch can take")
    batch.ran, batch.prepared, batch.processed = times
    each = iter(value[_TIMES:])
    return [_outcome_in(*parts) for parts in zip(each, each, each, strict=True)]


def output(value: Feed) -> Feed:
    """An op's output as it leaves: subclasses would be pickles, which the engine does not open.

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
        # As JSON, so that what comes back cannot hold anything but plain values.
        return [_code_of(error), orjson.dumps(error.details, default=str).decode(), 0, False]
    return [_code_of(error), str(error), number, by_client]


def _outcome_in(value: Any, error: Any, jump: Any) -> Outcome:
    if error is None and type(value) is dict and type(jump) is bool:
        if not _TEXT.issuperset(map(type, value)):
            raise FrameError("the worker gave a dict with a key that is no text")
        return Outcome(value, None, jump)
    match value, error, jump:
        case None, [str(code), str(text), int(number), bool(by_client)], False:
            return Outcome(None, _error_of(code, text, number, by_client))
    raise FrameError("the worker's answer is none")


def _code_of(error: RequestError) -> str:
    """Its own, or that of the nearest class that we know."""
    for kind in type(error).__mro__:
        code = str(kind.__dict__.get("code"))
        if _KINDS.get(code) is kind:
            return code
    raise InternalError(f"{type(error).__name__} is no error of a request")


def _error_of(code: str, text: str, number: int, by_client: bool) -> RequestError:
    kind = _KINDS.get(code)
    if kind is None:
        raise FrameError("the worker gave an error that does not exist")
    if issubclass(kind, NumberedError):
        try:
            return kind(number, text)
        except ValueError as error:
            raise FrameError("the worker gave an error with a number that none has") from error
    if issubclass(kind, InvalidInput):
        return kind(_details(text))
    if issubclass(kind, DeadlineExceeded):
        return kind(text, by_client=by_client)
    return kind(text)


def _details(text: str) -> list[dict[str, Any]]:
    """What is wrong with an input, as a worker tells it."""
    try:
        details = orjson.loads(text)
        for each in details:
            if not isinstance(each["loc"], list) or not isinstance(each["msg"], str):
                raise TypeError("a place or a message is of another type")
    except (ValueError, TypeError, LookupError) as error:
        raise FrameError("the worker gave an error whose details cannot be read") from error
    return details  # type: ignore[no-any-return]


def _kinds(kind: type[RequestError]) -> Iterator[type[RequestError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


# Not those of a user's script, which may have been read before this: they may inherit our codes.
_KINDS: Final = {
    kind.code: kind
    for kind in _kinds(RequestError)
    if kind.__module__ == RequestError.__module__ and "code" in kind.__dict__
}
