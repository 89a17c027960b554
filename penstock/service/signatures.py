"""What the models of a graph take and give, and whether one can run on the outputs of another.

A model is open in this process, or its workers report its signature once they have started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from penstock.engine.graph import ServedGraph
from penstock.errors import ModelError
from penstock.executors.executor import Executor
from penstock.graph.dag import REQUEST
from penstock.ops.ensemble import SEPARATOR, Ensemble, Selection
from penstock.ops.hooks import overrides
from penstock.ops.op import Op
from penstock.ops.short import Model as ModelOp
from penstock.ops.short import sources_of
from penstock.runtimes.model import Model
from penstock.runtimes.model_input import can_take, described_tensor
from penstock.service.blueprint import Blueprint
from penstock.tensor import Signature, TensorSpec, described, specs_of

_SHOWN: Final = 8  # inputs, or outputs, of a model
_SHOWN_LENGTH: Final = 64  # of their names


def signature_of(model: Model) -> Signature:
    """The model's inputs, and its fetched outputs."""
    fetched = {*model.fetch_names}
    outputs = tuple(each for each in model.outputs if fetched & {each.alias, each.name})
    return Signature(inputs=model.inputs, outputs=outputs)


def model_report(model: Model) -> dict[str, Any]:
    """A model's runtime and signature, as plain values."""
    return {"runtime": model.runtime, **described(signature_of(model))}


class Signatures:
    """The signatures of one graph's models.

    Args:
        blueprint: of the graph.
        models: each op's; None for an op without one, and for one of another process.
    """

    def __init__(self, blueprint: Blueprint, models: Sequence[Model | None]) -> None:
        self._blueprint = blueprint
        self._ops = blueprint.graph.ops
        self._models = models

    def check(self) -> None:
        """Check that each model after another can run on the other's outputs, as far as both are
        open in this process.

        Raises:
            ModelError: it cannot, so that every request would fail.
        """
        self._check([*map(_of_edges, self._models)])

    def check_started(self, graph: ServedGraph) -> None:
        """The same check, with the models that the workers of a started graph have opened.

        Raises:
            ModelError: a model cannot run on the outputs of the one before it.
        """
        found = [*map(_of_edges, self._models)]
        for index, stage in enumerate(graph.stages):
            loaded = _loaded_by_workers(stage.executor)
            if loaded is not None:
                outputs = {each.alias: each for each in specs_of(loaded["outputs"])}
                names = self._blueprint.options[index].fetch_list or (*outputs,)
                if outputs.keys() >= {*names}:  # else by their names inside the model
                    found[index] = Signature(
                        inputs=specs_of(loaded["inputs"]), outputs=[outputs[name] for name in names]
                    )
        self._check(found)

    def of_graph(self, graph: ServedGraph) -> Signature | None:
        """The declared signature; else the inputs of the models that read the request, and the
        outputs of the last op's model.
        """
        if self._blueprint.signature is not None:
            return self._blueprint.signature
        plan = graph.plan
        inputs: dict[str, TensorSpec] = {}
        for index in plan.entry:
            found = self._of_op(index, graph.stages[index].executor)
            if found is None:
                return None
            inputs |= {each.alias: each for each in found.inputs}
        return Signature(inputs=tuple(inputs.values()), outputs=self._outputs(graph, plan.last))

    def inputs(self, index: int, executor: Executor) -> Sequence[TensorSpec]:
        """The inputs of an op's model; none if they are unknown."""
        found = self._of_model(index, executor)
        return () if found is None else found.inputs

    def of_op(self, name: str, graph: ServedGraph) -> Signature | None:
        """The signature of the model of a started graph's op; None if it is unknown."""
        index = self._blueprint.graph.plan.names.index(name)
        return self._of_model(index, graph.stages[index].executor)

    def lines(self, graph: ServedGraph) -> Iterator[tuple[str, str]]:
        """Each op with a model, and a text with the model's runtime, inputs and outputs; of an
        ensemble of a repository those of the whole.
        """
        given = self._blueprint.signature
        if given is not None and "ensemble_scheduling" in (self._blueprint.configuration or {}):
            about = f"{_shown(given.inputs)} -> {_shown(given.outputs)}"
            yield self._blueprint.called, f"version {self._blueprint.version}, ensemble: {about}"
            return
        for op, options, model, stage in zip(
            self._ops, self._blueprint.options, self._models, graph.stages, strict=True
        ):
            version = options.model_version or self._blueprint.version
            report = model_report(model) if model else _loaded_by_workers(stage.executor)
            if report:
                takes, gives = (_shown(specs_of(report[side])) for side in ("inputs", "outputs"))
                yield op.name, f"version {version}, {report['runtime']}: {takes} -> {gives}"

    def _check(self, signatures: Sequence[Signature | None]) -> None:
        """Check each model after another.

        Args:
            signatures: those of each op's model; None for those that are unknown.
        """
        inputs = self._blueprint.graph.plan.inputs
        for op, model, indexes in zip(self._ops, signatures, inputs, strict=True):
            if isinstance(op, Selection):
                selected = self._selected(op, signatures)
                if op is self._ops[self._blueprint.graph.plan.last]:
                    _check_declared(self._blueprint.signature, selected)
            for index in indexes:
                if index == REQUEST:
                    continue
                source, before = self._ops[index], signatures[index]
                if model is not None and isinstance(source, Selection):
                    _check_selected(op.name, model.inputs, self._selected(source, signatures))
                if model is None or before is None or not type(op) is type(source) is ModelOp:
                    continue
                _check_edge(op.name, model.inputs, source.name, before.outputs)

    def _selected(
        self, op: Selection, signatures: Sequence[Signature | None]
    ) -> dict[str, TensorSpec | None]:
        """What an op selects; None for what is unknown.

        Raises:
            ModelError: the op that is to have it has not.
        """
        declared, names = self._blueprint.signature, self._blueprint.graph.plan.names
        found: dict[str, TensorSpec | None] = {}
        for tensor, (name, there) in op.sources.items():
            if name not in names:  # the request
                found[tensor] = None if declared is None else declared.input_specs.get(there)
                continue
            index = names.index(name)
            source, before = self._ops[index], signatures[index]
            given: Mapping[str, TensorSpec | None] | None = None
            if isinstance(source, Selection):
                given = self._selected(source, signatures)
            elif before is not None:
                given = before.output_specs
            if given is not None and there not in given:
                raise ModelError(f"op {name!r} has no output {there!r}, only {[*given]}")
            found[tensor] = None if given is None else given[there]
        return found

    def _outputs(self, graph: ServedGraph, index: int) -> tuple[TensorSpec, ...]:
        if isinstance(self._ops[index], Ensemble):
            plan = graph.plan
            return tuple(
                replace(each, alias=f"{plan.names[engine]}{SEPARATOR}{each.alias}")
                for engine in plan.inputs[index]
                for each in self._outputs(graph, engine)
            )
        found = self._of_op(index, graph.stages[index].executor)
        return () if found is None else found.outputs

    def _of_op(self, index: int, executor: Executor) -> Signature | None:
        """The signature of an op's model, if the op passes its input unchanged."""
        op = self._ops[index]
        base = ModelOp if isinstance(op, ModelOp) else Op
        if any(overrides(op, hook, base) for hook in ("preprocess", "process", "postprocess")):
            return None
        return self._of_model(index, executor)

    def _of_model(self, index: int, executor: Executor) -> Signature | None:
        """The signature of an op's model."""
        model = self._models[index]
        if model is not None:
            return signature_of(model)
        loaded = _loaded_by_workers(executor)
        if loaded is None:
            return None
        return Signature(inputs=specs_of(loaded["inputs"]), outputs=specs_of(loaded["outputs"]))


def _of_edges(model: Model | None) -> Signature | None:
    """The model's inputs, and its outputs under the names that the next op gets."""
    return None if model is None else Signature(inputs=model.inputs, outputs=model.fetched)


def _check_edge(
    op: str, inputs: Sequence[TensorSpec], source: str, outputs: Sequence[TensorSpec]
) -> None:
    names = [each.alias for each in inputs]
    given = {each.alias: each for each in outputs}
    sources = sources_of(names, given)
    if sources is None:
        raise ModelError(
            f"op {op!r}: its model takes {names}, and op {source!r} before it gives {[*given]}:"
            f" choose its outputs with fetch_list, or put a function between them"
        )
    for wanted in inputs:
        output = given[sources[wanted.alias]]
        if not can_take(wanted, output):
            raise ModelError(
                f"op {op!r}: its model's input {_shown([wanted])} can never take the output"
                f" {_shown([output])} of op {source!r} before it: put a function between them, or"
                f" another model"
            )


def _check_selected(
    op: str, inputs: Sequence[TensorSpec], given: Mapping[str, TensorSpec | None]
) -> None:
    names = [each.alias for each in inputs]
    if {*names} != given.keys():
        raise ModelError(f"op {op!r}: its model takes {names}, and gets {[*given]}")
    for wanted in inputs:
        tensor = given[wanted.alias]
        if tensor is not None and not can_take(wanted, tensor):
            raise ModelError(
                f"op {op!r}: its model's input {_shown([wanted])} can never take {_shown([tensor])}"
            )


def _check_declared(declared: Signature | None, given: Mapping[str, TensorSpec | None]) -> None:
    for wanted in () if declared is None else declared.outputs:
        tensor = given.get(wanted.alias)
        if tensor is not None and not can_take(wanted, tensor):
            raise ModelError(f"output {_shown([wanted])} is declared, and {_shown([tensor])} made")


def _loaded_by_workers(executor: Executor) -> dict[str, Any] | None:
    return next((each["model"] for each in executor.loaded if each and each.get("model")), None)


def _shown(specs: Sequence[TensorSpec]) -> str:
    """Inputs or outputs as text."""
    listed = [
        f"{each.alias[:_SHOWN_LENGTH]} {described_tensor(each.dtype, each.shape)}"
        for each in specs[:_SHOWN]
    ]
    more = len(specs) - len(listed)
    return ", ".join(listed) + (f" and {more} more" if more else "") or "nothing"
