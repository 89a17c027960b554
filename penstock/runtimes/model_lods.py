"""The lods of a model's inputs and outputs.

``x.lod`` of an input ``x`` that is lod in the model itself, as with Paddle, is passed to the model.
An output that is lod in the model has its own lod. An output that the configuration marks as lod
has the offsets of a fed lod, if it has one row for each row of that input. Without a fed lod, such
as for the boxes in images, its offsets are made from the counts in the model's only unmarked
one-dimensional integer output, if their sum is the number of rows. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InputMismatch
from penstock.request import Feed
from penstock.runtimes.model_input import ModelInput, shown
from penstock.runtimes.runtime import Session
from penstock.tensor import LOD_SUFFIX, TensorSpec, lod_offsets

Array: TypeAlias = NDArray[Any]


class ModelLods:
    """See the module. Immutable; false for a model without lods.

    Args:
        session: says which inputs and outputs are lod in the model itself.
        outputs: its outputs, with the configuration's marks.
    """

    def __init__(self, session: Session, outputs: Sequence[TensorSpec]) -> None:
        self._inputs = frozenset(spec.name for spec in session.inputs if spec.is_lod)
        own = {spec.name for spec in session.outputs if spec.is_lod} if self._inputs else ()
        self._own = frozenset(own)
        self._marked = frozenset(spec.name for spec in outputs if spec.is_lod) - self._own
        counts = [
            spec.name
            for spec in outputs
            if not spec.is_lod and spec.dtype.kind in "iu" and spec.shape and len(spec.shape) == 1
        ]
        self._counts = counts if self._marked and not self._own and len(counts) == 1 else []

    def __bool__(self) -> bool:
        return bool(self._inputs or self._marked)

    def feed(self, given: Feed, inputs: Mapping[str, ModelInput], into: Feed) -> None:
        """Add the lods that the model takes.

        Args:
            given: the lods of a feed, by the names of their inputs with the suffix.
            inputs: the model's inputs, by name and alias.
            into: the model's feed, by the inputs' names.

        Raises:
            InputMismatch: one is no lod, or does not end at the number of its input's rows.
        """
        for key, value in given.items():
            found = inputs.get(key.removesuffix(LOD_SUFFIX))
            if found is None or found.name not in self._inputs:
                continue
            offsets = _offsets(key, value)
            rows = len(into[found.name])
            if offsets[-1] != rows:
                text = f"{shown([key])} ends at {offsets[-1]}, and there are {rows} rows"
                raise InputMismatch(f"invalid arg list: {text}")
            into[found.name + LOD_SUFFIX] = np.array(offsets)

    def beside(self, names: Sequence[str], given: Feed | None) -> list[str]:
        """The outputs to fetch besides these, for their lods."""
        own = [name + LOD_SUFFIX for name in names if name in self._own]
        return own if given else [*own, *(each for each in self._counts if each not in names)]

    def of(self, fetched: Mapping[str, Array], given: Feed | None) -> dict[str, Array]:
        """The lods of fetched outputs, by name.

        Raises:
            InputMismatch: a given one is no lod.
        """
        offered: list[Array] = []
        if given and self._marked:
            offered = [np.array(_offsets(*each), np.int32) for each in given.items()]
        elif not given:
            counts = [fetched[name] for name in self._counts]
            sums = [np.cumsum(each) for each in counts if each.min(initial=0) >= 0]
            offered = [np.concatenate(([0], each)).astype(np.int32) for each in sums]
        lods: dict[str, Array] = {}
        for name, array in fetched.items():
            if name in self._own and fetched[name + LOD_SUFFIX].size:
                lods[name] = fetched[name + LOD_SUFFIX]
            elif name in self._marked and array.ndim:
                fitting = [each for each in offered if each[-1] == len(array)]
                if fitting:
                    lods[name] = fitting[0]
        return lods


def _offsets(name: str, lod: Any) -> list[int]:
    """``lod_offsets``, whose errors are the caller's."""
    try:
        return lod_offsets(lod)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputMismatch(f"invalid arg list: {shown([name])}: {error}") from error
