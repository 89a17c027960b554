"""Converts feeds to tensors and answers to arrays, by the client's configuration. Pure.

A client knows a model only from ``serving_client_conf.prototxt``: aliases, element types, and the
fixed dimensions of one row. The caller's dict and arrays are only read.
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
"""Datatypes of inputs to which ``batch=False`` adds a batch axis."""


class ModelFeeds:
    """The inputs and outputs of a model under their aliases. Immutable; thread-safe.

    Args:
        conf: the client's configuration.
    """

    def __init__(self, conf: ModelConf) -> None:
        self.feed_names = [each.alias for each in conf.feeds]
        self.fetch_names = [each.alias for each in conf.fetches]
        self._inputs = {each.alias: _Input(each) for each in conf.feeds}
        self._aliases = {each.name: each.alias for each in conf.fetches}

    def inputs(self, feed: Mapping[str, Any], *, batch: bool) -> list[Output]:
        """Convert a feed to tensors.

        Args:
            feed: for every alias an array, a list, nested or flat, a number or texts; for sequences
                also ``<alias>.lod``, a list of offsets.
            batch: whether the values have a batch axis. If not, a batch axis of one row is added to
                int64, float32 and int32 values.

        Raises:
            InputMismatch: an input is missing or unknown, or its values do not fit its type.
            WrongType: a value cannot be converted to an array.
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
        """Return the arrays of an answer by engine and alias, with ``<alias>.lod``."""
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
    """Converts the values of one input to its tensor."""

    def __init__(self, variable: Variable) -> None:
        self.variable = variable
        row = TYPES.get(variable.type)
        # The configuration may have -1 for an unknown type: values then keep their own type.
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
                array = array.astype(DTYPES[self._datatype])  # an empty list has no type of its own
        except (ValueError, TypeError, OverflowError) as error:
            raise WrongType(f"input {self.variable.alias!r} is no array: {error}") from error
        return self._in_its_shape(array, rows=len(listed) if batch else None)

    def _in_its_shape(self, array: NDArray[Any], rows: int | None) -> NDArray[Any]:
        """Reshape a list to the configured shape if the number of elements fits."""
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


def conf_of(feed: Mapping[str, Any]) -> ModelConf:
    """Make a configuration from a feed: its names, without types."""
    names = [name for name in feed if not name.endswith(LOD_SUFFIX)]
    feeds = tuple(Variable(name=name, alias=name, type=-1) for name in names)
    return ModelConf(feeds=feeds, fetches=(), source="the feed")
