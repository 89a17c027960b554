import asyncio
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from penstock.client import AsyncPipelineClient, CallFailed, NotConnected, response_arrays
from penstock.protocols import pb
from penstock.protocols.status import GrpcCode

from .conftest import TIMEOUT, Service, Stuck, echo
from .test_client import at_capacity

Serve = Callable[..., Service]


@pytest.fixture
async def client() -> AsyncIterator[AsyncPipelineClient]:
    async with AsyncPipelineClient() as client:
        yield client


async def reached(stuck: Stuck) -> bool:
    return await asyncio.to_thread(stuck.entered.wait, TIMEOUT)


async def abandoned(stuck: Stuck) -> bool:
    return await asyncio.to_thread(stuck.abandoned.wait, TIMEOUT)


async def test_the_async_client_sends_the_same_request_as_the_sync_client(
    serve: Serve, client: AsyncPipelineClient
) -> None:
    service = serve(echo)
    await client.connect([service.endpoint])
    array = np.array([1.5], dtype=np.float32)
    response = await client.predict(
        {"x": array, "logid": 3, "clientip": "c"}, ["y"], pack_tensor_format=True, name="n"
    )
    tensor = pb.Tensor(name="x", elem_type=1, shape=[1], float_data=[1.5])
    assert service.next_request() == pb.Request(tensors=[tensor], logid=3, clientip="c", name="n")
    assert np.array_equal(response_arrays(response)["x"], array)


async def test_many_calls_run_at_once(serve: Serve, client: AsyncPipelineClient) -> None:
    await client.connect([serve(echo).endpoint, serve(echo).endpoint])
    calls = [client.predict({"x": str(i)}, timeout=TIMEOUT) for i in range(50)]
    assert [reply.value[0] for reply in await asyncio.gather(*calls)] == [str(i) for i in range(50)]


async def test_cancelling_the_task_reaches_the_server(
    serve: Serve, client: AsyncPipelineClient, stuck: Stuck
) -> None:
    await client.connect([serve(stuck).endpoint])
    task = asyncio.create_task(client.predict({"x": "1"}))
    assert await reached(stuck)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await abandoned(stuck)


async def test_a_call_that_a_server_has_not_begun_goes_to_the_next(
    serve: Serve, client: AsyncPipelineClient
) -> None:
    full, good = serve(at_capacity(60_000)), serve(echo)
    await client.connect([full.endpoint, good.endpoint])
    for turn in range(6):
        response = await client.predict({"x": str(turn)}, timeout=TIMEOUT)
        assert response.value[0] == str(turn)
    assert full.received.qsize() > 0
    turns = iter([at_capacity(1), echo])
    full.answer = lambda request, context: next(turns)(request, context)
    await client.connect([full.endpoint])
    assert (await client.predict({"x": "1"}, timeout=TIMEOUT)).value[0] == "1"


async def test_close_cancels_a_call_in_flight(
    serve: Serve, client: AsyncPipelineClient, stuck: Stuck
) -> None:
    await client.connect([serve(stuck).endpoint])
    task = asyncio.create_task(client.predict({"x": "1"}))
    assert await reached(stuck)
    await client.close()
    with pytest.raises(CallFailed) as caught:
        await asyncio.wait_for(task, TIMEOUT)
    assert caught.value.status is GrpcCode.CANCELLED
    assert await abandoned(stuck)


async def test_calls_before_connect_and_after_close_raise_not_connected(serve: Serve) -> None:
    client = AsyncPipelineClient()
    with pytest.raises(NotConnected):
        await client.predict({"x": "1"})
    service = serve()
    await client.connect([service.endpoint])
    assert repr(client) == f"<AsyncPipelineClient {service.endpoint}>"
    await client.close()
    await client.close()
    assert repr(client) == "<AsyncPipelineClient not connected>"
    with pytest.raises(NotConnected):
        await client.predict({"x": "1"})


async def test_calls_from_another_event_loop_raise_not_connected(
    serve: Serve, client: AsyncPipelineClient
) -> None:
    await client.connect([serve().endpoint])

    def elsewhere() -> None:
        asyncio.run(client.predict({"x": "1"}))

    with pytest.raises(NotConnected, match="another event loop"):
        await asyncio.to_thread(elsewhere)
    assert (await client.predict({"x": "1"}, timeout=TIMEOUT)).err_no == 0
