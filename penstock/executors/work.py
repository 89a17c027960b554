"""run_batch: the one path a batch takes through an op, whoever runs it.

    preprocess each sample -> group, stack -> process -> scatter -> postprocess each sample

Inline, in a thread and on the loop (coroutines) the same steps run; only who makes the ``process``
call differs, so the steps are a generator that asks for each call and is told its answer.

Guarantees: one Outcome per sample, in order; whatever a hook raises touches its own sample only;
a failed ``process`` call of several samples is split in halves until only the culprits fail
(at most 2*log2(n) + 1 calls for one culprit), unless the op opted out. Source:
``docs/compatibility.md`` (life of a batch, texts of errors).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.batching.minibatch import Call, explode
from penstock.batching.stack import scatter, stack
from penstock.errors import (
    Cancelled,
    DeadlineExceeded,
    HookFailed,
    InferenceFailed,
    OpTimeout,
    RequestError,
    WrongType,
)
from penstock.ops.channel_data import ChannelData
from penstock.ops.hooks import (
    Hooks,
    failed_to_predict,
    read_postprocess,
    read_preprocess,
    read_process,
)
from penstock.ops.op import Op
from penstock.ops.product import CustomException, declared_error
from penstock.request import Batch, Feed, Outcome, Sample
from penstock.runtimes.model import Model

_log = logging.getLogger(__name__)

Steps: TypeAlias = Generator[tuple[list[Feed], int], Feed | RequestError, list[Outcome]]
_monotonic = time.monotonic

_GONE = Cancelled("nobody waits for it any more")

# What a hook may raise without ending its worker. GeneratorExit and asyncio's CancelledError pass:
# they are not the hook's own doing.
HOOK_FAULTS = (Exception, SystemExit, KeyboardInterrupt)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """How an op's batches run.

    Attributes:
        isolate_errors: whether a failed batch is split to find the culprit.
        timeout: seconds for one ``process`` call; None means no limit.
        retry: attempts of ``process`` after a time-out.
    """

    isolate_errors: bool = True
    timeout: float | None = None
    retry: int = 1


class BoundOp:
    """A worker's own copy of an op, its hooks bound, its model at hand.

    Args:
        op: the op after its ``init_op``; copied shallowly.
        model: what the default ``process`` runs; None skips it.
        index: the worker's number within the op.
    """

    __slots__ = ("hooks", "index", "jumps", "model", "name", "op", "options", "runs")

    def __init__(self, op: Op, model: Model | None, options: WorkOptions, index: int = 0) -> None:
        self.op = copy(op)
        self.name = op.name
        self.hooks = Hooks(self.op)
        self.model = model
        self.options = options
        self.index = index
        self.runs = self.hooks.process is not None or model is not None
        self.jumps = op.is_jump_op()

    def call(self, feed_batch: list[Feed], log_id: int) -> Feed | RequestError:
        """One ``process`` call; every failure is a value."""
        try:
            if self.hooks.process is None:
                assert self.model is not None
                return self.model.run(feed_batch[0])
            return read_process(self.op, self.hooks.process(feed_batch, log_id))
        except HOOK_FAULTS as error:
            return self.process_failed(error, log_id)

    async def call_async(self, feed_batch: list[Feed], log_id: int) -> Feed | RequestError:
        """One ``process`` call of a coroutine hook; every failure is a value."""
        assert self.hooks.process is not None
        try:
            return read_process(self.op, await self.hooks.process(feed_batch, log_id))
        except HOOK_FAULTS as error:
            return self.process_failed(error, log_id)

    def process_failed(self, error: BaseException, log_id: int) -> RequestError:
        """The error for what ``process`` raised; ours keep their class, texts are wrapped."""
        if isinstance(error, RequestError):
            return error.with_text(failed_to_predict(self.name, str(error)))
        _log.info("op %s: process raised (log_id=%s)", self.name, log_id, exc_info=error)
        if isinstance(error, CustomException):
            return declared_error(error, failed_to_predict(self.name, error.message))
        return HookFailed(failed_to_predict(self.name, _text_of(error)))


def timed_out(op: str, batch: Batch) -> OpTimeout:
    """The error of a batch whose ``process`` exceeded its limit on the last attempt."""
    return OpTimeout(
        failed_to_predict(
            op,
            f"(log_id={batch.samples[0].log_id}) [{op}|{batch.worker}] "
            f"Failed to process(batch: {batch.data_ids}): exceeded retry count.",
        )
    )


def run_batch(op: BoundOp, batch: Batch, limit: float | None = None) -> list[Outcome]:
    """Run a batch in the calling thread. Raises nothing that a hook raised.

    Args:
        op: the worker's copy.
        batch: its samples.
        limit: seconds for one ``process`` call, judged afterwards; for workers that nobody watches
            meanwhile.
    """
    steps = batch_steps(op, batch)
    batch.worker = op.index
    began = _monotonic()
    try:
        feed_batch, log_id = next(steps)
        while True:
            batch.started = started = _monotonic()
            answer = op.call(feed_batch, log_id)
            batch.started = None
            if limit is not None and _monotonic() - started > limit:
                answer = timed_out(op.name, batch)
            feed_batch, log_id = steps.send(answer)
    except StopIteration as done:
        batch.ran = _monotonic() - began
        return done.value  # type: ignore[no-any-return]


def run_safely(op: BoundOp, batch: Batch, limit: float | None = None) -> list[Outcome]:
    """``run_batch`` for workers that must outlive whatever happens, our own mistakes included."""
    try:
        return run_batch(op, batch, limit)
    except BaseException:  # noqa: BLE001 - a worker that ends would take its slot along
        _log.exception("op %s: a batch failed inside penstock; please report this", op.name)
        return broken(batch)


def broken(batch: Batch) -> list[Outcome]:
    """Outcomes for a batch that ended without any."""
    batch.started = None
    return [
        Outcome(None, InferenceFailed("the batch ended without a result")) for _ in batch.samples
    ]


def batch_steps(op: BoundOp, batch: Batch) -> Steps:
    """The steps of one batch: yields ``(feed_batch, typical_logid)`` for each ``process`` call."""
    samples = batch.samples
    outcomes: list[Outcome | None] = [None] * len(samples)
    feeds: list[Any] = [None] * len(samples)
    results: list[Any] = [None] * len(samples)
    now = _monotonic()
    for i, sample in enumerate(samples):
        data, skip, error = _preprocess(op, sample, now)
        if error is not None:
            outcomes[i] = Outcome(None, error)
        elif skip or not op.runs:
            results[i] = data
        elif isinstance(data, dict):
            feeds[i] = data
        elif isinstance(data, list) and all(isinstance(piece, dict) for piece in data):
            feeds[i] = data
            results[i] = []
        else:
            outcomes[i] = Outcome(None, _not_a_feed(op, data))
    if len(samples) == 1 and type(feeds[0]) is dict:
        # Alone there is nothing to group, to stack or to cut apart.
        answer = yield [feeds[0]], samples[0].log_id
        if isinstance(answer, RequestError):
            outcomes[0] = Outcome(None, answer)
        else:
            results[0] = answer
    elif any(feed is not None for feed in feeds):
        for call in explode(feeds):
            yield from _run_call(op, samples, call, feeds, results, outcomes)
    for i, sample in enumerate(samples):
        if outcomes[i] is None:
            outcomes[i] = _postprocess(op, sample, results[i])
    finished: list[Outcome] = outcomes  # type: ignore[assignment]
    if op.jumps:
        _ask_to_jump(op, samples, finished)
    return finished


def _run_call(
    op: BoundOp,
    samples: Sequence[Sample],
    call: Call,
    feeds: list[Any],
    results: list[Any],
    outcomes: list[Outcome | None],
) -> Generator[tuple[list[Feed], int], Feed | RequestError, None]:
    """One planned call; its members' results or errors are filled in."""
    members = call.members
    if call.piece is not None:
        (member,) = members
        if samples[member].gone:
            outcomes[member] = Outcome(None, _GONE)
        if outcomes[member] is None:
            answer = yield [feeds[member][call.piece]], samples[member].log_id
            if isinstance(answer, RequestError):
                outcomes[member] = Outcome(None, answer)
            else:
                results[member].append(answer)
        return
    parts = yield from _run_members(op, samples, members, feeds)
    for member, part in zip(members, parts, strict=True):
        if isinstance(part, RequestError):
            outcomes[member] = Outcome(None, part)
        else:
            results[member] = part


def _run_members(
    op: BoundOp, samples: Sequence[Sample], members: tuple[int, ...], feeds: list[Any]
) -> Generator[tuple[list[Feed], int], Feed | RequestError, Sequence[Feed | RequestError]]:
    """Run these members together; on failure in halves, until only the culprits fail."""
    answer: Feed | RequestError
    rows: list[int] = []
    if all(samples[member].gone for member in members):
        return [_GONE] * len(members)
    if len(members) == 1:
        answer = yield [feeds[members[0]]], samples[members[0]].log_id
        return [answer]
    try:
        joined, rows = stack([feeds[member] for member in members])
    except RequestError as error:
        answer = error
    else:
        answer = yield [joined], samples[members[0]].log_id
        if isinstance(answer, dict):
            try:
                return scatter(answer, rows, op.op.shared_outputs)
            except RequestError as error:
                # Not one sample's fault: the op's output does not follow the batch.
                return [_renamed(error, failed_to_predict(op.name, str(error)))] * len(members)
    if isinstance(answer, OpTimeout) or not op.options.isolate_errors:
        return [answer] * len(members)
    half = len(members) // 2
    left = yield from _run_members(op, samples, members[:half], feeds)
    right = yield from _run_members(op, samples, members[half:], feeds)
    return [*left, *right]


def _preprocess(op: BoundOp, sample: Sample, now: float) -> tuple[Any, bool, RequestError | None]:
    if sample.gone:
        return None, False, _GONE
    if sample.deadline <= now:
        return None, False, DeadlineExceeded("the request's deadline passed before the op began")
    hook = op.hooks.preprocess
    if hook is None and len(sample.inputs) == 1:
        return next(iter(sample.inputs.values())), False, None
    try:
        return read_preprocess(
            op.op, (hook or op.op.preprocess)(sample.inputs, sample.data_id, sample.log_id)
        )
    except HOOK_FAULTS as error:
        return None, False, _hook_failed(op, "preprocess", sample, error)


def _postprocess(op: BoundOp, sample: Sample, result: Any) -> Outcome:
    hook = op.hooks.postprocess
    if hook is None:
        return Outcome(result if isinstance(result, dict) else {})
    try:
        value, error = read_postprocess(
            op.op, hook(sample.inputs, result, sample.data_id, sample.log_id)
        )
    except HOOK_FAULTS as fault:
        return Outcome(None, _hook_failed(op, "postprocess", sample, fault))
    return Outcome(value) if error is None else Outcome(None, error)


def _hook_failed(op: BoundOp, hook: str, sample: Sample, error: BaseException) -> RequestError:
    """The error for what a hook raised, in the words deployed clients know."""
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


def _raise_message(op: BoundOp, hook: str, sample: Sample, text: str) -> str:
    return (
        f"Log_id: {sample.log_id}  Raise_msg: {text}  "
        f"ClassName: {type(op.op).__qualname__}.{hook}  FunctionName: {hook}_help"
    )


def _text_of(error: BaseException) -> str:
    """What a hook's exception says; some cannot even say that."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything
        return type(error).__name__


def _not_a_feed(op: BoundOp, data: Any) -> WrongType:
    kind = type(data).__name__
    return WrongType(
        f"op {op.name!r}: preprocess must give a dict, or a list of dicts, to process; got {kind}"
    )


def _renamed(error: RequestError, text: str) -> RequestError:
    return InferenceFailed(text) if isinstance(error, InferenceFailed) else error


def _ask_to_jump(op: BoundOp, samples: Sequence[Sample], outcomes: list[Outcome]) -> None:
    """``check_jumping`` sees the whole batch and speaks for all of it."""
    data = {
        sample.data_id: ChannelData(outcome, sample.data_id, sample.log_id)
        for sample, outcome in zip(samples, outcomes, strict=True)
    }
    try:
        jump = bool(op.op.check_jumping(data))
    except HOOK_FAULTS as error:
        for i, sample in enumerate(samples):
            outcomes[i] = Outcome(None, _hook_failed(op, "check_jumping", sample, error))
        return
    for outcome in outcomes:
        outcome.jump = jump
