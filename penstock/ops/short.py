"""The short form: models and functions as ops, without classes and without configuration.

left, right = Model("left.onnx"), Model("right.onnx")

@op(left, right)
def combine(left, right):
    return {"mean": (left["y"] + right["y"]) / 2}

service = Service("ensemble", combine)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from penstock.errors import GraphError, HookError, InputMismatch
from penstock.ops.op import Op
from penstock.protocols.array_text import parse_array
from penstock.request import Feed


class Model(Op):
    """An op that runs one saved model on its input, and answers with the model's outputs.

    Args:
        path: a model file, or a folder that holds one.
        inputs: the op before it; None means the request.
        name: the op's name; the path's last part without its suffix by default.
        options: any other parameter of ``Op``.

    Texts are read as arrays: ``"[[1, 2, 3]]"``.

    Raises:
        GraphError: ``inputs`` is not one op.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        inputs: Op | None = None,
        *,
        name: str | None = None,
        **options: Any,
    ) -> None:
        self.model_path = Path(path)
        super().__init__(name=name or self.model_path.stem, input_ops=inputs, **options)
        if len(self.get_input_ops()) > 1:
            raise GraphError(
                f"op {self.name!r}: a Model reads one op: join several with a function first"
            )

    def preprocess(self, input_dicts: dict[str, Feed], data_id: int = 0, log_id: int = 0) -> Feed:
        """The only input's dict, with texts read as arrays."""
        (feed,) = input_dicts.values()
        return {name: _array(name, value) for name, value in feed.items()}


def _array(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parse_array(value)
    except ValueError as error:
        raise InputMismatch(f"{name!r} is no array: {error}") from error


class FunctionOp(Op):
    """An op that is one function of its inputs' dicts. Made by ``op``; still callable.

    A function runs in the op's worker; a coroutine function runs on the service's loop.

    Raises:
        HookError: the function does not take one argument for each input.
    """

    def __init__(self, function: Callable[..., Any], inputs: Sequence[Op], **options: Any) -> None:
        self.function = function
        self._is_async = inspect.iscoroutinefunction(function)
        super().__init__(input_ops=inputs, **options)
        self._check_arguments()
        if self._is_async:
            self.process = self._await_function  # type: ignore[method-assign]

    def _check_arguments(self) -> None:
        names = [source.name for source in self.get_input_ops()] or ["the request"]
        try:
            inspect.signature(self.function).bind(*names)
        except ValueError:
            return  # a function of a library in C, which does not say what it takes
        except TypeError as error:
            raise HookError(
                f"op {self.name!r}: the function is given one dict for each of "
                f"{', '.join(names)}, but does not take that ({error})"
            ) from error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function as if it had never been decorated."""
        return self.function(*args, **kwargs)

    def preprocess(
        self, input_dicts: dict[str, Feed], data_id: int = 0, log_id: int = 0
    ) -> tuple[Any, bool, None, str]:
        """The function's result; or, for a coroutine function, its arguments."""
        given = [input_dicts[source.name] for source in self.get_input_ops()]
        if self._is_async:
            return {"arguments": given}, False, None, ""
        return self._checked(self.function(*given)), True, None, ""

    def postprocess(
        self, input_data: dict[str, Feed], fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        """What the function gave is the op's output."""
        return fetch_data["result"] if self._is_async else fetch_data

    async def _await_function(self, feed_batch: list[Feed], typical_logid: int = 0) -> Any:
        # Wrapped, so that a product error is not taken for a failure of ``process``.
        return {"result": self._checked(await self.function(*feed_batch[0]["arguments"]))}

    def _checked(self, result: Any) -> Any:
        if not isinstance(result, dict | tuple):
            raise TypeError(f"{self.name} must return a dict, got {type(result).__name__}")
        return result


def op(*inputs: Op, name: str | None = None, **options: Any) -> Callable[..., FunctionOp]:
    """Make an op of a function: it is given the output dict of each input op, in order.

    Args:
        inputs: the ops before it; none means the request.
        name: the op's name; the function's by default.
        options: any other parameter of ``Op``.

    The function returns a dict, or ``(dict, number, text)`` to end the request with a product
    error (``{}, 51, "no cat"``).

    Raises:
        GraphError: an input is no op.
        HookError: the function does not take one argument for each input.
    """
    for source in inputs:
        if not isinstance(source, Op):
            raise GraphError(
                f"op(...) is given the ops before it, got {source!r}: above a function that "
                f"reads the request, write @op() with nothing between the brackets"
            )

    def decorate(function: Callable[..., Any]) -> FunctionOp:
        return FunctionOp(function, inputs, name=name or function.__name__, **options)

    return decorate
