"""run_batch: runs a batch through an op's hooks; the same code in every kind of worker.

    preprocess each sample -> group, stack -> process -> scatter -> postprocess each sample

Inline, in threads, in processes and on the loop (coroutines) the steps are the same; only the
caller of ``process`` differs. So ``begin`` and ``end`` are functions, and ``calls``, between them,
is a generator that yields each call to be made and is sent its result.

Guarantees: one Outcome per sample, in order; an exception in ``preprocess`` or ``postprocess``
fails its own sample only; when ``process`` fails for several samples, they are run again in halves
until only the samples that cause the error fail (``isolate_errors``). One failing sample of n costs
at most 2*log2(n) + 1 calls; n of n cost 2*n - 1 calls.

Source: ``docs/compatibility.md`` (life of a batch).
"""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio import CancelledError
from collections.abc import Awaitable, Generator, Sequence
from copy import copy
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, TypeAlias

from penstock.batching.dispatch import HAND_OVER_BUDGET
from penstock.batching.joining import Joined, Joining, Layout
from penstock.batching.minibatch import in_turn, plan_calls
from penstock.batching.stack import concatenated, scatter, stack
from penstock.client.remote_options import RemoteOptions
from penstock.errors import (
    Cancelled,
    DeadlineExceeded,
    InferenceFailed,
    InputMismatch,
    OpTimeout,
    RequestError,
    ServiceBusy,
    Unreachable,
    WrongCount,
)
from penstock.ops.channel_data import ChannelData
from penstock.ops.failures import (
    HOOK_FAULTS,
    batch_failed,
    hook_raised,
    hook_raised_for,
    log_culprits,
    log_fault,
    not_a_feed,
    not_the_callers,
    process_raised,
    timed_out,
    with_status,
)
from penstock.ops.functions import is_coroutine, plain_result
from penstock.ops.hooks import (
    HookWithCaller,
    own_hook,
    read_postprocess,
    read_preprocess,
    read_process,
)
from penstock.ops.op import Op
from penstock.ops.short import Model as ModelOp
from penstock.request import Batch, Feed, Outcome, Sample
from penstock.runtimes.model import Model

_log = logging.getLogger(__name__)

Asked: TypeAlias = tuple[list[Feed], int]
"""A ``process`` call to be made: ``(feed_batch, typical_logid)``."""
Answer: TypeAlias = Feed | RequestError

_monotonic = time.monotonic

_OF_NO_SAMPLE = (OpTimeout, DeadlineExceeded, ServiceBusy, Unreachable, WrongCount)
"""Errors that no sample causes: running halves would only repeat the work, or hide the error."""

_CANCELLED = Cancelled("the request was cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """How an op's batches run.

    Attributes:
        isolate_errors: whether a failed batch is split to find the samples that fail.
        timeout: seconds for one ``process`` call; None means no limit.
        retry: attempts of ``process`` after a timeout.
        retry_on_crash: whether the requests of a batch whose worker died run once more, one by one.
        process: the name of that hook in the log, see ``Op.hook_name``.
        join: that of ``join``.
        label: the op's name in the log, with its service's if there are several; None: its name.
        remote: the model that the default ``process`` calls; None is the op's own model, if any.
        joining: how feeds are joined; None: with ``penstock.batching.stack`` only.
        batch_size: the most requests, or with ``batch_rows`` the most rows, of one call.
        seats: the most requests that a worker runs at once, for an op with seats; None for others.
        hand_over: the most seconds of predicted work in one hand-over of several batches. After
            twice as many the worker begins no further batch: the prediction was wrong, and others
            wait for the worker or for the results.
    """

    isolate_errors: bool = True
    timeout: float | None = None
    retry: int = 1
    retry_on_crash: bool = False
    process: str = "process"
    join: str = "join"
    label: str | None = None
    remote: RemoteOptions | None = None
    joining: Joining | None = None
    batch_size: int = 1
    seats: int | None = None
    hand_over: float = HAND_OVER_BUDGET


class BoundOp:
    """A worker's copy of an op, with its bound hooks and its model.

    Args:
        op: the op after its ``init_op``; copied shallowly.
        model: the model that the default ``process`` runs; None skips it.
        index: the worker's number within the op.

    Attributes:
        label: the op's name in the log.
        runs: whether the op overrides ``process``, or has seats, or a model, local or remote.
        after_model: whether it is a model that takes the outputs of another model unchanged.
        fed_as_it_is: whether ``process`` gets the op's input unchanged, without a ``preprocess``.
        joining: that of the options.
        alters: whether even a feed that runs alone may be padded.
        streams: whether ``process`` is a generator, whose answers come in pieces.
        seat_hooks: the methods of an op with seats, in the place of ``process``; None for others.
    """

    def __init__(self, op: Op, model: Model | None, options: WorkOptions, index: int = 0) -> None:
        self.op = copy(op)
        self.name = op.name
        self.label = options.label or op.name
        self.preprocess = own_hook(self.op, "preprocess")
        self.process = own_hook(self.op, "process")
        self.postprocess = own_hook(self.op, "postprocess")
        self.model = model
        self.options = options
        self.joining = options.joining
        self.index = index
        ways = self.process, model, options.remote, self.op.seat_hooks
        self.runs = any(each is not None for each in ways)
        self.fed_as_it_is = self.runs and self.preprocess is None
        self.jumps = op.is_jump_op()
        self.streams = op.streams
        self.seat_hooks = self.op.seat_hooks
        self.after_model = type(op) is ModelOp and any(
            type(each) is ModelOp for each in op.get_input_ops()
        )
        self.alters = options.joining is not None and options.joining.alters

    def run_by(self, options: WorkOptions) -> None:
        """Change the options, before the first batch; for a worker that opened the op before it was
        known how requests are batched.
        """
        self.options, self.joining = options, options.joining
        self.alters = options.joining is not None and options.joining.alters

    @property
    def closes_on_loop(self) -> bool:
        """Whether ``close`` is a coroutine, which belongs to the loop of a coroutine op."""
        return self.op.closes and is_coroutine(self.op.hook_function("close"))

    def close(self) -> None:
        """Run the op's ``close``, if it has one, in a thread without an event loop; errors are
        logged.
        """
        if self.op.closes:
            try:
                closing = self.op.close()
                if isawaitable(closing):
                    asyncio.run(_waited_for(closing))
            except HOOK_FAULTS:
                _log.exception("op %s: close raised", self.label)

    async def call_async(self, feed_batch: list[Feed], log_id: int) -> Answer:
        """One ``process`` call of a coroutine hook; returns its failures as values."""
        assert self.process is not None
        try:
            return read_process(self.op, await self.process(feed_batch, log_id))
        except (CancelledError, GeneratorExit):
            raise
        except HOOK_FAULTS as error:
            return process_raised(self.name, with_status(self.op, error), log_id, self.label)


async def _waited_for(closing: Awaitable[Any]) -> None:
    await closing


class Member:
    """The state of one sample while its batch runs.

    Attributes:
        sample: the sample.
        feed: the input of ``process``: a dict, or a list of dicts; None when it does not run.
        result: the input of ``postprocess``.
        error: its error, or None.
    """

    __slots__ = ("error", "feed", "result", "sample")

    def __init__(
        self, sample: Sample, feed: Any, result: Any = None, error: RequestError | None = None
    ) -> None:
        self.sample = sample
        self.feed = feed
        self.result = result
        self.error = error

    def take(self, answer: Answer) -> None:
        """Store the result of ``process``."""
        if isinstance(answer, RequestError):
            self.error = answer
        else:
            self.result = answer


def run_batch(op: BoundOp, batch: Batch, limit: float | None = None) -> list[Outcome]:
    """Run a batch in the calling thread. Raises nothing, whatever happens.

    Args:
        op: the worker's copy.
        batch: its samples.
        limit: seconds for one ``process`` call, checked afterwards; for workers that cannot be
            watched meanwhile.
    """
    batch.worker = op.index
    began = batch.began = _monotonic()
    try:
        samples = batch.samples
        if len(samples) > 1 or op.jumps or op.alters:
            members = begin(op, samples, began)
            _make_calls(op, batch, members, limit, began)
            return end(op, members)
        # A single sample: nothing to group, stack or split.
        (sample,) = samples
        inputs = sample.inputs
        result: Any = None
        error: RequestError | None = None
        if op.fed_as_it_is and len(inputs) == 1 and not sample.gone and sample.deadline > began:
            (feed,) = inputs.values()
        else:
            feed, result, error = preprocess(op, sample, began)
        if type(feed) is dict:
            if op.preprocess is None:
                batch.started = began
            else:
                batch.started = _monotonic()
                batch.prepared = batch.started - began
            answer = _call(op, batch, [feed], sample.log_id, limit)
            if isinstance(answer, RequestError):
                error = answer
            else:
                result = answer
        elif feed is not None:
            member = Member(sample, feed, result)
            _make_calls(op, batch, [member], limit, began)
            result, error = member.result, member.error
        if error is not None:
            log_culprits(op.label, [(sample, error)], op.options.process)
            return [Outcome(None, error)]
        if op.postprocess is None and type(result) is dict:
            return [Outcome(result)]
        return [postprocess(op, sample, result)]
    except BaseException:  # noqa: BLE001 - a worker that ends would take its slot along
        _log.exception("op %s: a batch failed inside penstock; please report this", op.label)
        return broken(batch)
    finally:
        batch.ran = _monotonic() - began


def _make_calls(
    op: BoundOp, batch: Batch, members: Sequence[Member], limit: float | None, began: float
) -> None:
    steps = calls(op, members)
    arguments = next(steps, None)
    batch.prepared = _monotonic() - began
    while arguments is not None:
        batch.started = _monotonic()
        answer = _call(op, batch, *arguments, limit)
        try:
            arguments = steps.send(answer)
        except StopIteration:
            arguments = None


def _call(
    op: BoundOp, batch: Batch, feed_batch: list[Feed], log_id: int, limit: float | None
) -> Answer:
    """Make one ``process`` call, with its start set in the batch meanwhile; returns failures as
    values.
    """
    process = op.process
    answer: Answer
    try:
        if process is None:
            assert op.model is not None
            answer = op.model.run(feed_batch[0])
        else:
            answer = process(feed_batch, log_id)
            if type(answer) is not dict:
                answer = read_process(op.op, answer)
    except HOOK_FAULTS as error:
        answer = process_raised(op.name, with_status(op.op, error), log_id, op.label)
        if op.after_model and isinstance(answer, InputMismatch):
            answer = not_the_callers(answer)
    assert batch.started is not None
    took = _monotonic() - batch.started
    batch.processed += took
    if limit is not None and took > limit:
        answer = timed_out(op.name, batch, limit, op.options.retry)
    batch.started = None
    return answer


def broken(batch: Batch) -> list[Outcome]:
    """The outcomes of a batch that failed by a bug of Penstock."""
    batch.started = None
    return [
        Outcome(None, InferenceFailed("the batch ended without a result")) for _ in batch.samples
    ]


def begin(op: BoundOp, samples: Sequence[Sample], now: float) -> list[Member]:
    """The first step of a batch: ``preprocess`` each sample.

    Args:
        op: the worker's copy.
        samples: at least one.
        now: monotonic seconds; samples whose deadline has passed run no hook.
    """
    return [Member(sample, *preprocess(op, sample, now)) for sample in samples]


def calls(op: BoundOp, members: Sequence[Member]) -> Generator[Asked, Answer, None]:
    """The second step: yields every ``process`` call that the members need, one after the other."""
    single = [member for member in members if isinstance(member.feed, dict)]
    lists = [member for member in members if isinstance(member.feed, list)]
    if op.joining is None or op.joining.rows is None:
        yield from _run_all(op, single)
        for member in lists:
            yield from _run_in_order(op, member)
        return
    parts = [[Member(member.sample, piece) for piece in member.feed] for member in lists]
    yield from _run_all(op, single)
    pieces = [piece for each in parts for piece in each]
    for part in in_turn([_size(op.joining, piece.feed) for piece in pieces], op.options.batch_size):
        yield from _run_all(op, pieces[part])
    for member, each in zip(lists, parts, strict=True):
        member.error = next((piece.error for piece in each if piece.error is not None), None)
        member.result = [piece.result for piece in each]


def _run_all(op: BoundOp, members: Sequence[Member]) -> Generator[Asked, Answer, None]:
    """Run feeds in as few calls as can join them."""
    if members:
        feeds = [member.feed for member in members]
        for call in plan_calls(feeds, op.joining, joined=op.op.joins_feeds):
            joined = [members[each] for each in call.members]
            yield from _run_together(op, joined, call.rows, call.layouts)


def _run_in_order(op: BoundOp, member: Member) -> Generator[Asked, Answer, None]:
    """Run the feeds of a mini-batch one by one, until one fails."""
    for feed in member.feed:
        if member.sample.gone:
            member.error = _CANCELLED
        if member.error is not None:
            return
        answer = yield [feed], member.sample.log_id
        if isinstance(answer, RequestError):
            member.error = answer
        else:
            member.result.append(answer)


def _size(joining: Joining, feed: Feed) -> int:
    """What a feed counts for in the batch."""
    layout = joining.layout(feed) if joining.by_rows else None
    return 1 if layout is None else layout.rows


def end(op: BoundOp, members: Sequence[Member]) -> list[Outcome]:
    """The last step: ``postprocess`` each sample that has not failed, and call
    ``check_jumping``.
    """
    failed = [(each.sample, each.error) for each in members if each.error is not None]
    if failed:
        log_culprits(op.label, failed, op.options.process)
    outcomes = [
        postprocess(op, each.sample, each.result)
        if each.error is None
        else Outcome(None, each.error)
        for each in members
    ]
    if op.jumps:
        _ask_to_jump(op, members, outcomes)
    return outcomes


def _run_together(
    op: BoundOp,
    members: Sequence[Member],
    rows: list[int] | None,
    layouts: list[Layout | None] | None,
) -> Generator[Asked, Answer, None]:
    """Run these members in one call; on failure in halves, until only the cause of the error
    fails.
    """
    answer: Answer
    if all(member.sample.gone for member in members):
        _fail(members, _CANCELLED)
        return
    if len(members) == 1 and not op.alters:
        members[0].take((yield [members[0].feed], members[0].sample.log_id))
        return
    feeds = [member.feed for member in members]
    joined: Joined | None = None
    try:
        if rows is not None:
            joined = Joined(concatenated(feeds), rows, {})
        elif op.op.joins_feeds:
            joined = op.joining.stack(feeds, layouts) if op.joining else Joined(*stack(feeds), {})
    except RequestError as error:
        answer = batch_failed(op.name, error)
    else:
        answer = yield [joined.feed] if joined else feeds, members[0].sample.log_id
        if isinstance(answer, dict):
            try:
                parts = _parts(op, answer, joined, feeds)
            except RequestError as error:
                # Not caused by a sample: an output has a wrong number of rows.
                _fail(members, batch_failed(op.name, error))
                return
            for member, part in zip(members, parts, strict=True):
                member.result = part
            return
    if len(members) == 1 or isinstance(answer, _OF_NO_SAMPLE) or not op.options.isolate_errors:
        _fail(members, answer)
        return
    answer.forget_origin()  # not logged: its samples run again
    half = len(members) // 2
    for those in (slice(0, half), slice(half, len(members))):
        yield from _run_together(
            op,
            members[those],
            None if rows is None else rows[those],
            None if layouts is None else layouts[those],
        )


def _parts(op: BoundOp, result: Feed, joined: Joined | None, feeds: list[Feed]) -> list[Feed]:
    """Each member's part of the result."""
    shared = op.op.shared_outputs
    if joined is None:
        return scatter(result, [1] * len(feeds), shared)
    if op.joining is None:
        return scatter(result, joined.rows, shared)
    return op.joining.scatter(result, joined, feeds, shared)


def _fail(members: Sequence[Member], error: RequestError) -> None:
    for member in members:
        member.error = error


def preprocess(op: BoundOp, sample: Sample, now: float) -> tuple[Any, Any, RequestError | None]:
    """The ``feed``, ``result`` and ``error`` of a Member."""
    if sample.gone:
        return None, None, _CANCELLED
    if sample.deadline <= now:
        late = DeadlineExceeded("the request's deadline passed before the op began")
        return None, None, late
    inputs = sample.inputs
    hook = op.preprocess
    data: Any
    skip = False
    if hook is None and len(inputs) == 1:
        (data,) = inputs.values()
    else:
        try:
            if type(hook) is HookWithCaller:
                given = hook(inputs, sample.data_id, sample.log_id, caller=sample.caller)
            else:
                given = (hook or op.op.preprocess)(inputs, sample.data_id, sample.log_id)
            if type(given) is dict and op.runs:
                return given, None, None  # as most do
            data, skip, error = read_preprocess(op.op, given)
            if error is not None:
                log_fault(op.label, op.op.hook_name("preprocess"), sample, error)
        except HOOK_FAULTS as fault:
            error = hook_raised(op.op, "preprocess", sample, fault, label=op.label)
        if error is not None:
            return None, None, error
    if skip or not op.runs:
        return None, data, None
    if isinstance(data, dict):
        return data, None, None
    if isinstance(data, list) and all(isinstance(piece, dict) for piece in data):
        return data, [], None
    error = not_a_feed(op.name, data)
    log_fault(op.label, op.op.hook_name("preprocess"), sample, error)
    return None, None, error


def postprocess(op: BoundOp, sample: Sample, result: Any) -> Outcome:
    """The outcome of a sample from what ``process`` has returned for it."""
    hook = op.postprocess
    if hook is None:
        return Outcome(result if isinstance(result, dict) else {})
    try:
        arguments = sample.inputs, result, sample.data_id, sample.log_id
        if type(hook) is HookWithCaller:
            given = hook(*arguments, caller=sample.caller)
        else:
            given = hook(*arguments)
        value, error = read_postprocess(op.op, given)
    except HOOK_FAULTS as fault:
        return Outcome(
            None, hook_raised(op.op, "postprocess", sample, fault, result, label=op.label)
        )
    if error is None:
        return Outcome(value)
    log_fault(op.label, op.op.hook_name("postprocess"), sample, error)
    return Outcome(None, error)


def _ask_to_jump(op: BoundOp, members: Sequence[Member], outcomes: list[Outcome]) -> None:
    """Set ``jump`` of all successful outcomes, as returned by ``check_jumping``."""
    good = [at for at, outcome in enumerate(outcomes) if outcome.error is None]
    if not good:
        return
    samples = [members[at].sample for at in good]
    data = {
        sample.data_id: ChannelData(outcomes[at], sample.data_id, sample.log_id)
        for at, sample in zip(good, samples, strict=True)
    }
    try:
        jump = bool(plain_result(op.op.check_jumping(data), "check_jumping"))
    except HOOK_FAULTS as error:
        errors = hook_raised_for(op.op, "check_jumping", samples, error, label=op.label)
        for at, each in zip(good, errors, strict=True):
            outcomes[at] = Outcome(None, each)
        return
    for at in good:
        outcomes[at].jump = jump
