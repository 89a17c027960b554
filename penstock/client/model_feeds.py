"""What a client of a model server sends and gets, by its configuration. Pure.

A client knows a model from ``serving_client_conf.prototxt`` alone: aliases, element types, and the
shape of one row as far as it is fixed. The caller's dict and arrays are only read.
Source: ``docs/compatibility.md`` (the model server's protocol).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InputMismatch, WrongType
from penstock.protocols import oip
from penstock.protocols.general_model import TYPES, GeneralResponse, Output
from penstock.protocols.oip import BF16, BYTES, DTYPES, OutTensor
from penstock.request import Feed
from penstock.runtimes.model_input import ModelInput
from penstock.runtimes.prototxt import ModelConf, Variable
from penstock.tensor import LOD_SUFFIX, TensorSpec, lod_offsets

_GETS_BATCH_AXIS = frozenset({"INT64", "FP32", "INT32"})
"""Datatypes of inputs that ``batch=False`` puts an axis in front of."""


class ModelFeeds:
    """The inputs and outputs of a model, as its clients call them. Immutable; any thread.

    Args:
        conf: what the client's configuration says.
    """

    def __init__(self, conf: ModelConf) -> None:
        self.feed_names = [each.alias for each in conf.feeds]
        self.fetch_names = [each.alias for each in conf.fetches]
        self._inputs = {each.alias: _Input(each) for each in conf.feeds}
        self._aliases = {each.name: each.alias for each in conf.fetches}

    def inputs(self, feed: Mapping[str, Any], *, batch: bool) -> list[Output]:
        """The tensors that a feed is.

        Args:
            feed: for every alias an array, a list, nested or flat, a number or texts; and for
                sequences ``<alias>.lod``, a list of offsets.
            batch: whether the values have a batch axis. If not, those of int64, float32 and int32
                get one of one row.

        Raises:
            InputMismatch: an input is missing or unknown, or its values do not fit its type.
            WrongType: a value is no array.
        """
        lods = {f"{alias}{LOD_SUFFIX}" for alias in self._inputs}
        for name in feed:
            if name not in self._inputs and name not in lods:
                raise InputMismatch(f"Wrong feed name: {name}. The inputs are {self.feed_names}")
        missing = [alias for alias in self._inputs if alias not in feed]
        if missing:
            raise InputMismatch(f"the feed lacks {missing}")
        return [
            Output(
                name=found.variable.name,
                tensor=found.tensor(feed[alias], batch=batch),
                lod=_lod(alias, feed.get(f"{alias}{LOD_SUFFIX}")),
            )
            for alias, found in self._inputs.items()
        ]

    def outputs(self, response: GeneralResponse) -> dict[str, Feed]:
        """The arrays of an answer by engine, under their aliases, with ``<alias>.lod``."""
        return {engine: self._values(found) for engine, found in response.outputs.items()}

    def _values(self, tensors: Iterable[Output]) -> Feed:
        values: Feed = {}
        for each in tensors:
            alias = self._aliases.get(each.name, each.tensor.name)
            values[alias] = each.tensor.array
            if each.lod:
                values[alias + LOD_SUFFIX] = np.array(each.lod, np.int32)
        return values


class _Input:
    """One input, and how values become its tensor."""

    def __init__(self, variable: Variable) -> None:
        self.variable = variable
        row = TYPES.get(variable.type)
        # A file may say -1 where the type was not known: values go out as what they are.
        self._datatype = row.name if row is not None and row.name in DTYPES else None
        if self._datatype is not None:
            self._checked = ModelInput(
                TensorSpec(
                    name=variable.alias,
                    alias=variable.alias,
                    dtype=DTYPES[self._datatype],
                    shape=None,
                    bf16=self._datatype == BF16,
                )
            )

    def tensor(self, value: Any, *, batch: bool) -> OutTensor:
        array = self._array(value, batch=batch)
        if not batch and self._datatype in _GETS_BATCH_AXIS:
            array = array[np.newaxis]
        if self._datatype is None:
            return oip.sent(self.variable.alias, array)
        return OutTensor(self.variable.alias, self._datatype, self._checked.fit(array))

    def _array(self, value: Any, *, batch: bool) -> NDArray[Any]:
        if isinstance(value, np.ndarray):
            return np.atleast_1d(np.asarray(value))
        listed = value if isinstance(value, list | tuple) else [value]
        if self._datatype == BYTES:
            texts = np.empty(len(listed), object)
            texts[:] = listed
            return texts
        try:
            array = np.array(listed)
            if not array.size and self._datatype is not None:
                array = array.astype(DTYPES[self._datatype])  # no elements have no type
        except (ValueError, TypeError, OverflowError) as error:
            raise WrongType(f"input {self.variable.alias!r} is no array: {error}") from error
        return self._in_its_shape(array, rows=len(listed) if batch else None)

    def _in_its_shape(self, array: NDArray[Any], rows: int | None) -> NDArray[Any]:
        """A list in the configured shape, if it has as many elements; else in its own."""
        shape: Sequence[int] = self.variable.shape
        if self.variable.is_lod or any(size < 0 for size in shape):
            return array
        wanted = [*shape] if rows is None else [rows, *shape]
        return array.reshape(wanted) if array.size == prod(wanted) else array


def _lod(alias: str, value: Any) -> list[int]:
    if value is None:
        return []
    try:
        return lod_offsets(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputMismatch(f"{alias}{LOD_SUFFIX}: {error}") from error
