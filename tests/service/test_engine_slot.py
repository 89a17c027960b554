from __future__ import annotations

import socket

from penstock.service.placement import EngineId
from penstock.service.supervisor import EngineSlot


def test_giving_up_closes_what_nobody_else_listens_on() -> None:
    with socket.socket() as own, socket.socket() as other, socket.socket(socket.AF_UNIX) as common:
        first = EngineSlot(EngineId(index=0, engines=2), [own, common])
        second = EngineSlot(EngineId(index=1, engines=2), [other, common])
        first.give_up([second])
        assert first.given_up
        assert [each.fileno() < 0 for each in (own, other, common)] == [True, False, False]


def test_each_process_has_a_place_of_its_own() -> None:
    slot = EngineSlot(EngineId(index=1, engines=2), [])
    ids = [slot.next_id() for _ in range(3)]
    assert [(each.index, each.engines, each.generation) for each in ids] == [
        (1, 2, 0),
        (1, 2, 1),
        (1, 2, 2),
    ]


def test_processes_that_never_serve_wait_longer_each_time_and_are_given_up_at_last() -> None:
    slot = EngineSlot(EngineId(), [])
    starts: list[float] = []
    while slot.plan_restart(None):
        assert slot.start_at is not None
        starts.append(slot.start_at)
    assert slot.start_at is None
    assert len(starts) == 4
    assert starts == sorted(starts)
    assert starts[-1] - starts[0] > 0.3


def test_an_only_engine_has_no_number() -> None:
    assert EngineSlot(EngineId(), []).name == "the engine"
    assert EngineSlot(EngineId(index=1, engines=2), []).name == "engine 1"
