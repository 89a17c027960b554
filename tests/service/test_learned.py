"""An op whose policy is ``learned``, in a service: from its key to its costs and its answers."""

import asyncio
import time

import numpy as np
import pytest

from penstock.batching.learned import LearnedBatcher
from penstock.ops.op import Op
from tests.service.in_process import pairs, root, service_of


class Jumps(Op):
    """Doubles its rows, in 2 ms and 20 more from five rows on."""

    seen: list[int]

    def process(self, feed_batch, typical_logid=0):
        (joined,) = feed_batch
        self.seen.append(len(joined["x"]))
        time.sleep(0.002 + (0.02 if len(joined["x"]) >= 5 else 0.0))
        if (joined["x"] < 0).any():
            raise ValueError("negative")
        return {"y": 2 * joined["x"]}


def jumps() -> Jumps:
    op = Jumps(name="jumps", input_ops=[root()], batch_size=8)
    op.seen = []
    return op


CONFIG = {"op": {"jumps": {"policy": "learned"}}, "dag": {"is_thread_op": True}}


async def test_an_op_learns_where_its_cost_jumps_and_stays_below() -> None:
    op = jumps()
    async with service_of(op, CONFIG) as service:
        (stage,) = (each for each in service.engine.stages if each.name == "jumps")
        assert isinstance(stage.batcher, LearnedBatcher)
        for _ in range(8):
            replies = await asyncio.gather(
                *(service.call(x=np.array([float(n)])) for n in range(40))
            )
            assert [pairs(each)["y"] for each in replies] == [
                f"array([{2 * n}.])" for n in range(40)
            ]
        costs = stage.batcher.costs.report()
    assert max(op.seen) <= 8
    assert costs["batches"] > 16
    four, eight = (stage.batcher.costs.seconds(rows) for rows in (4, 8))
    assert four is not None
    assert eight is not None
    assert eight > 2 * four
    late = op.seen[len(op.seen) // 2 :]
    assert sum(rows <= 4 for rows in late) > 0.75 * len(late)


async def test_a_batch_that_fails_teaches_nothing() -> None:
    async with service_of(jumps(), CONFIG) as service:
        (stage,) = (each for each in service.engine.stages if each.name == "jumps")
        reply = await service.call(x=np.array([-1.0]))
        assert reply.err_no != 0
        assert stage.batcher.costs.report()["batches"] == 0
        await service.call(x=np.array([1.0]))
        assert stage.batcher.costs.report()["batches"] == 1


@pytest.mark.parametrize("policy", ["fifo", "learned"])
async def test_an_op_without_batches_learns_nothing(policy: str) -> None:
    op = Jumps(name="jumps", input_ops=[root()])
    op.seen = []
    async with service_of(op, {"op": {"jumps": {"policy": policy}}}) as service:
        (stage,) = (each for each in service.engine.stages if each.name == "jumps")
        assert stage.batcher.costs is None
