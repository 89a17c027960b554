"""Which parameter of a user's function gets who calls: the one that is annotated ``Caller``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace, UnionType
from typing import Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

from penstock.caller import Caller
from penstock.errors import HookError
from penstock.ops.functions import called_by, given_by, name_of

AsksCaller: TypeAlias = Literal["optional", "required"]
"""How an op asks who calls: ``Caller | None``, or ``Caller``, without which it cannot run."""


class CallerParameter(NamedTuple):
    """A parameter that gets who calls; with ``required`` never None."""

    name: str
    required: bool

    @property
    def asks(self) -> AsksCaller:
        """See there."""
        return "required" if self.required else "optional"


def caller_parameter(
    function: Callable[..., Any], *, batched: bool = False
) -> CallerParameter | None:
    """The parameter that gets who calls, if there is one.

    Args:
        function: a user's function, method or hook.
        batched: the parameter is a list with an element for each request.

    Raises:
        HookError: there are several, or the type is no list although it should be.
    """
    called = called_by(function)
    given = given_by(function)
    found = []
    for name, kind in getattr(called, "__annotations__", {}).items():
        if name == "return" or name in given:
            continue
        if isinstance(kind, str):
            if "Caller" not in kind:
                continue
            kind = _resolved(called, name, kind)
        parts = get_args(kind)
        several = get_origin(kind) is list
        if several:
            (kind,) = parts
            parts = get_args(kind)
        optional = get_origin(kind) in (Union, UnionType) and {*parts} == {Caller, type(None)}
        if kind is not Caller and not optional:
            continue
        if several != batched:
            wanted = "list[Caller], with an element for each request" if batched else "Caller"
            raise HookError(f"{name_of(function)}: the parameter {name} must be {wanted}")
        found.append(CallerParameter(name, not optional))
    if len(found) > 1:
        names = " and ".join(each.name for each in found)
        raise HookError(f"{name_of(function)}: {names} are both the caller: remove one")
    return found[0] if found else None


def must_be_last(function: Callable[..., Any], caller: CallerParameter) -> None:
    """Check that arguments by position do not reach the parameter: the caller is given by name.

    Raises:
        HookError: a parameter after it has no name in the call.
    """
    parameters = list(inspect.signature(function).parameters.values())
    names = [each.name for each in parameters]
    at = names.index(caller.name) if caller.name in names else len(names)
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wrong = at < len(names) and parameters[at].kind is inspect.Parameter.POSITIONAL_ONLY
    if wrong or any(each.kind in by_position for each in parameters[at + 1 :]):
        raise HookError(f"{name_of(function)}: write the parameter {caller.name} last")


def _resolved(called: Any, name: str, kind: str) -> Any:
    """The type of an annotation that is a text; the others may have names that are not there."""
    module = getattr(inspect.unwrap(called), "__globals__", {})
    try:
        return get_type_hints(SimpleNamespace(__annotations__={name: kind}), module)[name]
    except NameError:  # a class of the user's, imported for type checkers only
        return kind
