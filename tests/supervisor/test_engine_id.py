from __future__ import annotations

import pytest

from penstock.engine.engine import IDS_WRAP
from penstock.supervisor.engine_id import EngineId


def test_a_single_engine_counts_from_zero_and_has_no_name() -> None:
    engine_id = EngineId()
    assert engine_id.is_first
    assert engine_id.first_id == 0
    assert engine_id.name is None
    assert [engine_id.card(3, worker) for worker in range(3)] == [0, 1, 2]


def test_several_engines_count_in_steps_from_their_own_index() -> None:
    assert [EngineId(index=k, engines=3).first_id for k in range(3)] == [0, 1, 2]
    assert EngineId(index=1, engines=3).name == "engine 1"


@pytest.mark.parametrize("engines", [1, 3, 1024])
def test_ids_of_engine_processes_are_disjoint(engines: int) -> None:
    seen = set[int]()
    for index in range(engines):
        for generation in (0, 1, 2):
            first = EngineId(index=index, engines=engines, generation=generation).first_id
            ids = {first, first + engines, first + engines * (10**12 - 1)}
            assert not ids & seen
            assert max(ids) < IDS_WRAP
            seen |= ids


def test_ids_stay_in_range_after_many_restarts() -> None:
    for generation in (998, 10**6, 10**9):
        engine_id = EngineId(index=1023, engines=1024, generation=generation)
        assert engine_id.first_id + 1024 * (10**12 - 1) < IDS_WRAP
        assert engine_id.first_id % 1024 == 1023


def test_cards_are_distributed_over_the_workers_of_all_engines() -> None:
    cards = [EngineId(index=k, engines=2).card(3, worker) for k in range(2) for worker in range(3)]
    assert cards == [0, 1, 2, 3, 4, 5]
    assert [EngineId(index=k, engines=2).card() for k in range(2)] == [0, 1]
