"""How the requests of each op are batched: reads its options and its model, and runs the probe.

The process that opens an op's model decides: the engine, or the op's first worker process, whose
report has the decision.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from penstock.batching.decision import Batching, decide
from penstock.batching.joining import Joining
from penstock.batching.padding import Padding
from penstock.batching.probe import probe
from penstock.batching.rows import Hints, Rows, fixed_rows, read_hints
from penstock.batching.stack import signature
from penstock.config.resolve import OpOptions
from penstock.engine.sizing import Sizing
from penstock.errors import ModelError
from penstock.executors.probing import run_probe
from penstock.ops.hooks import overrides
from penstock.ops.op import Op
from penstock.ops.short import Model as ModelOp
from penstock.ops.short import inputs_from
from penstock.request import Feed
from penstock.runtimes.model import Model
from penstock.service.blueprint import is_measured
from penstock.service.signatures import signature_of
from penstock.tensor import TensorSpec


def batching_of(op: Op, options: OpOptions, model: Model | None) -> Batching:
    """Decide how an op's requests are batched; may run its model.

    Args:
        op: the op.
        options: its options as configured.
        model: its open model; None if it has none.

    Raises:
        ModelError: an option does not fit the model, or ``verify_batches: strict`` fails.
    """
    found = _without_model(op, options, model)
    if found is not None:
        return found
    assert model is not None
    try:
        hints = read_hints(*_specs(options, model))
        rows = fixed_rows(model.inputs, options.rows)
        if rows is not None:
            return _of_fixed(rows, op, options, model, hints)
        padding = _padding(options, model)
        if options.batch_size == 1 and (padding is None or padding.sizes is None):
            return Batching(by=None, why=_of_one(op))
        outcome = None
        if options.verify != "off":
            examples = [*op.examples, *map(_example, options.examples)]
            inputs, outputs, *_ = _specs(options, model)
            probing = probe(inputs, outputs, hints, padding, examples)
            outcome = run_probe(model, probing, options.verify_seconds)
        return decide(hints, outcome, options.verify, padding)
    except ValueError as error:
        raise ModelError(f"op {op.name!r}: {error}") from error


def batched(options: OpOptions, batching: Batching) -> OpOptions:
    """The options of an op whose requests are batched this way."""
    if batching.by is None:
        return replace(options, joining=None, batch_size=1, window=None, splits=False)
    by_rows = options.joining is not None and options.joining.by_rows
    joining = Joining(by_rows=by_rows, padding=batching.padding, rows=batching.rows)
    return replace(options, joining=joining if joining != Joining() else None)


def sizing_of(
    op: Op, options: OpOptions, feed_names: Sequence[str], *, fixed: bool
) -> Sizing | None:
    """How the op's samples are measured, if batches are counted in rows or padded.

    Args:
        op: the op.
        options: its options, those of ``batched``.
        feed_names: the inputs of its model; empty if it has none.
        fixed: whether these have a fixed number of rows.
    """
    joining = options.joining
    if joining is None or not (joining.by_rows or joining.padding) or not is_measured(op):
        return None
    if not (options.batch_size > 1 or fixed):
        return None
    renamed = None
    if feed_names and any(isinstance(each, ModelOp) for each in op.get_input_ops()):
        renamed = partial(inputs_from, tuple(feed_names))
    return Sizing(
        joining=joining,
        most=options.batch_size,
        splits=options.splits,
        shared=op.shared_outputs,
        fills=fixed,
        reads=isinstance(op, ModelOp),
        renamed=renamed,
    )


def batch_key_of(op: Op, options: OpOptions) -> Callable[[dict[str, Feed]], Hashable] | None:
    """The batching key, if the feed is the input itself: different shapes are queued separately,
    instead of sharing a batch that would run in parts.
    """
    if options.batch_size == 1 or overrides(op, "preprocess", Op) or len(op.get_input_ops()) > 1:
        return None
    joining = options.joining
    if joining is None or joining.rows is None:
        return lambda inputs: signature(next(iter(inputs.values())))

    def key(inputs: dict[str, Feed]) -> Hashable:
        layout = joining.layout(next(iter(inputs.values())))
        return ("alone", id(inputs)) if layout is None else layout.key

    return key


def _without_model(op: Op, options: OpOptions, model: Model | None) -> Batching | None:
    """The decision for an op that does not run a model of its own."""
    if options.batch_size == 1 and model is None:
        return Batching(by=None, why=_of_one(op))
    if options.executor.needs_socket:
        return Batching(by="requests", why="its workers get the requests of a batch as a list")
    if not op.joins_feeds:
        return Batching(by="requests", why="its function gets the requests of a batch as a list")
    if overrides(op, "process", Op):
        why = "process is code of its own"
    elif options.remote is not None:
        why = "its model is on another server"
    elif model is None:
        why = "it runs no model"
    else:
        return None
    return Batching(by="first axes", why=why, padding=_padding(options, model))


def _of_one(op: Op) -> str:
    return "its batch is 1" if op.one_at_a_time else f"its {op.word('batch_size')} is 1"


def _padding(options: OpOptions, model: Model | None) -> Padding | None:
    """The op's padding with the model's variable axes; None if it has none.

    Raises:
        ModelError: the declared axes do not match the model.
    """
    padding = None if options.joining is None else options.joining.padding
    if padding is None or model is None:
        return padding
    try:
        padding = padding.of_model(model.inputs, model.outputs)
    except ValueError as error:
        raise ModelError(f"op {options.name!r}: {error}") from error
    return padding if any(any(axes) for axes in (padding.inputs or {}).values()) else None


def _specs(options: OpOptions, model: Model) -> tuple[Any, Any, Any, Any, Any]:
    """The arguments of ``read_hints``."""
    found = signature_of(model)
    return found.inputs, found.outputs, options.rows, options.shared_outputs, model.outputs


def _example(file: str) -> Feed:
    try:
        arrays = np.load(Path(file), allow_pickle=False)
        if isinstance(arrays, np.ndarray):
            text = f"examples: {file} is one array, without the name of its input"
            raise ModelError(f"{text}: write a file .npz with numpy.savez")
        with arrays:
            return dict(arrays)
    except (OSError, ValueError) as error:
        raise ModelError(f"examples: {file} cannot be read: {error}") from error


def _of_fixed(rows: int, op: Op, options: OpOptions, model: Model, hints: Hints) -> Batching:
    """The decision for a model whose inputs have a fixed number of rows: it runs one request at a
    time, or with ``batch_rows`` one piece of a request, if its outputs have these rows too.

    Raises:
        ValueError: the configured ``batch_size`` is another one, and ``verify_batches`` is strict.
    """
    why = f"its model takes exactly {rows} row{'s' * (rows > 1)} a run"
    splits, most = _splits_and_most(rows, options)
    warning = None
    if options.batch_size not in (1, most) and not op.batch_gives_way:
        key = op.word("batch_size")
        warning = f"{key}: {options.batch_size} has no effect, since {why}: write {most}"
        if options.verify == "strict":
            raise ValueError(warning)
    if not splits or options.batch_size == 1 != rows:
        return Batching(by=None, why=why, warning=warning)
    outputs = signature_of(model).outputs
    if hints.declared and hints.likely is not None:
        return Batching(by="rows", why=why, rows=hints.likely, warning=warning)
    others = [
        each.alias
        for each in outputs
        if each.alias not in hints.shared and (each.shape or (None,))[0] != rows
    ]
    if others:
        text = f"{why}, and output {others[0]!r} does not have that number"
        return Batching(by=None, why=text, warning=f"its requests are not split: {text}")
    return Batching(
        by="rows",
        why=why,
        warning=warning,
        rows=Rows(
            inputs=_zeros(model.inputs),
            outputs=_zeros([each for each in outputs if each.alias not in hints.shared]),
            shared=hints.shared,
        ),
    )


def _zeros(specs: Sequence[Any]) -> dict[str, int | None]:
    return {name: 0 for each in specs for name in (each.name, each.alias)}


def sized(op: Op, options: OpOptions, inputs: Sequence[TensorSpec]) -> OpOptions:
    """The options with the ``batch_size`` of the op's model, if its inputs have a fixed number of
    rows.
    """
    rows = fixed_rows(inputs, options.rows)
    if rows is None or options.batch_size == 1 or overrides(op, "process", Op):
        return options
    _, most = _splits_and_most(rows, options)
    return replace(options, batch_size=most)


def _splits_and_most(rows: int, options: OpOptions) -> tuple[bool, int]:
    """Whether requests to a model with this number of rows run in pieces, and the ``batch_size``:
    the rows of a piece, or one request.
    """
    splits = options.joining is not None and options.joining.by_rows
    return splits, rows if splits else 1
