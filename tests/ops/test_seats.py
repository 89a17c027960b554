"""Classes with seats: what is refused at the start."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import HookError
from penstock.ops.seats import Done, check_seats, has_seats
from penstock.ops.short import op


class Whole:
    def join(self, prompt: str) -> str:
        return prompt

    def step(self, running: list[str]) -> list[str]:
        return running

    def leave(self, state: str) -> None:
        pass


def test_a_class_with_join_and_step_has_seats() -> None:
    check_seats(Whole)
    assert has_seats(Whole)
    assert not has_seats(Whole())


def with_method(**methods: Any) -> type:
    return type("Other", (Whole,), methods)


async def waits(self: Any, state: Any) -> None:
    pass


def yields(self: Any, running: Any) -> Any:
    yield


async def yields_async(self: Any, running: Any) -> Any:
    yield


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (len, "len has seats, and is no class"),
        (type("Other", (), {"step": Whole.step}), "Other has seats, and no method join:"),
        (type("Other", (), {}), "no method join and step:"),
        (with_method(step=waits), "Other.step is async"),
        (with_method(step=yields), "Other.step is a generator"),
        (with_method(join=waits), "Other.join is async"),
        (with_method(leave=waits), "Other.leave is async"),
        (with_method(fits=yields_async), "Other.fits is async"),
        (with_method(leave=7), "Other.leave is a int, no method"),
        (with_method(step=lambda self: []), r"takes one argument, \(self, running\)"),
        (with_method(leave=lambda self, a, b: None), r"takes one argument, \(self, state\)"),
        (with_method(step=staticmethod(lambda: None)), r"takes one argument, \(running\)"),
    ],
)
def test_what_cannot_have_seats_is_refused_with_what_to_write(target: Any, words: str) -> None:
    with pytest.raises(HookError, match=words):
        check_seats(target)


def test_static_and_class_methods_are_methods() -> None:
    check_seats(
        with_method(
            step=staticmethod(lambda running: running), leave=classmethod(lambda cls, state: None)
        )
    )


def test_an_end_shows_its_last_piece() -> None:
    assert repr(Done()) == "Done()"
    assert repr(Done("last")) == "Done('last')"
    assert Done(1).piece == 1


class Letters:
    """The letters of a request's word, as dicts."""

    def load(self) -> None:
        self.made: list[str] = []

    def join(self, feed: dict[str, Any]) -> list[str]:
        return [*feed["word"]]

    def step(self, running: list[list[str]]) -> list[Any]:
        return [{"letter": each.pop(0)} if each else Done() for each in running]


def test_a_class_with_seats_below_op_streams_and_names_its_methods() -> None:
    made = op(seats=4)(Letters)
    assert made.streams
    assert made.seat_hooks is None, "before init_op"
    made.init_op()
    hooks = made.seat_hooks
    assert hooks is not None
    state = hooks.join(made.preprocess({"@": {"word": "ab"}}))
    assert hooks.wrap(*hooks.step([state])) == {"letter": "a"}
    assert made.hook_name("process") == "Letters.step"
    assert made.hook_name("join") == "Letters.join"


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        (Letters, {"seats": 4, "batch": 4}, "has seats, and batch: leave out batch"),
        (len, {"seats": 4}, "len has seats, and is no class"),
        (Letters, {}, "Letters has join and step, which are for seats: write seats=8"),
        (type("Two", (Letters,), {"join": lambda self, a, b: a}), {"seats": 4}, "gets one dict"),
    ],
)
def test_what_cannot_be_an_op_with_seats_is_refused(
    target: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(HookError, match=words):
        op(**options)(target)
