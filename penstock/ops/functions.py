"""Users' functions in all their forms: partials, methods of all kinds, callable objects."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CoroutineType
from typing import Any


def name_of(target: Any) -> str:
    """The name of a function or class; of an object that is called, the name of its class."""
    name = getattr(target, "__name__", None)
    if isinstance(name, str):
        return name
    return name_of(target.func if isinstance(target, functools.partial) else type(target))


def called_by(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function or method that it calls, which has the annotations; itself by default."""
    while True:
        partial = _partial_of(function)
        if partial is not None:
            function = partial.func
        elif isinstance(function, staticmethod):
            function = function.__func__
        elif inspect.isroutine(function) or isinstance(function, type):
            return function
        else:
            function = type(function).__call__


def is_coroutine(function: Callable[..., Any]) -> bool:
    """Whether calling it certainly returns a coroutine."""
    return inspect.iscoroutinefunction(called_by(function))


def may_be_coroutine(function: Callable[..., Any]) -> bool:
    """Whether it is a plain function around a coroutine function; it may return the coroutine or
    run it.

    Only a call would show which.
    """
    return not is_coroutine(function) and is_coroutine(inspect.unwrap(called_by(function)))


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether it is a generator function, asynchronous or not."""
    return inspect.isgeneratorfunction(called_by(function)) or is_async_generator(function)


def is_async_generator(function: Callable[..., Any]) -> bool:
    """Whether it is an ``async def`` function that yields."""
    return inspect.isasyncgenfunction(called_by(function))


def runs_on_loop(function: Callable[..., Any]) -> bool:
    """Whether a call of it belongs to the event loop: a coroutine, or an asynchronous generator."""
    return is_coroutine(function) or is_async_generator(function)


def doc_of(target: Callable[..., Any]) -> str:
    """The docstring of a function or class; of an object that is called, also that of its class."""
    called = called_by(target)
    return called.__doc__ or (called.__name__ == "__call__" and type(target).__doc__) or ""


def given_by(function: Any) -> set[str]:
    """The keyword arguments that it gives itself, as a partial."""
    partial = _partial_of(function)
    return set() if partial is None else {*partial.keywords, *given_by(partial.func)}


def _partial_of(function: Any) -> Any:
    """The partial, or the partialmethod of an unbound method; else None."""
    if isinstance(function, functools.partial):
        return function
    found = getattr(function, "__partialmethod__", None) or getattr(
        function,
        "_partialmethod",
        None,  # until Python 3.12
    )
    return found if isinstance(found, functools.partialmethod) else None


def plain_result(given: Any, what: str) -> Any:
    """Return the result of a function that is not awaited.

    Raises:
        TypeError: it is a coroutine, as of a plain function around a coroutine function.
    """
    if type(given) is CoroutineType:
        given.close()  # else Python warns that it was never awaited
        raise TypeError(f"{what} returned a coroutine, which nothing awaits here: write def")
    return given


def uncallable(target: Any) -> str | None:
    """The problem of a target that cannot be called, with what to write; else None."""
    if isinstance(target, classmethod):
        name = getattr(target, "__qualname__", "it")
        return (
            f"{name} is a class method without its class: below the class, decorate the bound"
            f" method, as in app.route(...)({name}), or make it a static method"
        )
    if not callable(target):
        return (
            f"an object of {type(target).__name__} cannot be called: give a function, a class, or a"
            f" method of the object"
        )
    return None
