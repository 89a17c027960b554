"""The texts of an op's errors, for the caller and for the log.

Exceptions of hooks become RequestErrors here, with the texts that deployed clients expect. Every
failure is logged once, with op, hook, data ids and log id: as a warning, with the traceback if the
hook raised, or as info if the op declared the error (CustomException). A failure of ``process`` is
logged only when its samples are known, so that the halves of a split batch do not log it again.
In the log an op has its label, with the name of its service if there are several; callers get
its name.
Source: ``docs/compatibility.md`` (texts of errors, CustomException).
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from enum import Enum
from math import inf
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from penstock.caller import name_of
from penstock.errors import (
    ERROR_STATUSES,
    INT32,
    DeclaredError,
    HookFailed,
    HttpError,
    InferenceFailed,
    InputMismatch,
    InvalidInput,
    KillsWorkers,
    NumberedError,
    OpTimeout,
    Raised,
    RequestError,
    TooLarge,
    Undecodable,
    WorkerBrokeProtocol,
    WorkerDied,
    WrongType,
    text_of,
)
from penstock.ops.op import Op
from penstock.ops.product import CustomException, declared_error
from penstock.protocols.trace_context import TRACEPARENT, trace_id_of
from penstock.request import Batch, Sample

_log = logging.getLogger(__name__)

HOOK_FAULTS = BaseException
"""Exceptions of a hook that fail only its request: all, because only the hook can raise where they
are caught (except in a coroutine that awaits)."""


_CALLERS = (NumberedError, InvalidInput, Undecodable, TooLarge)
"""Errors that an op declares, or that a typed function's caller caused: not logged as warnings."""


def with_status(op: Op, error: BaseException) -> BaseException:
    """The exception of a hook, as an HttpError if the op's author gave its class a status.

    ``HTTPException`` of Starlette and FastAPI has a status, too: whoever raises it means its
    ``status_code`` and its ``detail`` for the caller. Its header fields are left out.

    Args:
        op: has the classes.
        error: the exception, which becomes the cause of an error of 500 or more, for the log.
    """
    if isinstance(error, RequestError):
        return error
    for kind in type(error).__mro__:
        given = op.error_statuses.get(kind)
        if given is not None:
            status, name = given
            found = HttpError(status, short_text_of(error), name)
            found.__cause__ = error if found.status >= 500 else None
            return found
    starlette = sys.modules.get("starlette.exceptions")  # not imported: then it is not raised
    if (
        starlette is not None
        and isinstance(error, starlette.HTTPException)
        and error.status_code in ERROR_STATUSES
    ):
        found = HttpError(error.status_code, str(error.detail)[:_MOST_TEXT])
        found.__cause__ = error if found.status >= 500 else None
        return found
    return error


_MOST_TEXT = 16 << 10
"""Most characters of an exception's text in an answer."""
_MOST_TRACEBACK = 8000
"""Most characters of a traceback that operators can read in the live page; a guess."""
_OP = re.compile(r"""^op (['"]).*?\1: """)
_SHOWN = 16  # most ids of a batch in one log line


def raised_by(op: str, error: BaseException) -> Raised:
    """What operators are shown of an exception of user code.

    Args:
        op: its name in the log.
        error: the exception.
    """
    kind = type(error)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    text = "".join(traceback.format_exception(error)).rstrip()
    return Raised(op, f"{module}{kind.__qualname__}", text[-_MOST_TRACEBACK:])


def failed_to_predict(op: str, text: str) -> str:
    """The sentence around every failure of ``process``, which deployed clients expect."""
    return (
        f"[{op}] failed to predict. {text}. Please check the input dict and checkout "
        f"PipelineServingLogs/pipeline.log for more details."
    )


def without_sentence(text: str, *, names_op: bool = True) -> str:
    """The text inside ``failed_to_predict``, for protocols without that sentence.

    Args:
        text: of an error.
        names_op: whether the op's name comes first; the text of a product error is the author's.
    """
    head, between, rest = text.partition("] failed to predict. ")
    inner, _, _ = rest.rpartition(". Please check the input dict and checkout ")
    if not (between and inner):
        return text
    return f"op {head[1:]!r}: {inner}" if names_op else inner


def process_raised(
    op: str, error: BaseException, log_id: int, label: str | None = None
) -> RequestError:
    """The error for an exception of ``process``; RequestErrors keep their class, with the text
    wrapped.

    An undeclared exception is the error's cause until ``log_culprits`` has logged it.

    Args:
        op: its name.
        error: the exception.
        log_id: of the batch's first request.
        label: the op's name in the log; None is ``op``.
    """
    try:
        if isinstance(error, NumberedError):
            return error.with_text(failed_to_predict(op, str(error)))
        if isinstance(error, HttpError):
            twin = error.with_text(str(error))
            if error.status >= 500:
                twin.__cause__ = error.__cause__ or _Reason(f"process: {error}")
            return twin
        if isinstance(error, RequestError):
            text = str(error)
            return _with_reason(error.with_text(failed_to_predict(op, text)), f"process: {text}")
        if isinstance(error, CustomException):
            _log.info("op %s: process raised (log_id=%s)", label or op, log_id, exc_info=error)
            return declared_error(error, failed_to_predict(op, error.message))
    except HOOK_FAULTS as fault:  # a user's subclass that breaks its base class
        error = fault
    failed = HookFailed(failed_to_predict(op, short_text_of(error)))
    failed.__cause__ = error
    return failed


def not_the_callers(error: InputMismatch) -> WrongType:
    """The error of a model's input that another model made: no caller can correct it."""
    failed = WrongType(str(error))
    failed.__cause__ = error.__cause__
    return failed


class _Reason(Exception):
    """The cause of an error without an exception of user code; its text is for the log, and begins
    with the hook, ``process``.
    """


def log_culprits(
    op: str, failed: Iterable[tuple[Sample, RequestError]], process: str = "process"
) -> None:
    """Log the failures of ``process``: one line for each error, with its samples.

    Args:
        op: its name in the log.
        failed: samples with their errors.
        process: the hook's name in the log, see ``Op.hook_name``.
    """
    ended: dict[int, tuple[RequestError, list[Sample]]] = {}
    for sample, error in failed:
        if error.__cause__ is not None:
            ended.setdefault(id(error), (error, []))[1].append(sample)
    for error, samples in ended.values():
        cause, error.__cause__ = error.__cause__, None  # its frames hold the batch's arrays
        if isinstance(cause, _Reason):
            _warn(op, process + str(cause).removeprefix("process"), samples, None)
        elif cause is not None:
            _warn(op, f"{process} raised", samples, cause)
            error.raised = raised_by(op, cause)


def log_fault(op: str, what: str, sample: Sample, error: RequestError) -> None:
    """Log the error of one sample, unless the op declared it.

    Args:
        op: its name in the log.
        what: the hook, or an external worker.
        sample: the sample.
        error: its error, whose text for callers may begin with the op.
    """
    if not isinstance(error, NumberedError):
        text = _OP.sub("", text_of(error))
        _warn(op, text if text.startswith(what) else f"{what}: {text}", [sample], None)


def _warn(op: str, what: str, samples: Sequence[Sample], error: BaseException | None) -> None:
    ids = [sample.data_id for sample in samples[:_SHOWN]]
    more = f" and {len(samples) - _SHOWN} more" if len(samples) > _SHOWN else ""
    # All of them: a caller of a typed function knows its request by this id only.
    log_ids = dict.fromkeys(sample.log_id for sample in samples)
    listed = f"{ids}{more} log_id={' '.join(map(str, log_ids))}"
    members = _ids_of(samples)
    _log.warning("op %s: %s (data_ids=%s)", op, what, listed, exc_info=error, extra=members)


def _ids_of(samples: Sequence[Sample]) -> dict[str, Any]:
    """What identifies the requests, as members of a JSON line: lists if there are several."""
    if len(samples) == 1:
        (sample,) = samples
        ids = {"data_id": sample.data_id, "log_id": sample.log_id}
        return ids | origin_of(getattr(sample.flight, "call", None))
    found = {
        "data_ids": [sample.data_id for sample in samples],
        "log_ids": [sample.log_id for sample in samples],
    }
    origins = [origin_of(getattr(sample.flight, "call", None)) for sample in samples]
    names = dict.fromkeys(name for each in origins for name in each)
    return found | {f"{name}s": [each.get(name) for each in origins] for name in names}


def origin_of(call: Any) -> dict[str, str]:
    """Trace id and caller of a call from the door, as members of a JSON line; those it has.

    Args:
        call: the call; None for a request without one, or in another process.
    """
    head = getattr(getattr(call, "exchange", None), "head", None)
    if head is None:
        return {}
    trace = trace_id_of(head.fields.get(TRACEPARENT, b"").decode("latin-1"))
    found = {"trace": trace, "caller": name_of(getattr(call, "caller", None))}
    return {name: each for name, each in found.items() if each}


def process_gave_code(op: str, text: str, number: int) -> RequestError:
    """The error for an error code that ``process`` returned; the op chooses the number."""
    if number not in INT32:
        return _failed(HookFailed, op, f"process gave the error code {number}, which is no int32")
    return DeclaredError(number, failed_to_predict(op, text))


def process_gave(op: str, given: Any) -> RequestError:
    """The error for an invalid result of ``process``."""
    if given is None:
        return _failed(InferenceFailed, op, "process gave no result")
    return _failed(
        WrongType, op, f"process must give a dict, got {type_instead(given, may_yield=True)}"
    )


def _failed(kind: type[RequestError], op: str, text: str) -> RequestError:
    return _with_reason(kind(failed_to_predict(op, text)), text)


def _with_reason(error: RequestError, why: str) -> RequestError:
    """The error with its reason, which ``log_culprits`` logs once its samples are known."""
    error.__cause__ = _Reason(why)
    return error


def refused_alone(op: str, fits: str) -> HookFailed:
    """The error of a request that ``fits``, by its name in messages, refused though nothing else
    ran.
    """
    what = "refused it while nothing else ran"
    error = HookFailed(failed_to_predict(op, f"{fits} {what}"))
    error.__cause__ = _Reason(
        f"process {what}; let it or join raise HttpError(413) for what can never fit"
    )
    return error


def batch_failed(op: str, error: RequestError) -> RequestError:
    """The error of a batch whose feeds cannot be joined, or whose result cannot be split."""
    text = str(error)
    if isinstance(error, InferenceFailed):
        error = InferenceFailed(failed_to_predict(op, text))
    return _with_reason(error, f"process: {text}")


def timed_out(op: str, batch: Batch, limit: float | None, attempts: int) -> OpTimeout:
    """The error of a batch whose ``process`` took longer than its limit.

    Args:
        op: its name.
        batch: the batch.
        limit: limit of one call, in seconds.
        attempts: most calls for one sample.
    """
    times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    allowed = f" It may take {limit * 1000:g} ms, with {times}" if limit is not None else ""
    error = OpTimeout(
        failed_to_predict(
            op,
            f"(log_id={batch.samples[0].log_id}) [{op}|{batch.worker}] "
            f"Failed to process(batch: {batch.data_ids}): exceeded retry count.{allowed}",
        )
    )
    error.__cause__ = _Reason(f"process took longer than its timeout.{allowed}")
    return error


def where_late(samples: Iterable[tuple[str, Sample]]) -> tuple[str, str]:
    """Where a request was when its deadline passed, for the log.

    Args:
        samples: its samples, each with the name of its op.

    Returns:
        the names of the ops, and what it did there.
    """
    found = [*samples]
    hopeless = [each for each in found if _dropped_at(each[1]) < each[1].deadline]
    names = ", ".join(dict.fromkeys(op for op, _ in hopeless or found))
    if hopeless:
        return names, "waited; it was not run, since it could not have been answered in time"
    waited = all(each.waiting or _dropped_at(each) < inf for _, each in found)
    return names, "waited" if waited else "ran"


def _dropped_at(sample: Sample) -> float:
    return getattr(sample, "dropped", inf)


def worker_died(op: str, worker: int) -> WorkerDied:
    """The error of a batch whose worker process died; the log says how."""
    return WorkerDied(failed_to_predict(op, f"worker {worker} died while it had this batch"))


def broke_protocol(op: str, worker: int) -> WorkerBrokeProtocol:
    """The error of a batch whose external worker broke its protocol; the log says how."""
    text = f"worker {worker} broke its protocol while it had this batch"
    return WorkerBrokeProtocol(failed_to_predict(op, text))


def kills_workers(op: str) -> KillsWorkers:
    """The error of a request whose inputs have killed two workers."""
    text = "two workers have died of this request, so it is refused for a while"
    return KillsWorkers(failed_to_predict(op, text))


def cannot_send(
    op: str, text: str, samples: Sequence[Sample], label: str | None = None
) -> WrongType:
    """Log and return the error of samples whose values cannot be sent to or from a worker."""
    _warn(label or op, text, samples, None)
    return WrongType(failed_to_predict(op, text))


def log_unsendable(op: str, data_id: int, log_id: int, error: Exception) -> WrongType:
    """Log and return the error of a reply with a value that cannot be encoded."""
    text = f"the answer cannot be encoded: {error}"
    _log.warning("op %s: %s (data_id=%s log_id=%s)", op, text, data_id, log_id)
    return WrongType(f"op {op!r}: {text}")


def not_a_feed(op: str, given: Any) -> WrongType:
    """The error for a result of ``preprocess`` that is no feed."""
    kind = type(given).__name__
    return WrongType(
        f"op {op!r}: preprocess must give a dict, or a list of dicts, to process; got {kind}"
    )


def no_parts(op: str) -> WrongType:
    """The error for a mini-batch of an op whose answers come in pieces."""
    return WrongType(
        f"op {op!r}: preprocess gave a list, but process yields, and answers one feed: give a dict"
    )


def hook_raised(
    op: Op,
    hook: str,
    sample: Sample,
    error: BaseException,
    result: object = None,
    *,
    label: str | None = None,
) -> RequestError:
    """The error for an exception of a hook for one sample; RequestErrors are unchanged. A result of
    ``process`` is given if the hook got it, and a label if the log has another name of the op.
    """
    return hook_raised_for(op, hook, [sample], error, result, label=label)[0]


def hook_raised_for(
    op: Op,
    hook: str,
    samples: Sequence[Sample],
    error: BaseException,
    result: object = None,
    *,
    label: str | None = None,
) -> list[RequestError]:
    """The errors of all samples of one hook call."""
    label = label or op.name
    error = with_status(op, error)
    try:
        if isinstance(error, HttpError):
            twin = error.with_text(str(error))
            if error.status >= 500:
                cause = error.__cause__ or error
                _warn(label, f"{op.hook_name(hook)} raised", samples, cause)
                twin.raised = raised_by(label, cause)
            return [twin] * len(samples)
        if isinstance(error, RequestError):
            text = str(error)
            if not isinstance(error, _CALLERS):
                _warn(label, f"{op.hook_name(hook)}: {text}", samples, None)
            error.__cause__ = None  # else ``log_culprits`` logs it again, as one of ``process``
            return [error] * len(samples)
        if isinstance(error, CustomException):
            who = (label, op.hook_name(hook), samples[0].log_id)
            _log.info("op %s: %s raised (log_id=%s)", *who, exc_info=error)
            text = error.message.split(":")[0].split("\n")[0]
            return [declared_error(error, _raise_message(op, hook, each, text)) for each in samples]
    except HOOK_FAULTS as fault:  # see process_raised
        error = fault
    _warn(label, f"{op.hook_name(hook)} raised", samples, error)
    text = short_text_of(error)
    if isinstance(error, KeyError) and hook != "check_jumping":
        text += _keys_there(samples[0], result)
    text = text.replace("'", "")
    found: list[RequestError] = [
        HookFailed(_raise_message(op, hook, sample, text)) for sample in samples
    ]
    raised = raised_by(label, error)
    for each in found:
        each.raised = raised
    return found


def _keys_there(sample: Sample, result: object) -> str:
    """For an error about a missing key: the keys that the hook's arguments have."""
    several = len(sample.inputs) > 1
    keys = [
        f"{source}.{key}" if several else str(key)
        for source, feed in sample.inputs.items()
        for key in feed
    ]
    there = [f"the input has {_shown(keys)}"]
    if isinstance(result, dict):
        there.insert(0, f"the result has {_shown([str(key) for key in result])}")
    return f" ({'; '.join(there)})"


def _shown(keys: Sequence[str]) -> str:
    more = ", ..." if len(keys) > _SHOWN else ""
    return f"{', '.join(keys[:_SHOWN]) or 'no keys'}{more}"


def _raise_message(op: Op, hook: str, sample: Sample, text: str) -> str:
    return (
        f"Log_id: {sample.log_id}  Raise_msg: {text}  "
        f"ClassName: {type(op).__qualname__}.{hook}  FunctionName: {hook}_help"
    )


def short_text_of(error: BaseException) -> str:
    """The text of a hook's exception, shortened; or its type, if it has no text."""
    text = text_of(error)[:_MOST_TEXT]
    if isinstance(error, KeyError) and text:
        return f"KeyError: {text}"
    return text or type(error).__name__


def type_instead(given: Any, *, may_yield: bool = False) -> str:
    """The type that came instead of a dict, with advice for common mistakes.

    A coroutine is closed, to avoid the warning that it was never awaited.

    Args:
        given: what came.
        may_yield: whether the function might have been a generator.
    """
    kind = type(given).__name__
    if isinstance(given, CoroutineType):
        given.close()
        return f"{kind}: define the function with async def, in a decorator too"
    if may_yield and isinstance(given, GeneratorType | AsyncGeneratorType):
        return f"{kind}: for an answer in pieces define the function with yield, in a decorator too"
    if isinstance(given, tuple) and len(given) == 3 and isinstance(given[0], dict | None):
        number = given[1]
        known = isinstance(number, Enum)
        advice = f"give {type(number).__name__}.{number.name}.value" if known else "0 is none"
        return f"{kind} whose error code is no int: {advice}"
    return kind
