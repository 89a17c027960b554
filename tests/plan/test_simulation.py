"""The simulation, compared with results of queueing theory."""

from __future__ import annotations

from dataclasses import replace
from math import factorial
from random import Random

import pytest

from penstock.plan.costs import Costs, Line, OpCosts
from penstock.plan.simulation import simulate


def op(name: str = "op", seconds: float = 1.0, **more: object) -> OpCosts:
    """An op that waits this many seconds."""
    return OpCosts(name=name, wait=Line(0.0, seconds), **more)  # type: ignore[arg-type]


def computing(name: str, seconds: float, **more: object) -> OpCosts:
    return OpCosts(name=name, cpu=Line(0.0, seconds), **more)  # type: ignore[arg-type]


def exponential(name: str = "op") -> tuple[dict[str, float], ...]:
    random = Random(7)
    return tuple({name: random.expovariate(1.0)} for _ in range(20_000))


def erlang_c(workers: int, load: float) -> float:
    """The probability of having to wait (Erlang 1917)."""
    last = load**workers / factorial(workers) * workers / (workers - load)
    return last / (sum(load**k / factorial(k) for k in range(workers)) + last)


@pytest.mark.parametrize(("workers", "load"), [(1, 0.5), (2, 1.2), (4, 3.0)])
def test_the_queue_of_an_op_with_exponential_times_follows_erlang_c(
    workers: int, load: float
) -> None:
    costs = Costs(ops=(op(workers=workers),), requests=exponential())
    found = simulate(costs, rate=load, requests=60_000)
    waiting = erlang_c(workers, load) / (workers - load)
    assert found.ops["op"].queue == pytest.approx(waiting, rel=0.08)
    assert found.mean == pytest.approx(1.0 + waiting, rel=0.05)
    assert found.ops["op"].busy == pytest.approx(load / workers, rel=0.03)
    assert found.ops["op"].waiting == pytest.approx(load * waiting, rel=0.1)  # Little


def test_the_queue_of_an_op_with_constant_times_follows_pollaczek_khinchine() -> None:
    found = simulate(Costs(ops=(op(),)), rate=0.7, requests=40_000)
    assert found.ops["op"].queue == pytest.approx(0.7 / (2 * (1 - 0.7)), rel=0.06)


def test_cores_are_shared_evenly() -> None:
    costs = Costs(ops=(computing("op", 1.0, workers=1000),), cores=1.0, requests=exponential())
    found = simulate(costs, rate=0.6, requests=40_000)
    assert found.mean == pytest.approx(1.0 / (1.0 - 0.6), rel=0.06)  # M/G/1 processor sharing
    assert found.cores == pytest.approx(0.6, rel=0.03)


def test_the_latency_of_a_single_client_is_that_of_the_longest_branch() -> None:
    ops = (
        op("quick", 0.2),
        op("slow", 0.5),
        op("join", 0.1, inputs=("quick", "slow")),
    )
    costs = Costs(ops=ops, cores=2.0, engine=0.04, client=0.02, overhead=0.01)
    found = simulate(costs, requests=100)
    assert found.mean == pytest.approx(0.5 + 0.1 + 0.03 + 0.02 + 0.01, abs=0.011)
    assert found.quantile(0.95) == pytest.approx(found.mean)
    assert found.rate == pytest.approx(1 / found.mean)


@pytest.mark.parametrize(
    ("costs", "rate"),
    [
        (Costs(ops=(op(workers=3),)), 3.0),
        (Costs(ops=(computing("op", 1.0, workers=8),), cores=2.0), 2.0),
        (Costs(ops=(computing("op", 1.0, workers=8),), cores=2.0, locked=True), 1.0),
        (Costs(ops=(computing("op", 1.0, workers=4),), cores=2.0, locked=True, engines=2), 2.0),
        (Costs(ops=(op(workers=8),), most_running=2), 2.0),
        (Costs(ops=(op(),), engine=4.0), 0.25),
        (Costs(ops=(OpCosts(name="op", wait=Line(1.0, 0.25), batch_size=4),)), 2.0),
        (Costs(ops=(computing("op", 1.0, threads=2),), cores=2.0), 2.0),
    ],
)
def test_many_clients_reach_the_throughput_limit(costs: Costs, rate: float) -> None:
    found = simulate(costs, in_flight=32, requests=2000)
    assert found.rate == pytest.approx(rate, rel=0.02)
    assert found.mean == pytest.approx(32 / rate, rel=0.02)  # Little


def test_a_batch_waits_for_requests_within_its_window() -> None:
    batched = OpCosts(name="op", wait=Line(1.0, 0.0), batch_size=4, window=0.5)
    alone = simulate(Costs(ops=(batched,)), in_flight=1, requests=50)
    assert alone.mean == pytest.approx(1.5)
    full = simulate(Costs(ops=(batched,)), in_flight=4, requests=400)
    assert full.ops["op"].batch == pytest.approx(4.0)
    assert full.mean == pytest.approx(1.0, rel=0.02)


def test_the_times_of_a_request_at_several_ops_are_correlated() -> None:
    both = ({"a": 0.5, "b": 0.5}, {"a": 1.5, "b": 1.5})
    costs = Costs(ops=(op("a"), op("b", inputs=("a",))), requests=both)
    found = simulate(costs, in_flight=1, requests=200)
    assert {round(each, 6) for each in found.latencies} == {1.0, 3.0}


def test_the_same_seed_gives_the_same_figures() -> None:
    costs = Costs(ops=(op(),), requests=exponential())
    assert simulate(costs, rate=0.5, seed=3) == simulate(costs, rate=0.5, seed=3)
    assert simulate(costs, rate=0.5, seed=3) != simulate(replace(costs, cores=2.0), rate=0.4)
