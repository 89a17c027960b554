"""A worker process: opens its op, and runs it until the engine stops the worker or ends."""

from __future__ import annotations

import logging
import os
import resource
import socket
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from penstock.batching.decision import Batching
from penstock.config.resolve import OpOptions
from penstock.errors import ModelError, StartupError
from penstock.executors.executor import OpSource
from penstock.executors.probing import VERIFYING
from penstock.executors.processes.child import ProcessChild
from penstock.executors.work import BoundOp
from penstock.executors.workers.child import Child
from penstock.executors.workers.watchdog import resident_bytes
from penstock.executors.workers.worker import ANSWER_BYTES
from penstock.service.affinity import stay_on_cpus
from penstock.service.batches import batched, batching_of, sized
from penstock.service.blueprint import Blueprint, Deployment
from penstock.service.bound_ops import init, prepare
from penstock.service.door import most_in_flight
from penstock.service.external_store import store_options
from penstock.service.models import OPENING, card_of, open_model
from penstock.service.priority import in_background
from penstock.service.signatures import model_report
from penstock.typed.decoded import DECODED

_log = logging.getLogger(__name__)


def serve_op(
    deployment: Deployment,
    op: OpSource,
    index: int,
    channel: socket.socket,
    make: Callable[[socket.socket, int], Child] = ProcessChild,
) -> int:
    """Run worker ``index`` of an op until the engine stops it or ends.

    Args:
        deployment: has the op.
        op: as of ``Deployment.source_of``.
        index: the worker's number.
        channel: its link to the engine.
        make: makes its end of the link.

    Returns:
        The process's exit status.
    """
    _disable_core_files()
    channel.setblocking(True)
    try:
        return _serve(make(channel, ANSWER_BYTES), deployment, op, index)
    except ConnectionError:  # the engine has ended: the error cannot be reported
        return 0


class _EngineEnded(Exception):
    """Nobody waits for this worker any more."""


def _serve(child: Child, deployment: Deployment, source: OpSource, index: int) -> int:
    op = source.label

    def step(doing: str) -> None:
        try:
            child.step(doing)
        except ConnectionError as error:  # a hook may raise one too, which is an error
            raise _EngineEnded from error

    try:
        blueprint, at = deployment.find_op(source)
        options = blueprint.options[at]
        DECODED.share(most_in_flight(deployment.config) // options.concurrency)
        if options.executor.own_processes:
            stay_on_cpus(options, index)
        turn = deployment.engine_id.card(options.concurrency, index)
        # The versions with which the service started, or others that serve, go first.
        with nullcontext() if source.description is None else in_background():
            bound, batching, notes = _bound_op(
                blueprint, at, index, turn, step, label=op, decides=child.decides
            )
    except _EngineEnded:
        return 0
    except BaseException as error:  # noqa: BLE001 - the service gets any error
        # A model's error says all there is; the frames of a hook are the author's.
        shown = None if isinstance(error, ModelError) else error
        text = "" if shown else f": {error}"
        _log.error("op %s: worker %s cannot start%s", op, index, text, exc_info=shown)
        lines = traceback.format_exception_only(error)
        # Our own errors are complete, and are raised again with their class.
        child.failed(str(error) if isinstance(error, StartupError) else "".join(lines).strip())
        return 1
    fallback = None if bound.model is None else bound.model.fallback
    if index == 0:
        for note in notes:
            _log.warning("op %s: %s", op, note)
    elif fallback is not None:  # its GPU may differ from that of worker 0
        _log.warning("op %s: worker %s %s", op, index, fallback)
    child.ready(_loaded(bound, _card(blueprint, at, turn), batching))

    def decided(plain: dict[str, Any]) -> None:
        options = bound.options
        assert isinstance(options, OpOptions)
        padding = None if options.joining is None else options.joining.padding
        bound.run_by(batched(options, Batching.of_plain(plain, padding)))

    store = store_options(blueprint.config, blueprint.name)
    if store is not None and options.executor.elsewhere:
        from penstock.executors.external_store.worker import WorkerStore

        child.use_store(WorkerStore(store, op))
    child.serve(bound, blueprint.outside_reader(at), decided)
    bound.close()
    return 0


def _bound_op(
    blueprint: Blueprint,
    at: int,
    index: int,
    turn: int,
    step: Callable[[str], None],
    *,
    label: str,
    decides: bool,
) -> tuple[BoundOp, Batching | None, tuple[str, ...]]:
    """A worker process's op, with its model open and ``init_op`` finished; how its requests are
    batched; and notes for the operator.

    Args:
        blueprint: its graph.
        at: the op's index.
        index: the worker's number.
        turn: the worker's number among those of all engines, as of ``EngineId.card``.
        step: called with a text at the begin of each step.
        label: the op's label.
        decides: whether this worker decides how requests are batched; otherwise it will be told.

    Raises:
        StartupError: with the original exception as its cause.
    """
    op, options = blueprint.graph.ops[at], blueprint.options[at]
    entry = blueprint.config.op.get(op.name)
    step(OPENING)
    model = open_model(op, options, entry, turn, alone=True)
    options = replace(options, label=label)
    batching = None
    notes = () if model is None else model.notes
    if decides:
        step(VERIFYING)
        batching = batching_of(op, options, model)
        notes = (*notes, *([batching.warning] if batching.warning else []))
    options = sized(op, options, () if model is None else model.inputs)
    if batching is not None:
        options = batched(options, batching)
    prepare(op, options, model)
    op.concurrency_idx = index
    step(f"its {op.hook_name('init_op')} runs")
    init(op)
    return BoundOp(op, model, options, index), batching, notes


def _loaded(op: BoundOp, card: str | None, batching: Batching | None) -> dict[str, Any]:
    """A report of what this worker has loaded, for the engine and the status."""
    model = op.model
    return {
        "pid": os.getpid(),
        "model": model and model_report(model),
        "device": None if model is None or model.fallback else card and f"gpu {card}",
        "memory": resident_bytes(os.getpid()) or 0,
        **({} if batching is None else {"batching": batching.plain()}),
    }


def _card(blueprint: Blueprint, at: int, turn: int) -> str | None:
    """The GPU of the worker with this turn, if any."""
    op, options = blueprint.graph.ops[at], blueprint.options[at]
    return card_of(op, options, blueprint.config.op.get(op.name), turn)


def _disable_core_files() -> None:
    """Disable core files, which would contain users' data; crash reports have the Python stacks."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    # One byte is too small for a core file; core handlers only obey a limit above zero.
    resource.setrlimit(resource.RLIMIT_CORE, (1 if most else 0, most))
