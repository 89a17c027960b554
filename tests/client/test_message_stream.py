"""Calls whose answer has several messages, against servers by another gRPC library."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

from penstock.client import AsyncPipelineClient, CallFailed, NotConnected, PipelineClient
from penstock.client.model_stream import METHOD, encode_feed
from penstock.protocols import oip_message
from penstock.protocols.standard_messages import inference_messages
from penstock.protocols.status import GrpcCode

TIMEOUT = 30.0
REQUEST, _ = inference_messages("ModelInfer")
_, RESPONSE = inference_messages("ModelStreamInfer")
Answer = Callable[[Any, grpc.ServicerContext], Iterator[bytes]]


def piece(*numbers: int, text: str = "") -> bytes:
    response = RESPONSE()
    output = response.infer_response.outputs.add(name="y", datatype="INT64", shape=[len(numbers)])
    output.contents.int64_contents.extend(numbers)
    if text:
        output = response.infer_response.outputs.add(name="t", datatype="BYTES", shape=[1])
        output.contents.bytes_contents.append(text.encode())
    return bytes(response.SerializeToString())


class Server(grpc.GenericRpcHandler):
    """Answers each call of ModelStreamInfer by a function of its first request."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.metadata: dict[str, str] = {}
        self._server = grpc.server(ThreadPoolExecutor(16), handlers=(self,))
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method != METHOD:
            return None

        def handle(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            self.metadata = dict(context.invocation_metadata())
            (request,) = requests
            yield from self._answer(REQUEST.FromString(request), context)

        return grpc.stream_stream_rpc_method_handler(handle)

    def stop(self) -> None:
        assert self._server.stop(0).wait(TIMEOUT)


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Server]]:
    running: list[Server] = []

    def start(answer: Answer) -> Server:
        running.append(Server(answer))
        return running[-1]

    yield start
    for server in running:
        server.stop()


class Both:
    """The two clients, used in the same way."""

    def __init__(self, asynchronous: bool) -> None:
        self.asynchronous = asynchronous

    def read(self, endpoint: str, most: int = 1 << 30, **options: Any) -> list[dict[str, Any]]:
        """The first pieces."""
        options = {"name": "m", "feed_dict": {"x": 1}} | options
        found: list[dict[str, Any]] = []
        if self.asynchronous:

            async def read() -> None:
                async with AsyncPipelineClient() as client:
                    await client.connect([endpoint])
                    async with client.stream(**options) as pieces:
                        async for each in pieces:
                            found.append(each)
                            if len(found) == most:
                                break

            asyncio.run(read())
            return found
        with PipelineClient() as client:
            client.connect([endpoint])
            with client.stream(**options) as pieces:
                for each in pieces:
                    found.append(each)
                    if len(found) == most:
                        break
        return found


@pytest.fixture(params=[False, True], ids=["threads", "asyncio"])
def client(request: pytest.FixtureRequest) -> Both:
    return Both(request.param)


def test_pieces_are_outputs_and_the_request_has_the_feed(
    client: Both, serve: Callable[[Answer], Server]
) -> None:
    requests = []

    def answer(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        requests.append(request)
        yield piece(1, text="é")
        yield piece(2, 3)
        yield RESPONSE(infer_response={}).SerializeToString()  # an empty final response

    server = serve(answer)
    feed = {"x": np.array([[1.5]], np.float32), "words": ["a", "é"], "n": 3, "text": "b"}
    first, second = client.read(server.endpoint, feed_dict=feed, name="model", log_id=7)
    assert (first["y"].tolist(), first["t"].tolist()) == ([1], ["é"])
    assert second["y"].tolist() == [2, 3]
    (request,) = requests
    assert (request.model_name, request.id) == ("model", "7")
    shapes = {each.name: (each.datatype, [*each.shape]) for each in request.inputs}
    assert shapes == {
        "x": ("FP32", [1, 1]),
        "words": ("BYTES", [2]),
        "n": ("INT64", [1]),
        "text": ("BYTES", [1]),
    }
    assert server.metadata["triton_grpc_error"] == "true"


def test_an_answer_may_have_no_piece(client: Both, serve: Callable[[Answer], Server]) -> None:
    assert client.read(serve(lambda request, context: iter(())).endpoint) == []


def test_a_piece_is_there_when_it_has_arrived(serve: Callable[[Answer], Server]) -> None:
    received = threading.Event()

    def answer(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield piece(1)
        assert received.wait(TIMEOUT)
        yield piece(2)

    with PipelineClient() as client:
        client.connect([serve(answer).endpoint])
        pieces = client.stream({}, name="m")
        assert next(pieces)["y"] == 1
        received.set()
        assert [each["y"].tolist() for each in pieces] == [[2]]
        assert [*pieces] == []


def test_a_status_after_pieces_is_the_error(
    client: Both, serve: Callable[[Answer], Server]
) -> None:
    def answer(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield piece(1)
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "there is no 2")

    with pytest.raises(CallFailed, match="there is no 2") as caught:
        client.read(serve(answer).endpoint)
    assert caught.value.status is GrpcCode.INVALID_ARGUMENT


def test_a_message_with_an_error_is_the_error_behind_its_pieces(
    serve: Callable[[Answer], Server],
) -> None:
    def answer(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield piece(1)
        yield RESPONSE(error_message="there is no 2").SerializeToString()
        yield piece(3)

    with PipelineClient() as client:
        client.connect([serve(answer).endpoint])
        pieces = client.stream({}, name="m")
        assert next(pieces)["y"] == 1
        for _ in range(2):
            with pytest.raises(CallFailed, match="UNKNOWN: there is no 2"):
                next(pieces)


def test_a_server_without_streams_is_told(client: Both, serve: Callable[..., Any]) -> None:
    def answer(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "")
        yield b""

    with pytest.raises(CallFailed, match="need a server with ModelStreamInfer") as caught:
        client.read(serve(answer).endpoint)
    assert caught.value.status is GrpcCode.UNIMPLEMENTED


def test_what_is_no_response_is_a_failed_call(
    client: Both, serve: Callable[[Answer], Server]
) -> None:
    with pytest.raises(CallFailed, match="cannot be read"):
        client.read(serve(lambda request, context: iter([b"\xff"])).endpoint)


@pytest.mark.parametrize("how", ["close", "drop", "deadline"])
def test_the_server_is_told_when_nobody_reads_any_more(
    client: Both, serve: Callable[[Answer], Server], how: str
) -> None:
    cancelled = threading.Event()

    def answer(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(cancelled.set)
        yield piece(1)
        assert cancelled.wait(TIMEOUT)

    endpoint = serve(answer).endpoint
    if how == "close":
        assert len(client.read(endpoint, most=1)) == 1
    elif how == "deadline":
        with pytest.raises(CallFailed) as caught:
            client.read(endpoint, timeout=0.3)
        assert caught.value.status is GrpcCode.DEADLINE_EXCEEDED
    elif client.asynchronous:

        async def drop() -> None:
            async with AsyncPipelineClient() as connected:
                await connected.connect([endpoint])
                pieces = connected.stream({}, name="m")
                await anext(pieces)
                del pieces
                gc.collect()
                assert await asyncio.to_thread(cancelled.wait, TIMEOUT)

        asyncio.run(drop())
    else:
        with PipelineClient() as connected:
            connected.connect([endpoint])
            pieces = connected.stream({}, name="m")
            next(pieces)
            del pieces
            assert cancelled.wait(TIMEOUT)
    assert cancelled.wait(TIMEOUT)


def test_cancelling_a_task_that_waits_cancels_the_call(serve: Callable[[Answer], Server]) -> None:
    cancelled = threading.Event()

    def answer(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(cancelled.set)
        yield piece(1)
        assert cancelled.wait(TIMEOUT)

    async def cancel(endpoint: str) -> None:
        async with AsyncPipelineClient() as client:
            await client.connect([endpoint])
            pieces = client.stream({}, name="m")
            await anext(pieces)
            task = asyncio.ensure_future(anext(pieces))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(cancelled.wait, TIMEOUT)
            with pytest.raises(CallFailed, match="cancelled by the caller"):
                await anext(pieces)

    asyncio.run(cancel(serve(answer).endpoint))


def test_closing_wakes_a_thread_that_waits_and_a_closed_client_ends_its_streams(
    serve: Callable[[Answer], Server],
) -> None:
    def answer(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        left = threading.Event()
        context.add_callback(left.set)
        yield piece(1)
        assert left.wait(TIMEOUT)

    endpoint = serve(answer).endpoint
    client = PipelineClient()
    client.connect([endpoint])
    pieces = client.stream({}, name="m")
    next(pieces)
    closer = threading.Thread(target=pieces.close)
    closer.start()
    with pytest.raises(CallFailed, match="cancelled by the caller"):
        next(pieces)
    closer.join()
    pieces = client.stream({}, name="m")
    next(pieces)
    client.close()
    with pytest.raises(CallFailed, match="the client was closed"):
        next(pieces)
    with pytest.raises(NotConnected):
        client.stream({}, name="m")


def test_a_reader_that_is_slow_stops_its_own_server_and_holds_up_no_other_call(
    serve: Callable[[Answer], Server],
) -> None:
    """Eight readers take a piece of a megabyte; the next ones fill the windows of their streams."""
    made: dict[str, int] = {}
    response = RESPONSE()
    response.infer_response.outputs.add(name="y", datatype="UINT8", shape=[1_000_000])
    response.infer_response.raw_output_contents.append(bytes(1_000_000))
    large = response.SerializeToString()

    def answer(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        for number in range(20 if request.id != "0" else 2):
            made[request.id] = number + 1
            yield large

    with PipelineClient() as client:
        client.connect([serve(answer).endpoint])
        slow = [client.stream({}, name="m", log_id=number) for number in range(1, 9)]
        for each in slow:
            next(each)
        for _ in range(20):
            assert len([*client.stream({}, name="m", timeout=TIMEOUT)]) == 2
        assert all(made[str(number)] < 20 for number in range(1, 9))
        assert [len([*each]) for each in slow] == [19] * 8


@pytest.mark.parametrize(
    "feed",
    [[1], {1: 2}, {"x": object()}, {"x": [[1], [1, 2]]}, {"x": np.array([1j])}, {"x": ["a", 1]}],
)
def test_what_is_no_tensor_is_refused_at_once(feed: Any) -> None:
    with pytest.raises(TypeError):
        encode_feed(feed, "m", "")
    with PipelineClient() as client:
        client.connect(["127.0.0.1:1"])
        with pytest.raises(TypeError):
            client.stream(feed, name="m")


def test_an_empty_list_is_a_tensor_of_no_numbers() -> None:
    request, _ = oip_message.decode(encode_feed({"x": []}, "m", ""))
    assert request.feed["x"].shape == (0,)
