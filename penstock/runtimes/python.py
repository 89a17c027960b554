"""A Session over a plain Python callable: for models without a library, for examples, for tests."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InferenceFailed, RequestError, WrongType
from penstock.tensor import TensorSpec

Function: TypeAlias = Callable[[dict[str, NDArray[Any]]], Mapping[str, Any]]


class PythonSession:
    """A session that calls ``function``.

    Args:
        function: takes a dict of input name -> array and returns a mapping with every declared
            output. It must not change the arrays. A RequestError it raises passes through; any
            other exception becomes InferenceFailed.
        inputs: the inputs of the function.
        outputs: its outputs.
        thread_safe: False for a callable with state of its own: each clone then has a deep copy.

    Thread rule: as ``thread_safe`` says.
    """

    __slots__ = ("_function", "inputs", "notes", "outputs", "thread_safe")

    def __init__(
        self,
        function: Function,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        *,
        thread_safe: bool = True,
    ) -> None:
        self._function = function
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.notes: tuple[str, ...] = ()
        self.thread_safe = thread_safe

    def run(self, feeds: Mapping[str, NDArray[Any]], fetch: Sequence[str]) -> list[NDArray[Any]]:
        """Call the function once; see the port.

        Raises:
            WrongType: it returned no mapping.
            InferenceFailed: it raised, or left out an output that was asked for.
        """
        try:
            results = self._function(dict(feeds))
        except RequestError:
            raise
        except Exception as error:
            raise InferenceFailed(f"{type(error).__name__}: {error}") from error
        if not isinstance(results, Mapping):
            raise WrongType(f"a Python model must return a mapping, not {type(results).__name__}")
        missing = [name for name in fetch if name not in results]
        if missing:
            raise InferenceFailed(f"the Python model gave no {missing}, only {list(results)}")
        return [np.asarray(results[name]) for name in fetch]

    def clone(self) -> PythonSession:
        """Itself if thread-safe, else a session over a deep copy of the callable."""
        if self.thread_safe:
            return self
        return PythonSession(
            copy.deepcopy(self._function), self.inputs, self.outputs, thread_safe=False
        )

    def __repr__(self) -> str:
        return f"<PythonSession {self._function!r}>"
