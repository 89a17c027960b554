import asyncio
import time

from penstock.client.call import Call
from penstock.client.errors import CallFailed
from penstock.client.expiry import Expiry
from penstock.protocols.status import GrpcCode

from .conftest import PATIENCE

FAILURE = CallFailed(GrpcCode.DEADLINE_EXCEEDED, "late")


class Watch:
    """Calls under one expiry, and when each was ended by it."""

    def __init__(self) -> None:
        self.expiry = Expiry(asyncio.get_running_loop(), self._expired)
        self.ended: list[tuple[Call, float]] = []

    def call(self, seconds: float) -> Call:
        deadline = time.monotonic() + seconds
        call = Call(b"", deadline, lambda outcome: None)
        self.expiry.add(call, deadline)
        return call

    def _expired(self, call: Call) -> None:
        self.ended.append((call, time.monotonic()))
        call.end(FAILURE)

    async def until_ended(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.ended) < count:
                await asyncio.sleep(0.005)


async def test_calls_end_in_the_order_of_their_deadlines_and_not_before() -> None:
    watch = Watch()
    calls = [watch.call(seconds) for seconds in (0.06, 0.02, 0.04, 0.0)]
    await watch.until_ended(4)
    assert [call for call, _ in watch.ended] == [calls[3], calls[1], calls[2], calls[0]]
    assert all(at >= (call.deadline or 0) for call, at in watch.ended)
    assert len(watch.expiry) == 0


async def test_a_call_that_has_ended_is_left_alone() -> None:
    watch = Watch()
    good, late = watch.call(0.01), watch.call(0.02)
    good.end(b"in time")
    await watch.until_ended(1)
    assert [call for call, _ in watch.ended] == [late]


async def test_calls_that_end_in_time_do_not_pile_up() -> None:
    watch = Watch()
    waiting = [watch.call(1000.0) for _ in range(10)]
    most = 0
    for _ in range(20_000):
        watch.call(100.0).end(b"in time")
        most = max(most, len(watch.expiry))
    assert most < 1000
    assert not any(call.ended for call in waiting)
    watch.expiry.close()


async def test_after_closing_nothing_expires() -> None:
    watch = Watch()
    call = watch.call(0.01)
    watch.expiry.close()
    await asyncio.sleep(0.05)
    assert not call.ended
