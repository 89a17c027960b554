"""Samples and outcomes as plain values, for the way to a worker process and back.

What crosses is checked on the engine's side as if it came from a stranger, because a worker may
have been taken over through a native parser: whatever does not fit is a FrameError, and the worker
ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice
from math import inf
from operator import attrgetter
from typing import Any, Final, TypeAlias

from penstock.errors import DeadlineExceeded, InternalError, NumberedError, RequestError
from penstock.executors.processes.frame import FrameError
from penstock.request import Feed, Outcome, Sample

Plain: TypeAlias = list[Any]

_NO_JUMP: Final = False
_TEXT: Final = frozenset((str,))
_NUMBERS: Final = attrgetter("data_id", "log_id", "deadline")
_INPUTS: Final = attrgetter("inputs")


def batches_out(batches: Sequence[Sequence[Sample]]) -> tuple[Plain, list[dict[str, Feed]]]:
    """What a worker has to know of the samples of these batches, and all in it that is strange."""
    samples = list(chain.from_iterable(batches))
    sizes = None if len(samples) == len(batches) else list(map(len, batches))
    numbers = list(chain.from_iterable(map(_NUMBERS, samples)))
    inputs = list(map(_INPUTS, samples))
    return [sizes, numbers, inputs], inputs


def batches_in(value: Plain) -> Iterator[list[Sample]]:
    """The worker's batches, each until the next is asked for; the engine is trusted.

    Nothing is kept of earlier ones, and where each has one sample it is the same for all of them.
    """
    sizes, numbers, inputs = value
    inputs.reverse()
    take = inputs.pop
    each = iter(numbers)
    samples = zip(each, each, each, strict=True)
    if sizes is None:
        sample = Sample(0, {}, 0.0)
        alone = [sample]
        for sample.data_id, sample.log_id, sample.deadline in samples:
            sample.inputs = take()
            yield alone
        sample.inputs = {}
        return
    for size in sizes:
        yield [
            Sample(data_id, take(), deadline, log_id)
            for data_id, log_id, deadline in islice(samples, size)
        ]


def outcomes_out(ran: float, outcomes: Sequence[Outcome]) -> tuple[Plain, Collection[Any]]:
    """The worker's answers to a batch that took so many seconds, in order; and all that is strange
    in it.
    """
    if len(outcomes) == 1:
        (one,) = outcomes
        value = one.value
        if one.error is None and type(value) is dict and _TEXT.issuperset(map(type, value)):
            return [ran, value, None, one.jump], value.values()
    flat: Plain = [ran]
    strange: list[Any] = []
    for each in outcomes:
        error = each.error
        if error is None:
            value = output(each.value or {})
            strange += value.values()
            flat += value, None, each.jump
        else:
            flat += None, _error_out(error), _NO_JUMP
    return flat, strange


def outcomes_in(value: Any, count: int) -> tuple[float, list[Outcome]]:
    """How long a batch took, and as many outcomes as it has samples.

    Raises:
        FrameError: it is anything else.
    """
    if type(value) is not list or len(value) != 1 + 3 * count or type(value[0]) is not float:
        raise FrameError("the worker did not answer each sample once")
    if not 0.0 <= value[0] < inf:
        raise FrameError("the worker gave no time that a batch can take")
    if count == 1:
        ran, output, error, jump = value
        return ran, [_outcome_in(output, error, jump)]
    each = iter(value)
    ran = next(each)
    return ran, [_outcome_in(*parts) for parts in zip(each, each, each, strict=True)]


def output(value: Feed) -> Feed:
    """An op's output as it leaves: subclasses would be pickles, which the engine does not open.

    Raises:
        FrameError: a key is no text.
    """
    if type(value) is dict and _TEXT.issuperset(map(type, value)):
        return value
    for key in value:
        if not isinstance(key, str):
            raise FrameError(f"a key of an output is a text, not {type(key).__name__}")
    return {str.__str__(key): each for key, each in value.items()}


def _error_out(error: RequestError) -> Plain:
    number = error.number if isinstance(error, NumberedError) else 0
    by_client = isinstance(error, DeadlineExceeded) and error.by_client
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
    if issubclass(kind, DeadlineExceeded):
        return kind(text, by_client=by_client)
    return kind(text)


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
