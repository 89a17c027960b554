"""What a caller reads when an op fails: the one place that words the errors of hooks.

Whatever a hook raised becomes a RequestError here, in the sentences that deployed clients know.
Source: ``docs/compatibility.md`` (texts of errors, CustomException).
"""

from __future__ import annotations

import logging
from enum import Enum
from types import CoroutineType
from typing import Any

from penstock.errors import (
    DeclaredError,
    HookFailed,
    InferenceFailed,
    OpTimeout,
    RequestError,
    WrongType,
)
from penstock.ops.op import Op
from penstock.ops.product import INT32, CustomException, declared_error
from penstock.request import Batch, Sample

_log = logging.getLogger(__name__)

HOOK_FAULTS = (Exception, SystemExit, KeyboardInterrupt)
"""What a hook may raise without ending its worker. GeneratorExit and asyncio's CancelledError pass:
they are not the hook's own doing."""


def failed_to_predict(op: str, text: str) -> str:
    """The sentence deployed clients know around every failure of ``process``."""
    return (
        f"[{op}] failed to predict. {text}. Please check the input dict and checkout "
        f"PipelineServingLogs/pipeline.log for more details."
    )


def process_raised(op: str, error: BaseException, log_id: int) -> RequestError:
    """The error for what ``process`` raised; ours keep their class, texts are wrapped."""
    if isinstance(error, RequestError):
        return error.with_text(failed_to_predict(op, str(error)))
    _log.info("op %s: process raised (log_id=%s)", op, log_id, exc_info=error)
    if isinstance(error, CustomException):
        return declared_error(error, failed_to_predict(op, error.message))
    return HookFailed(failed_to_predict(op, _text_of(error)))


def process_gave_code(op: str, text: str, number: int) -> RequestError:
    """The error for a code that ``process`` returned: the number is the op's choice."""
    if number not in INT32:
        text = f"process gave the error code {number}, which is no int32"
        return HookFailed(failed_to_predict(op, text))
    return DeclaredError(number, failed_to_predict(op, text))


def process_gave(op: str, given: Any) -> RequestError:
    """The error for something that is no result of ``process``."""
    if given is None:
        return InferenceFailed(failed_to_predict(op, "process gave no result"))
    return WrongType(failed_to_predict(op, f"process must give a dict, got {instead(given)}"))


def cannot_be_cut(op: str, error: RequestError) -> RequestError:
    """The error of a batch whose result does not follow its rows."""
    if isinstance(error, InferenceFailed):
        return InferenceFailed(failed_to_predict(op, str(error)))
    return error


def timed_out(op: str, batch: Batch) -> OpTimeout:
    """The error of a batch whose ``process`` exceeded its limit on the last attempt."""
    return OpTimeout(
        failed_to_predict(
            op,
            f"(log_id={batch.samples[0].log_id}) [{op}|{batch.worker}] "
            f"Failed to process(batch: {batch.data_ids}): exceeded retry count.",
        )
    )


def not_a_feed(op: str, given: Any) -> WrongType:
    """The error for something of ``preprocess`` that ``process`` cannot be fed."""
    kind = type(given).__name__
    return WrongType(
        f"op {op!r}: preprocess must give a dict, or a list of dicts, to process; got {kind}"
    )


def hook_raised(op: Op, hook: str, sample: Sample, error: BaseException) -> RequestError:
    """The error for what a hook of one sample raised; ours are left as they are."""
    if isinstance(error, RequestError):
        return error
    _log.info(
        "op %s: %s raised (data_id=%s log_id=%s)",
        op.name,
        hook,
        sample.data_id,
        sample.log_id,
        exc_info=error,
    )
    if isinstance(error, CustomException):
        text = error.message.split(":")[0].split("\n")[0]
        return declared_error(error, _raise_message(op, hook, sample, text))
    return HookFailed(_raise_message(op, hook, sample, _text_of(error).replace("'", "")))


def _raise_message(op: Op, hook: str, sample: Sample, text: str) -> str:
    return (
        f"Log_id: {sample.log_id}  Raise_msg: {text}  "
        f"ClassName: {type(op).__qualname__}.{hook}  FunctionName: {hook}_help"
    )


def _text_of(error: BaseException) -> str:
    """What a hook's exception says; some cannot even say that."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything
        return type(error).__name__


def instead(given: Any) -> str:
    """What came where a dict was wanted, and what to do about it where that is known.

    A coroutine is closed, because nobody will await it.
    """
    kind = type(given).__name__
    if isinstance(given, CoroutineType):
        given.close()
        return f"{kind}: write async def where it is made, in a decorator's own function too"
    if isinstance(given, tuple) and len(given) == 3 and isinstance(given[1], Enum):
        member = f"{type(given[1]).__name__}.{given[1].name}"
        return f"{kind} whose error code is no int: give {member}.value"
    return kind
