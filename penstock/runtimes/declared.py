"""A session whose inputs and outputs have the names and shapes that a repository declares.

A tensor is found in the model by its name; or, if its name ends in two underscores and a number, as
of Triton's ``INPUT__0``, by its place. Where the model has no types or shapes, as in TorchScript,
the declared ones are the model's; elsewhere they must agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InferenceFailed, ModelError
from penstock.runtimes.model_input import described_tensor
from penstock.runtimes.runtime import Session
from penstock.tensor import DeclaredTensor, DeclaredTensors, TensorSpec

_BY_PLACE: Final = re.compile(r".*__([0-9]{1,4})")


class DeclaredSession:
    """See the module; the methods are those of ``Session``.

    Args:
        session: runs the model.
        declared: its tensors.
        aliases: other names of the model's tensors -> their names in the model.
        checked: whether the shapes that the session tells are those of the model.

    Raises:
        ModelError: the declaration does not fit the model; with all reasons.
    """

    def __init__(
        self,
        session: Session,
        declared: DeclaredTensors,
        aliases: Mapping[str, str],
        *,
        checked: bool = True,
    ) -> None:
        self.session = session
        problems: list[str] = []
        inputs = _matched("input", session.inputs, declared.inputs, aliases, problems)
        outputs = _matched("output", session.outputs, declared.outputs, aliases, problems)
        missing = {each.name for each in session.inputs} - {each.name for each, _ in inputs}
        if declared.inputs and missing:
            problems.append(f"the model's inputs {sorted(missing)} are not declared")
        self.inputs = tuple(_spec("input", *each, checked, problems) for each in inputs)
        self.outputs = tuple(_spec("output", *each, checked, problems) for each in outputs)
        if problems:
            raise ModelError("\n".join(f"{declared.source}: {each}" for each in problems))
        self._inputs = [(tensor, spec.name) for spec, tensor in inputs]
        self._outputs = {spec.alias: (tensor, spec.name) for spec, tensor in outputs}

    @property
    def notes(self) -> tuple[str, ...]:
        """See ``Session``."""
        return self.session.notes

    @property
    def thread_safe(self) -> bool:
        """See ``Session``."""
        return self.session.thread_safe

    @property
    def holds_gil(self) -> bool:
        """See ``Session``."""
        return self.session.holds_gil

    def run(self, feeds: Mapping[str, NDArray[Any]], fetch: Sequence[str]) -> list[NDArray[Any]]:
        """See ``Session``."""
        given = {}
        for tensor, own in self._inputs:
            value = feeds[own if tensor is None else tensor.name]
            if tensor is not None and tensor.inside is not None:
                value = _reshaped(value, tensor.shape, tensor.inside)
            given[own] = value
        wanted = [self._outputs[name] for name in fetch]
        found = self.session.run(given, [own for _, own in wanted])
        return [
            value
            if tensor is None or tensor.inside is None
            else _reshaped(value, tensor.inside, tensor.shape)
            for value, (tensor, _) in zip(found, wanted, strict=True)
        ]

    def clone(self) -> DeclaredSession:
        """See ``Session``."""
        twin = object.__new__(DeclaredSession)
        vars(twin).update(vars(self))
        twin.session = self.session.clone()
        return twin

    def __repr__(self) -> str:
        return f"<DeclaredSession of {self.session!r}>"


def _matched(
    side: str,
    there: Sequence[TensorSpec],
    declared: Sequence[DeclaredTensor],
    aliases: Mapping[str, str],
    problems: list[str],
) -> list[tuple[TensorSpec, DeclaredTensor | None]]:
    """The model's tensors, each with its declaration; the spec's alias is the declared name."""
    if not declared:
        return [(each, None) for each in there]
    names = {each.name: each for each in there}
    found: list[tuple[TensorSpec, DeclaredTensor | None]] = []
    for each in declared:
        spec = names.get(aliases.get(each.name, each.name))
        by_place = _BY_PLACE.fullmatch(each.name)
        if spec is None and by_place is not None and int(by_place[1]) < len(there):
            spec = there[int(by_place[1])]
        if spec is None:
            known = ", ".join(
                f"{name} {described_tensor(x.dtype, x.shape)}" for name, x in names.items()
            )
            problems.append(f"the model has no {side} {each.name!r}; it has {known}")
        else:
            found.append((replace(spec, alias=each.name), each))
    used = [spec.name for spec, _ in found]
    for name in {each for each in used if used.count(each) > 1}:
        problems.append(f"the model's {side} {name!r} is declared twice")
    return found


def _spec(
    side: str,
    spec: TensorSpec,
    tensor: DeclaredTensor | None,
    checked: bool,
    problems: list[str],
) -> TensorSpec:
    """The spec that requests see."""
    if tensor is None:
        return spec
    what = f"{side} {tensor.name!r}"
    inside = tensor.shape if tensor.inside is None else tensor.inside
    untyped = spec.shape is None
    if not untyped and (spec.dtype, spec.bf16) != (tensor.dtype, tensor.bf16):
        problems.append(
            f"{what} is declared as {_kind(tensor.dtype, tensor.bf16)}, and the model has"
            f" {_kind(spec.dtype, spec.bf16)}"
        )
    shape = tensor.shape
    axes: tuple[str | None, ...] = ()
    if checked and spec.shape is not None:
        if len(inside) != len(spec.shape) or any(
            None not in pair and pair[0] != pair[1] for pair in zip(inside, spec.shape, strict=True)
        ):
            batch = " (max_batch_size is above 0, so that dims have no batch axis)"
            problems.append(
                f"{what} is declared with the shape {_listed(inside)}{batch * tensor.batched}, and"
                f" the model has {_listed(spec.shape)}"
            )
        elif tensor.inside is None:
            axes = spec.axes
            shape = tuple(
                ours if theirs is None else theirs
                for ours, theirs in zip(spec.shape, tensor.shape, strict=True)
            )
    return replace(
        spec,
        name=tensor.name,
        alias=tensor.name,
        dtype=tensor.dtype,
        bf16=tensor.bf16,
        shape=shape,
        axes=axes,
    )


def _kind(dtype: np.dtype[Any], bf16: bool) -> str:
    if bf16:
        return "bfloat16"
    return "text" if dtype.kind == "O" else dtype.name


def _listed(shape: Iterable[int | None]) -> list[int]:
    return [-1 if each is None else each for each in shape]


def _reshaped(
    value: NDArray[Any], shape: Sequence[int | None], wanted: Sequence[int | None]
) -> NDArray[Any]:
    """The value, which has one shape, with another one. The dimensions that vary are the same in
    both, in order.
    """
    sizes = iter([size for size, each in zip(value.shape, shape, strict=False) if each is None])
    try:
        return value.reshape([next(sizes, -1) if each is None else each for each in wanted])
    except ValueError as error:
        raise InferenceFailed(f"the model's output is not as declared: {error}") from error
