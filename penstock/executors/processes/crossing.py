"""Samples and outcomes as plain values, for the way to a worker process and back.

What crosses is checked on the engine's side as if it came from a stranger, because a worker may
have been taken over through a native parser: whatever does not fit is a FrameError, and the worker
ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, Final, TypeAlias

from penstock.errors import DeadlineExceeded, InternalError, NumberedError, RequestError
from penstock.executors.processes.frame import FrameError
from penstock.request import Feed, Outcome, Sample

Plain: TypeAlias = list[Any]

_NO_JUMP: Final = False
_TEXT: Final = frozenset((str,))


def samples_out(samples: Sequence[Sample]) -> Plain:
    """What a worker has to know of them."""
    flat: Plain = []
    for each in samples:
        flat += each.data_id, each.log_id, each.deadline, each.inputs
    return flat


def samples_in(value: Any) -> list[Sample]:
    """The worker's samples; the engine is trusted."""
    each = iter(value)
    return [
        Sample(data_id, inputs, deadline, log_id)
        for data_id, log_id, deadline, inputs in zip(each, each, each, each, strict=True)
    ]


def outcomes_out(ran: float, outcomes: Sequence[Outcome]) -> Plain:
    """The worker's answers to a batch that took so many seconds, in order."""
    flat: Plain = [ran]
    for each in outcomes:
        error = each.error
        if error is None:
            flat += output(each.value or {}), None, each.jump
        else:
            flat += None, _error_out(error), _NO_JUMP
    return flat


def outcomes_in(value: Any, count: int) -> tuple[float, list[Outcome]]:
    """How long a batch took, and as many outcomes as it has samples.

    Raises:
        FrameError: it is anything else.
    """
    if type(value) is not list or len(value) != 1 + 3 * count or type(value[0]) is not float:
        raise FrameError("the worker did not answer each sample once")
    each = iter(value)
    ran = next(each)
    if not 0.0 <= ran < inf:
        raise FrameError("the worker gave no time that a batch can take")
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
        return kind(number, text)
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
