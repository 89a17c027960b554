"""Which generation of the API an op's hooks speak: decided once, at start, by their signatures.

    hook                     v0.3                   v0.4 to v0.6         v0.7 to v0.9
    preprocess               (inputs)               (inputs, data_id, log_id)
    process                  (feed_batch)           (feed_batch, typical_logid)
    postprocess              (inputs, fetch)        (.., .., log_id)     (.., .., data_id, log_id)
    unpack_request_package   (request)
    pack_response_package    (channeldata)

Each is called with as many positional arguments as it takes; what it returned is read by its form.
Source: ``docs/compatibility.md`` (hooks of every generation).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from penstock.errors import (
    DeclaredError,
    HookError,
    HookFailed,
    InferenceFailed,
    RequestError,
    WrongType,
)
from penstock.ops.op import Op
from penstock.ops.product import product_error
from penstock.request import Feed

Hook: TypeAlias = Callable[..., Any]

# For each hook: the numbers of arguments it may be given, and which of the full list those are.
_CHOICES: dict[str, dict[int, tuple[int, ...]]] = {
    "preprocess": {1: (0,), 2: (0, 1), 3: (0, 1, 2)},
    "process": {1: (0,), 2: (0, 1)},
    "postprocess": {2: (0, 1), 3: (0, 1, 3), 4: (0, 1, 2, 3)},
    "unpack_request_package": {1: (0,)},
    "pack_response_package": {1: (0,)},
    "init_op": {0: ()},
    "check_jumping": {1: (0,)},
}


class Hooks:
    """An op's hooks, each callable with the full argument list of the newest generation.

    ``process`` is None when the op leaves the default one. Bind anew for each worker's copy.
    """

    __slots__ = ("is_async", "postprocess", "preprocess", "process")

    def __init__(self, op: Op) -> None:
        self.preprocess = bind(op, "preprocess")
        self.postprocess = bind(op, "postprocess")
        self.process: Hook | None = None
        self.is_async = False
        if overrides(op, "process", Op):
            self.is_async = inspect.iscoroutinefunction(inspect.unwrap(op.process))
            self.process = bind(op, "process")
        for hook in (op.preprocess, op.postprocess, op.init_op):
            if inspect.iscoroutinefunction(inspect.unwrap(hook)):
                raise HookError(
                    f"op {op.name!r}: {hook.__name__} is a coroutine; only process may be one"
                )


def overrides(op: Op, hook: str, base: type[Op]) -> bool:
    """Whether the op brings its own version of a hook, by class or set on the object."""
    return hook in vars(op) or getattr(type(op), hook) is not getattr(base, hook)


def bind(op: Op, hook: str) -> Hook:
    """The hook as a callable that takes the newest generation's arguments.

    Raises:
        HookError: it needs a number of arguments that no generation gives.
    """
    function = getattr(op, hook)
    choices = _CHOICES[hook]
    low, high = _positional(function, op, hook)
    fitting = [count for count in choices if low <= count <= high]
    if not fitting:
        raise HookError(
            f"op {op.name!r}: {hook} takes {_range(low, high)} arguments after self, "
            f"but is called with {' or '.join(map(str, choices))}"
        )
    picked = choices[max(fitting)]
    if picked == choices[max(choices)]:
        return function  # type: ignore[no-any-return]
    return lambda *args: function(*(args[i] for i in picked))


def _positional(function: Hook, op: Op, hook: str) -> tuple[int, float]:
    """The fewest and the most positional arguments a bound hook takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise HookError(f"op {op.name!r}: {hook} cannot be called: {error}") from error
    low, high = 0, 0.0
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            high += 1
            low += parameter.default is parameter.empty
        elif parameter.kind is parameter.VAR_POSITIONAL:
            high = float("inf")
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise HookError(
                f"op {op.name!r}: {hook} needs the keyword {parameter.name!r}, "
                f"but hooks are called with positional arguments only"
            )
    return low, high


def _range(low: int, high: float) -> str:
    if low == high:
        return str(low)
    return f"{low} to {int(high)}" if high != float("inf") else f"{low} or more"


def read_preprocess(op: Op, given: Any) -> tuple[Any, bool, RequestError | None]:
    """``(data, skip process, error)`` from what ``preprocess`` returned."""
    if type(given) is tuple and len(given) == 4:
        data, skip, number, text = given
        return data, bool(skip), None if number is None else product_error(number, text)
    if isinstance(given, tuple):
        return (
            None,
            False,
            HookFailed(
                f"op {op.name!r}: preprocess returned a tuple of {len(given)}, but must return "
                f"the data, or (data, is_skip_process, prod_errcode, prod_errinfo)"
            ),
        )
    return given, False, None


def read_process(op: Op, given: Any) -> Feed | RequestError:
    """The result dict, or the error, from what ``process`` returned."""
    code: Any = 0
    text: Any = ""
    if (
        type(given) is tuple
        and len(given) == 3
        and (given[0] is None or isinstance(given[0], dict))
        and isinstance(given[1], int)
    ):
        given, code, text = given
    if code:
        return process_failure(op, str(text), code)
    if given is None:
        return InferenceFailed(failed_to_predict(op.name, "process gave no result"))
    if not isinstance(given, dict):
        return WrongType(
            failed_to_predict(op.name, f"process must give a dict, got {type(given).__name__}")
        )
    return given


def process_failure(op: Op, text: str, number: int) -> RequestError:
    """The error for a code that ``process`` returned: the number is the op's choice."""
    return DeclaredError(number, failed_to_predict(op.name, text))


def failed_to_predict(op: str, text: str) -> str:
    """The sentence deployed clients know around every failure of ``process``."""
    return (
        f"[{op}] failed to predict. {text}. Please check the input dict and checkout "
        f"PipelineServingLogs/pipeline.log for more details."
    )


def read_postprocess(op: Op, given: Any) -> tuple[Feed, RequestError | None]:
    """``(output dict, error)`` from what ``postprocess`` returned."""
    error: RequestError | None = None
    if type(given) is tuple and len(given) == 3:
        given, number, text = given
        if number is not None:
            error = product_error(number, text)
    if error is None and not isinstance(given, dict):
        error = WrongType("postprocess should return dict")
    return (given if isinstance(given, dict) else {}), error
