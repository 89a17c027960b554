"""Makes ops ready to run: their attributes, their ``init_op``, and a copy for each worker."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.config.resolve import OpOptions
from penstock.errors import StartupError
from penstock.executors.work import BoundOp
from penstock.ops.functions import plain_result
from penstock.ops.hooks import bind
from penstock.ops.op import Op
from penstock.runtimes.local_service import LocalPredictor
from penstock.runtimes.model import Model


def prepare(op: Op, options: OpOptions, model: Model | None) -> None:
    """Set what its ``init_op`` may use."""
    if model is not None:
        op.client = LocalPredictor(model)
    op.fetch_list = None if options.fetch_list is None else list(options.fetch_list)
    op.shared_outputs = options.shared_outputs  # type: ignore[misc]  # of this op, not of its class


def init(op: Op) -> None:
    """Run its ``init_op``.

    Raises:
        StartupError: with the original exception as its cause.
    """
    with _start_errors(op):
        plain_result(bind(op, "init_op")(), "init_op")


@contextmanager
def _start_errors(op: Op) -> Iterator[None]:
    try:
        yield
    except StartupError:
        raise
    except (Exception, SystemExit) as error:
        # Not its repr, which for an OSError lacks the file.
        what = "".join(traceback.format_exception_only(error)).strip()
        hook = op.hook_name("init_op")
        raise StartupError(f"op {op.name!r}: {hook} failed: {what}") from error


def bound_ops(op: Op, options: OpOptions, model: Model | None) -> list[BoundOp]:
    """A copy of the op for each worker in this process."""
    if not options.executor.opens_here:
        return []
    workers = [BoundOp(op, model, options)]
    for index in range(1, 1 if options.executor.one_worker else options.concurrency):
        own = None if model is None else model.clone()
        with _start_errors(op):  # each worker creates an object of a class
            bound = BoundOp(op, own, options, index)
        if own is not None:
            bound.op.client = LocalPredictor(own)
        workers.append(bound)
    return workers
