import pytest

from benchmarks.hop import EXECUTORS, LENGTHS, cost_of, cpu_us_per_request
from benchmarks.results import hop_table


def test_the_cost_of_a_hop_is_the_slope_over_the_length_of_the_chain() -> None:
    cost = cost_of("inline", [13.0, 21.0, 29.0])
    assert cost.hop_us == pytest.approx(8.0)
    assert cost.ends_us == pytest.approx(5.0)
    assert hop_table([cost]).row_count == 1


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("length", [LENGTHS[0], LENGTHS[-1]])
async def test_a_chain_is_loaded_and_comes_to_rest(executor: str, length: int) -> None:
    assert 0 < await cpu_us_per_request(length, executor, 0.02) < 100_000
