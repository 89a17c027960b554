"""Users' functions in all their forms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from penstock.ops.functions import (
    called_by,
    doc_of,
    given_by,
    is_coroutine,
    is_generator,
    may_be_coroutine,
    name_of,
    uncallable,
)


def plain(x: int, y: int = 1) -> int:
    """Adds."""
    return x + y


async def waits(x: int) -> int:
    return x


def yields(x: int) -> Any:
    yield x


def around(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return call


class Kinds:
    """Has methods."""

    @staticmethod
    def static(x: int) -> int:
        return x

    @classmethod
    def of_class(cls, x: int) -> int:
        return x

    def method(self, x: int) -> int:
        return x

    async def waiting(self, x: int) -> int:
        return x

    partial = functools.partialmethod(method, x=3)
    waiting_partial = functools.partialmethod(waiting, 3)

    def __call__(self, x: int) -> int:
        return x


class Waiting:
    async def __call__(self, x: int) -> int:
        return x


@pytest.mark.parametrize(
    ("target", "name", "doc", "called"),
    [
        (plain, "plain", "Adds.", plain),
        (functools.partial(functools.partial(plain, y=2), 1), "plain", "Adds.", plain),
        (around(plain), "plain", "Adds.", None),
        (Kinds.static, "static", "", Kinds.static),
        (Kinds.__dict__["static"], "static", "", Kinds.static),
        (Kinds().method, "method", "", None),
        (Kinds(), "Kinds", "Has methods.", Kinds.__call__),
        (Kinds, "Kinds", "Has methods.", Kinds),
    ],
)
def test_a_target_has_a_name_and_a_docstring_and_calls_a_function(
    target: Any, name: str, doc: str, called: Any
) -> None:
    assert name_of(target) == name
    assert doc_of(target) == doc
    assert called_by(target) == (called or target)


def test_the_keywords_of_partials_are_given() -> None:
    assert given_by(functools.partial(functools.partial(plain, y=2), x=1)) == {"x", "y"}
    assert given_by(Kinds.partial) == {"x"}
    assert called_by(Kinds.partial) is Kinds.method
    assert given_by(plain) == set()


@pytest.mark.parametrize(
    ("function", "coroutine", "generator", "maybe"),
    [
        (plain, False, False, False),
        (waits, True, False, False),
        (functools.partial(waits, 1), True, False, False),
        (staticmethod(waits), True, False, False),
        (Waiting(), True, False, False),
        (Kinds().waiting_partial, True, False, False),
        (Kinds.waiting_partial, True, False, False),
        (around(waits), False, False, True),
        (functools.partial(around(waits), 1), False, False, True),
        (functools.partial(yields), False, True, False),
        (Kinds(), False, False, False),
    ],
)
def test_coroutines_and_generators_are_known_in_every_form(
    function: Any, coroutine: bool, generator: bool, maybe: bool
) -> None:
    found = is_coroutine(function), is_generator(function), may_be_coroutine(function)
    assert found == (coroutine, generator, maybe)


def test_what_cannot_be_called_is_refused_with_the_fix() -> None:
    assert uncallable(plain) is uncallable(Kinds) is uncallable(Kinds()) is None
    assert "below the class, decorate the bound method" in str(
        uncallable(Kinds.__dict__["of_class"])
    )
    assert "an object of int cannot be called: give a function" in str(uncallable(3))
