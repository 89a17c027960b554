"""Values that live as long as a process serves: made at its start, released at its end.

A generator function yields the value once. Functions and classes that have a parameter of its type
get it, in each process that runs them: the engine's for threads, and each worker process.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, get_args, get_origin, get_type_hints

from penstock.errors import HookError
from penstock.ops.functions import called_by, name_of

_GENERATORS: Final = (Iterator, Iterable, Generator)


class Lifespan:
    """One such function. Its methods may be called in any thread.

    Args:
        function: a generator function that yields once.

    Attributes:
        name: the function's.
        type: of its value; None if it yields none.

    Raises:
        HookError: the function is none of that kind.
    """

    def __init__(self, function: Callable[[], Iterator[Any]]) -> None:
        self.name = name_of(function)
        inner = getattr(function, "__wrapped__", None)
        if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
            raise HookError(f"{self.name}: remove the decorator between it and @app.lifespan")
        if inspect.isasyncgenfunction(function):
            raise HookError(
                f"{self.name}: write def instead of async def: it runs before the event loop does;"
                " what belongs to the loop, such as a client of asyncio, is made at the first"
                " request that needs it"
            )
        if not inspect.isgeneratorfunction(function):
            raise HookError(f"{self.name} has no yield between the start and the end")
        if inspect.signature(function).parameters:
            raise HookError(
                f"{self.name} must have no parameters: yield what functions of routes need: they"
                f" get it by its type"
            )
        returned = get_type_hints(function).get("return")
        kinds = get_args(returned) if get_origin(returned) in _GENERATORS else ()
        self.type: Any = kinds[0] if kinds and kinds[0] is not type(None) else None
        if returned is not None and not kinds:
            raise HookError(
                f"{self.name} is annotated with -> Iterator[...], with the type of its value"
            )
        self._make = contextmanager(function)
        self._lock = threading.Lock()
        self._users = 0
        self._context: AbstractContextManager[Any] | None = None
        self._value: Any = None

    def __repr__(self) -> str:
        return f"<Lifespan {self.name}>"

    def enter(self) -> Any:
        """Return the value for one more user; the first one in this process makes it."""
        with self._lock:
            if not self._users:
                context = self._make()
                self._value = context.__enter__()
                self._context = context
            self._users += 1
            return self._value

    def leave(self) -> None:
        """One user ends; with the last one the value is released."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            context, self._context, self._value = self._context, None, None
        assert context is not None, "it was entered"
        context.__exit__(None, None, None)


def values_for(
    function: Callable[..., Any], lifespans: Iterable[Lifespan], skip: int = 0
) -> dict[str, Lifespan]:
    """Return the parameters of a function whose type is that of a lifespan's value."""
    by_type = {each.type: each for each in lifespans if each.type is not None}
    if not by_type:
        return {}
    try:
        hints = get_type_hints(called_by(function))
    except (NameError, TypeError):  # reported with the signature
        return {}
    names = list(inspect.signature(function).parameters)[skip:]
    return {
        name: by_type[hints[name]]
        for name in names
        if name in hints and _hashable(hints[name]) and hints[name] in by_type
    }


def _hashable(kind: Any) -> bool:
    try:
        hash(kind)
    except TypeError:
        return False
    return True
