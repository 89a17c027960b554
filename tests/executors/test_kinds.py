"""Kinds of executors: their properties, and adding others."""

from __future__ import annotations

from importlib import metadata

import pytest

from penstock.errors import ConfigError
from penstock.executors import kinds
from penstock.executors.kinds import (
    COROUTINE,
    EXTERNAL,
    INLINE,
    PROCESS,
    THREAD,
    ExecutorKind,
    kind_named,
)
from penstock.executors.local import InlineExecutor

TOY = ExecutorKind(name="toy", make=lambda spec: InlineExecutor(spec.ops[0]))


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "_registered", dict(kinds._registered))


def test_the_built_in_kinds_have_their_properties() -> None:
    every = (INLINE, THREAD, COROUTINE, PROCESS, EXTERNAL)
    assert [each.name for each in every if each.on_loop] == ["inline", "coroutine"]
    assert [each.name for each in every if each.own_processes] == ["process"]
    assert [each.name for each in every if each.opens_here] == ["inline", "thread", "coroutine"]
    assert [each.name for each in every if each.needs_socket] == ["external"]
    assert [kind_named(each) for each in ("inline", "thread", "process")] == [
        INLINE,
        THREAD,
        PROCESS,
    ]


def test_a_kind_can_be_registered() -> None:
    with pytest.raises(ConfigError, match="must be one of external, inline, process, ray, thread"):
        kind_named("toy")
    kinds.register(TOY)
    assert kind_named("toy") is TOY


@pytest.mark.parametrize(("value", "why"), [("TOY", None), ("NONE", "must be importable")])
def test_a_kind_can_be_added_by_an_entry_point(
    value: str, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = metadata.EntryPoint("toy", f"{__name__}:{value}", kinds.ENTRY_POINTS)

    def entry_points(group: str, name: str = "toy") -> list[metadata.EntryPoint]:
        return [entry] if (group, name) == (kinds.ENTRY_POINTS, "toy") else []

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    if why is None:
        assert kind_named("toy") is TOY
    else:
        with pytest.raises(ConfigError, match=why):
            kind_named("toy")
