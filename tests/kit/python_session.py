"""A runtime's Session over a plain Python callable, for models without a library."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.tensor import TensorSpec


class PythonSession:
    """Calls ``function`` with a dict of inputs; it returns a dict with every output.

    ``thread_safe`` is False for a callable with state of its own: each clone has a deep copy.
    """

    notes = ()
    holds_gil = False

    def __init__(
        self,
        function: Callable[[dict[str, NDArray[Any]]], Mapping[str, Any]],
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        *,
        thread_safe: bool = True,
    ) -> None:
        self._function = function
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.thread_safe = thread_safe

    def run(self, feeds: Mapping[str, NDArray[Any]], fetch: Sequence[str]) -> list[NDArray[Any]]:
        results = self._function(dict(feeds))
        return [np.asarray(results[name]) for name in fetch]

    def clone(self) -> PythonSession:
        return self if self.thread_safe else copy.deepcopy(self)
