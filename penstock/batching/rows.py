"""Rows: which axis of an op's inputs and outputs is the row axis, or that none is.

A batch is the inputs of several requests, joined along their row axes. That is right only if each
row of the outputs depends on the same row of the inputs alone. So nothing is assumed: the axes come
from what the user says (the option ``rows``), from the names in the model's signature, or from
running the model (``penstock.batching.probe``). What stays unknown is not batched.

Where a value has a lod, its rows are the sequences, and its row axis is 0.

Pure. Source: ``docs/batches.md``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from penstock.tensor import LOD_SUFFIX, TensorSpec

Axis: TypeAlias = int | None
"""A row axis; None where a tensor has none."""
Declared: TypeAlias = Literal["first"] | Mapping[str, Axis]
"""What the user says: the row axis of inputs and outputs, by name; ``first``: 0 for all of them."""

FIRST: Final = "first"
_MOST_CANDIDATES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The row axes of an op's tensors, by each of their names.

    Attributes:
        inputs: an input without a row axis has one value for the whole batch: requests share a
            batch only if their values are equal.
        outputs: the row axes of outputs; they are split along them.
        shared: outputs without a row axis that are equal whatever the rows are: every request gets
            the whole output.
        plain: whether axis 0 is the row axis of every input.
    """

    inputs: Mapping[str, Axis]
    outputs: Mapping[str, Axis]
    shared: frozenset[str] = frozenset()
    plain: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "plain", all(axis == 0 for axis in self.inputs.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What is known about a model's rows without running it.

    Attributes:
        candidates: possible row axes of the inputs, by alias; the most likely first.
        outputs: the row axes of outputs that the user has declared, by alias.
        shared: outputs that the user says are shared.
        certain: the rows, if the user and the signature determine them; else None.
        likely: the rows if every first axis that varies is the row axis; None if even then an
            output has none.
        why: how they are determined; or what is missing, as text.
        declared: whether the user declared the row axes of all inputs.
    """

    candidates: tuple[Mapping[str, Axis], ...]
    outputs: Mapping[str, Axis]
    shared: frozenset[str]
    certain: Rows | None
    likely: Rows | None
    why: str
    declared: bool


def read_hints(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    declared: Declared | None = None,
    shared: Collection[str] = (),
    unfetched: Sequence[TensorSpec] = (),
) -> Hints:
    """Read the row axes that the user declared and the signature names.

    The signature determines them if the first axes of all inputs that vary have one name, and the
    first axis of each output has it, too. Inputs without axes, or with a first axis of a fixed
    size, have no row axis.

    Args:
        inputs: of the model.
        outputs: that are fetched.
        declared: the option ``rows``.
        shared: the option ``shared_outputs``, aliases or real names.
        unfetched: further outputs of the model, which the options may name.

    Raises:
        ValueError: an option names no input or output, or an axis that it lacks.
    """
    _check(inputs, (*outputs, *unfetched), declared, shared)
    inputs = [each for each in inputs if not is_offsets(each, inputs)]
    given = {each.alias: _declared_axis(each, declared) for each in (*inputs, *outputs)}
    whole = frozenset(each.alias for each in outputs if {each.alias, each.name} & {*shared})
    known = {each.alias: _known_axis(each, given[each.alias]) for each in inputs}
    fixed = {alias: axis for alias, axis in known.items() if axis is not _UNDECLARED}
    open_axes = [each for each in inputs if each.alias not in fixed]
    likely = {**dict.fromkeys(known, 0), **fixed}
    name, unknown = _row_name(inputs, open_axes, fixed)
    read = {
        each.alias: _read_output(each, given[each.alias], name)
        for each in outputs
        if each.alias not in whole
    }
    unknown = unknown or next((each.unknown for each in read.values() if each.unknown), None)
    candidates = tuple(_candidates(fixed, open_axes))
    if all(axis is None for axis in likely.values()):
        candidates, unknown = (), "no input has a first axis that varies"

    def rows(axes: Mapping[str, Axis]) -> Rows:
        return rows_of_axes(inputs, outputs, likely, axes, whole)

    certain = {alias: each.certain for alias, each in read.items()}
    guessed = {alias: each.likely for alias, each in read.items()}
    by_user = bool(inputs) and all(given[each.alias] is not _UNDECLARED for each in inputs)
    named = "the option rows says so" if by_user else f"its signature names the axis {name!r}"
    return Hints(
        candidates=candidates,
        outputs={
            each.alias: given[each.alias]
            for each in outputs
            if given[each.alias] is not _UNDECLARED
        },
        shared=whole,
        certain=rows(certain) if unknown is None else None,
        likely=rows(guessed) if candidates and None not in guessed.values() else None,
        why=unknown or named,
        declared=by_user,
    )


def rows_of_axes(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    axes: Mapping[str, Axis],
    followers: Mapping[str, Axis],
    shared: Collection[str],
) -> Rows:
    """Rows under every name of the tensors.

    Args:
        inputs: of the model.
        outputs: that are fetched.
        axes: the row axes of the inputs, by alias.
        followers: the row axes of the outputs that have one, by alias.
        shared: aliases of the other outputs.
    """
    return Rows(
        inputs=_by_names([each for each in inputs if each.alias in axes], axes),
        outputs=_by_names([each for each in outputs if each.alias in followers], followers),
        shared=frozenset(
            name for each in outputs if each.alias in shared for name in (each.name, each.alias)
        ),
    )


def fixed_rows(inputs: Sequence[TensorSpec], declared: Declared | None = None) -> int | None:
    """The number of rows of every input, if it is fixed; else None.

    Args:
        inputs: of the model.
        declared: the option ``rows``; without it, the row axes are the first axes.
    """
    axes = [_declared_axis(each, declared) for each in inputs]
    if all(axis is _UNDECLARED for axis in axes):
        axes = [0] * len(axes)
    sizes: set[int | None] = set()
    for spec, axis in zip(inputs, axes, strict=True):
        if axis is not None:
            is_known = axis is not _UNDECLARED and axis < len(spec.shape or ())
            sizes.add(spec.shape[axis] if is_known and spec.shape else None)
    return sizes.pop() if len(sizes) == 1 else None


def is_offsets(spec: TensorSpec, inputs: Iterable[TensorSpec]) -> bool:
    """Whether an input is the lod of another input."""
    owner = spec.name.removesuffix(LOD_SUFFIX)
    return owner != spec.name and any(each.name == owner for each in inputs)


_UNDECLARED: Final[Any] = object()


def _declared_axis(spec: TensorSpec, declared: Declared | None) -> Any:
    if declared is None:
        return _UNDECLARED
    if isinstance(declared, str):  # FIRST
        return None if spec.shape == () else 0
    return declared.get(spec.alias, declared.get(spec.name, _UNDECLARED))


def _check(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    declared: Declared | None,
    shared: Collection[str],
) -> None:
    known = {name: spec for spec in (*inputs, *outputs) for name in (spec.name, spec.alias)}
    for name, axis in ({} if declared is None or isinstance(declared, str) else declared).items():
        if name not in known:
            raise ValueError(f"rows: the model has no {name!r}, only {_aliases(inputs, outputs)}")
        shape = known[name].shape
        if axis is not None and (axis < 0 or (shape is not None and axis >= len(shape))):
            raise ValueError(f"rows: {name!r} has no axis {axis}")
    produced = {name for spec in outputs for name in (spec.name, spec.alias)}
    for name in shared:
        if name not in produced:
            text = f"shared_outputs: no output is called {name!r}, only {_aliases(outputs)}"
            raise ValueError(text)


def _aliases(*specs: Sequence[TensorSpec]) -> list[str]:
    return [*dict.fromkeys(each.alias for some in specs for each in some)]


def _known_axis(spec: TensorSpec, declared: Any) -> Any:
    """The row axis of an input that is declared, has a lod, or has no first axis that varies;
    ``_UNDECLARED`` for others.
    """
    if declared is not _UNDECLARED:
        return declared
    if spec.is_lod:
        return 0
    return _UNDECLARED if _varies(spec) else None


def _varies(spec: TensorSpec) -> bool:
    """Whether the size of the first axis is unknown."""
    return spec.shape is None or (len(spec.shape) > 0 and spec.shape[0] is None)


class _Output(NamedTuple):
    """The row axis of an output that is not shared, as known, and as it is likely; None: it has
    none. ``unknown`` is what is missing, as text.
    """

    certain: Axis
    likely: Axis
    unknown: str | None = None


def _read_output(spec: TensorSpec, declared: Any, name: str | None) -> _Output:
    """Read the row axis of an output.

    Args:
        spec: the output.
        declared: the axis that the user declared.
        name: of the row axes of the inputs; None if they have no common one.
    """
    if declared is None:
        return _Output(None, None, f"output {spec.alias!r} has no row axis, and is not shared")
    if declared is not _UNDECLARED:
        return _Output(declared, declared)
    if name is not None and spec.axes and spec.axes[0] == name:
        return _Output(0, 0)
    of_inputs = "has no name" if name is None else repr(name)
    unknown = (
        f"the first axis of output {spec.alias!r} {_called(spec)}, and that of the inputs"
        f" {of_inputs}"
    )
    return _Output(None, 0 if _varies(spec) else None, unknown)


def _row_name(
    inputs: Sequence[TensorSpec], open_axes: Sequence[TensorSpec], fixed: Mapping[str, Axis]
) -> tuple[str | None, str | None]:
    """The one name of the inputs' row axes, and what is unknown if there is none."""
    names: dict[str | None, str] = {}
    for spec in inputs:
        axis = 0 if spec in open_axes else fixed[spec.alias]
        if axis is not None:
            name = spec.axes[axis] if spec.axes and axis < len(spec.axes) else None
            names.setdefault(name, spec.alias)
    if not open_axes:  # the user declared them
        return next(iter(names)) if len(names) == 1 else None, None
    if len(names) == 1:
        (name,) = names
        alias = names[name]
        return name, f"the first axis of input {alias!r} has no name" if name is None else None
    (one, first), (other, second), *_ = names.items()
    text = f"the first axis of input {first!r} is {one!r}, and that of {second!r} {other!r}"
    return None, text.replace("None", "without a name")


def _called(spec: TensorSpec) -> str:
    if spec.shape is None:
        return "is unknown"
    if not spec.shape:
        return "does not exist"
    if spec.shape[0] is not None:
        return f"has the fixed size {spec.shape[0]}"
    name = spec.axes[0] if spec.axes else None
    return "has no name" if name is None else f"is {name!r}"


def _candidates(
    fixed: Mapping[str, Axis], open_axes: Sequence[TensorSpec]
) -> Iterable[Mapping[str, Axis]]:
    aliases = [each.alias for each in open_axes]
    groups: dict[Any, list[str]] = {}
    for index, spec in enumerate(open_axes):
        groups.setdefault((spec.axes[0] if spec.axes else None) or index, []).append(spec.alias)
    subsets = [aliases, *sorted(groups.values(), key=len, reverse=True)]
    subsets += [[each for each in aliases if each != one] for one in aliases]
    subsets += [[each] for each in aliases]
    seen: list[set[str]] = []
    for subset in subsets:
        if {*subset} not in seen and len(seen) < _MOST_CANDIDATES:
            seen.append({*subset})
            axes = {**fixed, **{each: 0 if each in subset else None for each in aliases}}
            if any(axis is not None for axis in axes.values()):
                yield axes


def _by_names(specs: Sequence[TensorSpec], axes: Mapping[str, Axis]) -> dict[str, Axis]:
    real = {each.name: axes[each.alias] for each in specs}
    return real | {each.alias: axes[each.alias] for each in specs}
