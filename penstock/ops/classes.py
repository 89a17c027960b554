"""Users' classes in the place of functions: each worker has an object of its own."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from inspect import isawaitable
from typing import Any

from penstock.errors import HookError
from penstock.ops.functions import is_generator, name_of
from penstock.ops.seats import has_seats


class ServedClass:
    """A class of which each worker has an object, whose ``load`` runs once, if it has one.

    Attributes:
        called: its name.
        has_init: whether it has an ``__init__`` of its own.
        step: the step of a start that runs, or those that will run, in messages.
    """

    def __init__(self, target: type) -> None:
        self._target = target
        self.called = name_of(target)
        self.has_init = getattr(target, "__init__", None) is not object.__init__
        self._has_load = hasattr(target, "load")
        self._steps = f"{self.called}.__init__"
        if self._has_load:
            own = f"{self._steps} and " if self.has_init else ""
            self._steps = f"{own}{self.called}.load"
        self.step = self._steps

    @property
    def loads(self) -> bool:
        """Whether code of the user's runs at the start."""
        return self.has_init or self._has_load

    def make(self, **given: Any) -> Any:
        """Make an object, and run its ``load``."""
        self.step = f"{self.called}.__init__"
        made = self._target(**given)
        load = getattr(made, "load", None)
        if load is not None:
            self.step = f"{self.called}.load"
            loading = load()
            if isawaitable(loading):
                _wait_for(loading)
        self.step = self._steps
        return made


def method_of(target: type, names: Sequence[str]) -> str:
    """The name of the method that is called with the requests: the first of these that exists.

    Raises:
        HookError: there is none.
    """
    name = next((name for name in names if hasattr(target, name)), None)
    if name is None and has_seats(target):
        raise HookError(
            f"{target.__name__} has join and step, which are for seats: write seats=8, or another"
            " number of requests that run at once"
        )
    if name is None:
        hint = "; rename __call__ to predict" if "__call__" in vars(target) else ""
        raise HookError(
            f"{target.__name__} has no method inference or predict: one of them is called with"
            f" the requests{hint}"
        )
    check_method(target, name, may_yield=True)
    return name


def check_method(target: type, name: str, *, may_yield: bool = False) -> None:
    """Check that a class's attribute is a method that can be called.

    Raises:
        HookError: it cannot.
    """
    found = getattr(target, name)
    if not callable(found):
        raise HookError(f"{target.__name__}.{name} is a {type(found).__name__}, no method")
    if is_generator(found) and not may_yield:
        raise HookError(f"{target.__name__}.{name} is a generator: write return instead of yield")


def takes_object(target: type, name: str) -> int:
    """The number of parameters of a class's method that are its object: 1, or 0 if it is static,
    a class method, or no function at all.
    """
    found = inspect.getattr_static(target, name)
    if isinstance(found, (staticmethod, classmethod)):
        return 0
    return int(hasattr(type(found), "__get__") and not isinstance(found, functools.partial))


def _wait_for(loading: Awaitable[Any]) -> None:
    """Run an awaitable in an event loop of its own: that of the service does not run yet, or is
    this thread's.
    """

    async def run() -> None:
        await loading

    with ThreadPoolExecutor(1, thread_name_prefix="load") as thread:
        thread.submit(asyncio.run, run()).result()
