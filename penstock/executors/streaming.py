"""run_stream: runs one sample through an op whose ``process`` is a generator, piece by piece.

    preprocess -> next -> postprocess -> put -> next -> ... -> the end

Each piece is handled like the whole result of another op: ``postprocess`` makes the piece of the
answer. The op's time limit is that of one ``next``.

Guarantees: one Outcome at the end, after the last piece: its value is empty, or it has the error
that ended the stream; after the stream is cancelled there is no further ``next``, and the generator
is closed in every case.
"""

from __future__ import annotations

import logging
import time
from asyncio import CancelledError
from collections.abc import Callable
from typing import Any

from penstock.errors import Cancelled, RequestError
from penstock.executors.work import BoundOp, broken, postprocess, preprocess
from penstock.ops.failures import (
    HOOK_FAULTS,
    hook_raised,
    log_culprits,
    no_parts,
    process_raised,
    with_status,
)
from penstock.ops.hooks import read_process
from penstock.request import Batch, Feed, Outcome, Sample

_log = logging.getLogger(__name__)

_monotonic = time.monotonic
_CANCELLED = Cancelled("the request was cancelled")


def run_stream(op: BoundOp, batch: Batch) -> list[Outcome]:
    """Run a batch of one sample in the calling thread. Raises nothing, whatever happens."""
    try:
        (sample,) = batch.samples
        feed, skipped, error = _begin(op, batch, sample)
        if feed is not None:
            error = _send_pieces(op, batch, sample, feed)
        elif error is None:
            error = _send_one(op, sample, skipped, sample.stream.put)
        return _end(op, sample, error)
    except BaseException:  # noqa: BLE001 - a worker that ends would take its slot along
        _log.exception("op %s: a stream failed inside penstock; please report this", op.label)
        return broken(batch)
    finally:
        _ran(batch)


async def run_stream_async(op: BoundOp, batch: Batch) -> list[Outcome]:
    """The same for an async generator, on the loop; a cancellation of the task passes."""
    try:
        (sample,) = batch.samples
        feed, skipped, error = _begin(op, batch, sample)
        if feed is not None:
            error = await _send_pieces_async(op, batch, sample, feed)
        elif error is None:
            error = _send_one(op, sample, skipped, sample.stream.add)
        return _end(op, sample, error)
    finally:
        _ran(batch)


def _begin(
    op: BoundOp, batch: Batch, sample: Sample
) -> tuple[Feed | None, Any, RequestError | None]:
    """Run ``preprocess``; returns the input of ``process``, or None and the input of
    ``postprocess``, or the error.
    """
    batch.worker = op.index
    batch.began = began = _monotonic()
    feed, skipped, error = preprocess(op, sample, began)
    batch.prepared = _monotonic() - began
    if isinstance(feed, list):
        return None, None, no_parts(op.name)
    return feed, skipped, error


def _ran(batch: Batch) -> None:
    batch.started = None
    if batch.began is not None:
        batch.ran = _monotonic() - batch.began


def _end(op: BoundOp, sample: Sample, error: RequestError | None) -> list[Outcome]:
    if error is None:
        return [Outcome({})]
    if error is not _CANCELLED:
        log_culprits(op.label, [(sample, error)], op.options.process)
    return [Outcome(None, error)]


def _send_one(
    op: BoundOp, sample: Sample, skipped: Any, send: Callable[[Feed], bool]
) -> RequestError | None:
    """Send the one piece of a sample whose ``preprocess`` skips ``process``."""
    outcome = postprocess(op, sample, skipped)
    if outcome.error is None:
        try:
            send(outcome.value or {})
        except RequestError as error:
            return error
    return outcome.error


def _send_pieces(op: BoundOp, batch: Batch, sample: Sample, feed: Feed) -> RequestError | None:
    """Iterate over the generator; returns the error that has ended it, if any."""
    assert op.process is not None
    make, put = maker_of(op, sample), sample.stream.put
    pieces = None
    try:
        batch.started = _monotonic()
        pieces = op.process([feed], sample.log_id)
        while True:
            started = batch.started = _monotonic()
            given = next(pieces, _NO_MORE)
            batch.started = None
            batch.processed += _monotonic() - started
            if given is _NO_MORE:
                return None
            piece = make(given)
            if isinstance(piece, RequestError):
                return piece
            if not put(piece):
                return _CANCELLED
    except HOOK_FAULTS as error:
        return process_raised(op.name, with_status(op.op, error), sample.log_id, op.label)
    finally:
        batch.started = None
        if pieces is not None:
            try:
                pieces.close()
            except HOOK_FAULTS:
                _log.exception("op %s: closing its generator raised", op.label)


async def _send_pieces_async(
    op: BoundOp, batch: Batch, sample: Sample, feed: Feed
) -> RequestError | None:
    assert op.process is not None
    make, stream = maker_of(op, sample), sample.stream
    pieces = None
    try:
        pieces = op.process([feed], sample.log_id)
        while True:
            started = batch.started = _monotonic()
            given = await anext(pieces, _NO_MORE)
            batch.started = None
            batch.processed += _monotonic() - started
            if given is _NO_MORE:
                return None
            piece = make(given)
            if isinstance(piece, RequestError):
                return piece
            if not stream.add(piece) or (stream.is_full and not await stream.wait()):
                return _CANCELLED
    except (CancelledError, GeneratorExit):
        raise
    except HOOK_FAULTS as error:
        return process_raised(op.name, with_status(op.op, error), sample.log_id, op.label)
    finally:
        batch.started = None
        if pieces is not None:
            try:
                await pieces.aclose()
            except CancelledError:
                raise
            except HOOK_FAULTS:
                _log.exception("op %s: closing its generator raised", op.label)


def maker_of(op: BoundOp, sample: Sample) -> Callable[[Any], Feed | RequestError]:
    """What makes the pieces of the sample's answer of the values that are yielded; returns errors
    as values.
    """
    maker = op.op.piece_maker(sample.inputs)

    def of_op(given: Any) -> Feed | RequestError:
        result = read_process(op.op, given)
        if isinstance(result, RequestError):
            return result
        outcome = postprocess(op, sample, result)
        return outcome.value or {} if outcome.error is None else outcome.error

    def made(given: Any) -> Feed | RequestError:
        assert maker is not None
        try:
            return maker(given)
        except HOOK_FAULTS as fault:
            return hook_raised(op.op, "postprocess", sample, fault, label=op.label)

    return of_op if maker is None else made


_NO_MORE = object()
