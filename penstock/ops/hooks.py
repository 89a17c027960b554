"""Detects which generation of the API an op's hooks follow, by their signatures, at the start.

    hook                     v0.3                   v0.4 to v0.6         v0.7 to v0.9
    preprocess               (inputs)               (inputs, data_id, log_id)
    process                  (feed_batch)           (feed_batch, typical_logid)
    postprocess              (inputs, fetch)        (.., .., log_id)     (.., .., data_id, log_id)
    unpack_request_package   (request)
    pack_response_package    (channeldata)

Each hook is called with as many positional arguments as it takes; the type of its result decides
how it is read.
Source: ``docs/compatibility.md`` (hooks of every generation).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np

from penstock.caller import Caller
from penstock.errors import HookError, HookFailed, RequestError, WrongCount, WrongType
from penstock.ops.callers import AsksCaller, CallerParameter, caller_parameter, must_be_last
from penstock.ops.failures import process_gave, process_gave_code, type_instead
from penstock.ops.functions import is_coroutine, is_generator
from penstock.ops.op import Op
from penstock.ops.product import product_error
from penstock.request import Feed

Hook: TypeAlias = Callable[..., Any]

_HOOKS: dict[str, tuple[str, range]] = {
    "preprocess": ("(self, input_dicts, data_id, log_id)", range(1, 4)),
    "process": ("(self, feed_batch, typical_logid)", range(1, 3)),
    "postprocess": ("(self, input_data, fetch_data, data_id, log_id)", range(2, 5)),
    "unpack_request_package": ("(self, request)", range(1, 2)),
    "pack_response_package": ("(self, channeldata)", range(1, 2)),
    "init_op": ("(self)", range(1)),
    "check_jumping": ("(self, input_data)", range(1, 2)),
}
"""The newest signature of each hook, and how many arguments it may take besides ``self``."""


_WITH_CALLER = ("preprocess", "postprocess")
"""The hooks that may ask who calls: those of one request."""


class HookWithCaller:
    """A hook that asks who calls; called with ``caller`` beside the newest generation's arguments.

    Args:
        hook: takes these arguments, and the caller by its name.
        parameter: the one that gets the caller.
    """

    __slots__ = ("_hook", "_name")

    def __init__(self, hook: Hook, parameter: CallerParameter) -> None:
        self._hook = hook
        self._name = parameter.name

    def __call__(self, *args: Any, caller: Caller | None) -> Any:
        return self._hook(*args, **{self._name: caller})


def asks_caller(op: Op) -> AsksCaller | None:
    """Whether the op, or one of its hooks, asks who makes a request."""
    found = [] if op.caller_parameter is None else [op.caller_parameter]
    for hook in _WITH_CALLER:
        if overrides(op, hook, Op):
            parameter = caller_parameter(getattr(op, hook))
            if parameter is not None:
                found.append(parameter)
    if not found:
        return None
    return "required" if any(each.required for each in found) else "optional"


def own_hook(op: Op, hook: str) -> Hook | None:
    """A hook as returned by ``bind``; None if the op does not override it."""
    return bind(op, hook) if overrides(op, hook, Op) else None


def overrides(op: Op, hook: str, base: type[Op]) -> bool:
    """Whether the op overrides a hook, in its class or as an attribute of the object."""
    return hook in vars(op) or getattr(type(op), hook) is not getattr(base, hook)


def bind(op: Op, hook: str) -> Hook:
    """The hook as a callable with the newest generation's arguments.

    Raises:
        HookError: its number of arguments fits no generation.
    """
    function = getattr(op, hook)
    if hook != "process" and is_coroutine(function):
        raise HookError(
            f"op {op.name!r}: {hook} is a coroutine, which only process may be: "
            f"write def {hook}{_HOOKS[hook][0]}"
        )
    if hook != "process" and is_generator(function):
        raise HookError(
            f"op {op.name!r}: {hook} is a generator, which only process may be: "
            f"write def {hook}{_HOOKS[hook][0]} with return instead of yield"
        )
    caller = caller_parameter(function)
    if caller is not None:
        if hook not in _WITH_CALLER:
            raise HookError(
                f"op {op.name!r}: {hook} cannot ask for the Caller: take it in preprocess or"
                " postprocess, which run for one request"
            )
        must_be_last(function, caller)
    count = _count(function, op, hook, caller)
    called: Hook = function
    if hook == "postprocess" and count == 3:  # without the data_id, which is newer

        def called(*args: Any, **caller: Any) -> Any:
            return function(*args[:2], args[3], **caller)

    elif count != _HOOKS[hook][1][-1]:

        def called(*args: Any, **caller: Any) -> Any:
            return function(*args[:count], **caller)

    return called if caller is None else HookWithCaller(called, caller)


def _count(function: Hook, op: Op, hook: str, caller: CallerParameter | None) -> int:
    """The number of arguments for a bound hook: the most that a generation passes.

    A decorator's own signature decides; if it takes any number of arguments, that of the wrapped
    function does.
    """
    low, high = _positional(function, op, hook, caller, follow_wrapped=False)
    fitting = [count for count in _HOOKS[hook][1] if low <= count <= high]
    if not fitting:
        *others, most = map(str, _HOOKS[hook][1])
        counts = f"{', '.join(others)} or {most}" if others else most
        raise HookError(
            f"op {op.name!r}: {hook} takes {_range(low, high)} after self, "
            f"but is called with {counts}: write def {hook}{_HOOKS[hook][0]}"
        )
    low, high = _positional(function, op, hook, caller, follow_wrapped=True)
    return max([count for count in fitting if low <= count <= high] or fitting)


def _positional(
    function: Hook,
    op: Op,
    hook: str,
    caller: CallerParameter | None,
    *,
    follow_wrapped: bool,
) -> tuple[int, float]:
    """The minimum and maximum number of positional arguments of a bound hook."""
    try:
        signature = inspect.signature(function, follow_wrapped=follow_wrapped)
    except (TypeError, ValueError) as error:
        raise HookError(
            f"op {op.name!r}: {hook} cannot be called ({error}): write def {hook}{_HOOKS[hook][0]}"
        ) from error
    low, high = 0, 0.0
    for parameter in signature.parameters.values():
        if caller is not None and parameter.name == caller.name:
            continue
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            high += 1
            low += parameter.default is parameter.empty
        elif parameter.kind is parameter.VAR_POSITIONAL:
            high = float("inf")
        elif (
            parameter.kind is parameter.KEYWORD_ONLY
            and parameter.default is parameter.empty
            and not follow_wrapped  # a decorator may supply it
        ):
            raise HookError(
                f"op {op.name!r}: {hook} needs the keyword {parameter.name!r}, but hooks are "
                f"called with positional arguments only: write def {hook}{_HOOKS[hook][0]}"
            )
    return low, high


def _range(low: int, high: float) -> str:
    if low == high:
        return f"{low} argument" if low == 1 else f"{low} arguments"
    return f"{low} to {int(high)} arguments" if high != float("inf") else f"{low} or more arguments"


def read_preprocess(op: Op, given: Any) -> tuple[Any, bool, RequestError | None]:
    """``(data, skip process, error)`` from what ``preprocess`` returned."""
    if not isinstance(given, tuple):
        return given, False, None
    if len(given) == 4:
        data, skip, number, text = given
        return data, bool(skip), None if number is None else product_error(number, text)
    wrong = HookFailed(
        f"op {op.name!r}: preprocess returned a tuple of {len(given)}, but must return "
        f"the data, or (data, is_skip_process, prod_errcode, prod_errinfo)"
    )
    return None, False, wrong


def read_process(op: Op, given: Any) -> Feed | RequestError:
    """The result dict, or the error, from what ``process`` returned."""
    if isinstance(given, dict | RequestError):
        return given
    if (
        isinstance(given, tuple)
        and len(given) == 3
        and (given[0] is None or isinstance(given[0], dict))
        and isinstance(given[1], Integral)
    ):
        given, code, text = given
        if code:
            return process_gave_code(op.name, str(text), int(code))
        if given is not None:
            return given  # type: ignore[no-any-return]
    return process_gave(op.name, given)


def read_results(op: Op, given: Any, size: int, kind: str) -> list[Any]:
    """The results of a function of batches, one for each request.

    Args:
        op: the op.
        given: what the function returned.
        size: number of requests.
        kind: what a result is, in the message.

    Raises:
        WrongCount: it is no list, tuple or array of ``size`` elements.
    """
    several = isinstance(given, (list, tuple)) or (isinstance(given, np.ndarray) and given.ndim)
    if several and len(given) == size:
        return list(given)
    found = f"{len(given)} of them" if several else f"one {type_instead(given)}"
    raise WrongCount(
        f"{op.hook_name('process')} must return a list of {size} {kind}{'s' * (size != 1)}, one for"
        f" each request of its batch, got {found}"
    )


def read_postprocess(op: Op, given: Any) -> tuple[Feed, RequestError | None]:
    """``(output dict, error)`` from what ``postprocess`` returned."""
    error: RequestError | None = None
    returned = type(given).__name__
    if isinstance(given, tuple):
        returned = f"tuple of {len(given)}"
        if len(given) == 3:
            given, number, text = given
            returned = f"tuple that begins with {type(given).__name__}"
            if number is not None:
                error = product_error(number, text)
    if error is None and not isinstance(given, dict):
        error = WrongType(
            f"postprocess should return dict, or (dict, prod_errcode, prod_errinfo): "
            f"that of op {op.name!r} returned {returned}"
        )
    return (given if isinstance(given, dict) else {}), error
