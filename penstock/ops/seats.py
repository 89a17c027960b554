"""Users' classes with seats: requests join a running batch, and leave it between two steps.

join(request) -> state        one request takes a seat
step(states) -> results       one result for each of the running requests, in their order
leave(state)                  a request gives its seat back; optional
fits(state) -> bool           whether a request may run beside the others; optional
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import HookError
from penstock.ops.functions import called_by, name_of
from penstock.request import Feed

STEPS: Final = ("join", "step")
"""The methods that a class with seats has."""
_FURTHER: Final = ("leave", "fits")
_ARGUMENT: Final = {"step": "running", "leave": "state", "fits": "state"}


class Done:
    """What ``step`` returns for a request that has its whole answer.

    Args:
        piece: the last piece of it; None: there is none.
    """

    __slots__ = ("piece",)

    def __init__(self, piece: Any = None) -> None:
        self.piece = piece

    def __repr__(self) -> str:
        return "Done()" if self.piece is None else f"Done({self.piece!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatHooks:
    """The methods of one worker's object, as executors call them.

    Attributes:
        join: takes what ``preprocess`` made of a request; returns its state.
        step: takes the states of the running requests; returns a result for each of them.
        leave, fits: take a state; None if the class has none.
        wrap: makes of a piece what ``postprocess`` takes as the result of ``process``.
    """

    join: Callable[[Feed], Any]
    step: Callable[[list[Any]], Any]
    leave: Callable[[Any], object] | None
    fits: Callable[[Any], object] | None
    wrap: Callable[[Any], Any]


def hooks_of(made: Any, join: Callable[[Feed], Any], wrap: Callable[[Any], Any]) -> SeatHooks:
    """Those of an object of a class that ``check_seats`` has accepted."""
    return SeatHooks(
        join=join,
        step=made.step,
        leave=getattr(made, "leave", None),
        fits=getattr(made, "fits", None),
        wrap=wrap,
    )


def has_seats(target: Any) -> bool:
    """Whether a target is a class with the methods of seats."""
    return isinstance(target, type) and all(hasattr(target, each) for each in STEPS)


def check_seats(target: Any) -> None:
    """Check what is served with ``seats``.

    Raises:
        HookError: it is no class, or lacks a method, or a method cannot be called.
    """
    called = name_of(target)
    if not isinstance(target, type):
        raise HookError(
            f"{called} has seats, and is no class: seats are for a class with join and step"
        )
    missing = [each for each in STEPS if not hasattr(target, each)]
    if missing:
        raise HookError(
            f"{called} has seats, and no method {' and '.join(missing)}: join(request) takes one"
            " request, step(running) makes a piece for each of the running ones"
        )
    for name in (*STEPS, *_FURTHER):
        method = getattr(target, name, None)
        if method is None:
            continue
        if not callable(method):
            raise HookError(f"{called}.{name} is a {type(method).__name__}, no method")
        function = called_by(method)
        waits = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        if waits or inspect.isgeneratorfunction(function):
            raise HookError(
                f"{called}.{name} is {'async' if waits else 'a generator'}, and the methods of a"
                f" class with seats are called one after the other: write def {name} with return"
            )
        if name in _ARGUMENT:
            _check_argument(called, name, inspect.getattr_static(target, name), method)


def _check_argument(called: str, name: str, found: Any, method: Callable[..., Any]) -> None:
    own: Sequence[None] = [] if isinstance(found, (staticmethod, classmethod)) else [None]
    try:
        inspect.signature(method).bind(*own, None)
    except ValueError:
        return  # a C function without a signature
    except TypeError as error:
        wanted = f"({'self, ' * len(own)}{_ARGUMENT[name]})"
        raise HookError(f"{called}.{name} takes one argument, {wanted}: {error}") from error
