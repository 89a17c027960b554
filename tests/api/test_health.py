from __future__ import annotations

import asyncio

import pytest

from penstock.api import health
from penstock.api.health import Health


async def test_a_watcher_gets_the_state_and_then_each_change() -> None:
    state = Health()
    changes = state.changes()
    assert await anext(changes) is False
    for change, ready in [(state.set_ready, True), (lambda: state.set_unready("stopping"), False)]:
        change()
        assert await anext(changes) is ready
    await changes.aclose()


async def test_a_change_of_the_reason_alone_is_not_reported() -> None:
    state = Health()
    changes = state.changes()
    assert await anext(changes) is False
    following = asyncio.ensure_future(anext(changes))
    state.set_unready("another")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not following.done()
    state.set_ready()
    assert await following is True
    await changes.aclose()


async def test_all_watchers_get_a_change() -> None:
    state = Health()
    watchers = [state.changes() for _ in range(3)]
    assert [await anext(each) for each in watchers] == [False] * 3
    following = [asyncio.ensure_future(anext(each)) for each in watchers]
    await asyncio.sleep(0)
    state.set_ready()
    assert await asyncio.gather(*following) == [True] * 3


async def test_a_stuck_service_is_reported_without_a_notification(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "LOOK", 0.01)
    why: list[str | None] = [None]
    state = Health()
    state.watch(lambda: why[0])
    state.set_ready()
    changes = state.changes()
    states = []
    async for ready in changes:
        states.append((ready, state.ready()))
        why[0] = None if why[0] else "op 'work': no worker returns"
        if len(states) == 3:
            break
    assert states == [
        (True, (True, "ok")),
        (False, (False, "op 'work': no worker returns")),
        (True, (True, "ok")),
    ]
