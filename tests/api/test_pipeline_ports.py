"""The pipeline protocol and its ports: bytes written directly equal the encoded Reply."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock import Op, RequestOp, ResponseOp
from penstock.api import pipeline
from penstock.api.paddle import GrpcPort, HttpPort
from penstock.api.pipeline import Answer
from penstock.errors import RequestError
from penstock.protocols import paddle, paddle_json, paddle_message, tensors
from penstock.protocols.pb import Request
from tests.service.in_process import InProcessService, reply_to, service_of

Write = Callable[[Any, Any], bytes | None]

ENCODERS = [
    pytest.param(GrpcPort.write, paddle_message.encode, id="grpc"),
    pytest.param(HttpPort.write, paddle_json.encode, id="http"),
]


class RecordingPort:
    """A port that records its calls."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self.done_with: list[tuple[Any, Answer | None, RequestError | None]] = []
        self.called = asyncio.Event()

    def write(self, names: Any, texts: Any, /) -> bytes | None:
        return self._write(names, texts)

    def encode(self, reply: Any, /) -> Any:
        return reply

    def reserve(self, context: Any, size: int, /) -> None:
        return None

    def done(self, context: Any, answer: Answer | None, error: RequestError | None, /) -> None:
        self.done_with.append((context, answer, error))
        self.called.set()


class OwnDict(dict[str, Any]):
    """A user's own dict class, which is faulty."""

    def values(self) -> Any:
        raise ValueError("no values today")


class OwnItems(OwnDict):
    def items(self) -> Any:
        raise ValueError("no items today")


def texts(**pairs: str) -> paddle.Call:
    """A call as decoded from gRPC."""
    request = Request(key=list(pairs), value=list(pairs.values()), name="any", method="m", logid=7)
    return paddle_message.decode(request.SerializeToString(), ("any",))


def with_tensor() -> paddle.Call:
    return paddle.Call(["x"], ["1"], [tensors.encode("y", np.ones(2))], logid=7)


RESULTS: dict[str, Any] = {
    "a text": {"y": "1"},
    "texts": {"y": "1", "z": "ä" * 200},
    "nothing": {},
    "an array": {"y": np.arange(3.0)},
    "a large array": {"y": np.arange(5000.0)},
    "an array and a text": {"a": "1", "y": np.arange(3.0)},
    "a number": {"a": "1", "y": 2},
    "a text that is no Unicode": {"y": "\udcff"},
    "a text of its own kind": {"y": np.str_("1")},
    "a name that is no text": {5: "1"},
    "no values": OwnDict(y="1"),
    "no items": OwnItems(y="1"),
}


def returning(value: Any) -> Op:
    class Returning(Op):
        def postprocess(self, input_dicts: Any, fetch: Any, data_id: int, log_id: int) -> Any:
            return value, None, ""

    return Returning("giving", input_ops=[RequestOp()])


CALLS = [
    pytest.param(lambda: texts(x="1"), id="one pair"),
    pytest.param(lambda: texts(x="1", z="2"), id="two pairs"),
    pytest.param(with_tensor, id="a tensor"),
]


async def answered(service: InProcessService, call: paddle.Call, write: Write) -> Answer:
    """The one answer that a port gets."""
    port = RecordingPort(write)
    context = object()
    cancel = service.protocol.start(call, None, port, context)
    async with asyncio.timeout(5):
        await port.called.wait()
    if cancel is not None:
        cancel()
    await asyncio.sleep(0)
    [(given_context, answer, error)] = port.done_with
    assert given_context is context
    assert answer is not None, error
    return answer


@pytest.mark.parametrize(("write", "encode"), ENCODERS)
@pytest.mark.parametrize("make", CALLS)
@pytest.mark.parametrize("value", RESULTS.values(), ids=RESULTS.keys())
async def test_bytes_written_directly_equal_the_encoded_reply(
    value: Any, make: Callable[[], paddle.Call], write: Write, encode: Any
) -> None:
    async with service_of(returning(value)) as service:
        answer = await answered(service, make(), write)
        expected = encode(await reply_to(service.protocol, make()))
    plain = type(value) is dict and all(
        type(text) is str and text.isprintable() for text in [*value, *value.values()]
    )
    assert isinstance(answer, bytes) == plain
    assert (answer if isinstance(answer, bytes) else encode(answer)) == expected


@pytest.mark.parametrize(("write", "encode"), ENCODERS)
async def test_the_reply_of_an_overridden_response_op_is_not_written_directly(
    write: Write, encode: Any
) -> None:
    class Marking(ResponseOp):
        def pack_response_package(self, channeldata: Any) -> Any:
            reply = super().pack_response_package(channeldata)
            reply.key.append("mark")
            reply.value.append("x")
            return reply

    async with service_of(Marking(input_ops=[returning({"y": "1"})])) as service:
        answer = await answered(service, texts(x="1"), write)
    assert not isinstance(answer, bytes)
    assert [*answer.key] == ["y", "mark"]


async def test_an_overridden_unpack_gets_the_message_of_one_pair() -> None:
    messages: list[Any] = []

    class Own(RequestOp):
        def unpack_request_package(self, request: Any) -> Any:
            messages.append(request)
            return super().unpack_request_package(request)

    async with service_of(Op("work", input_ops=[Own()])) as service:
        answer = await answered(service, texts(x="1"), GrpcPort.write)
    assert messages == [Request(key=["x"], value=["1"], name="any", method="m", logid=7)]
    assert answer == GrpcPort.write(["x"], ["1"])


async def test_an_op_may_edit_the_feed_of_one_pair() -> None:
    class Editing(Op):
        def preprocess(self, input_dicts: Any, data_id: int, log_id: int) -> Any:
            [feed] = input_dicts.values()
            feed["log_id"] = str(log_id)
            feed["x"] += "!"
            return feed

    async with service_of(Editing("work", input_ops=[RequestOp()])) as service:
        answer = await answered(service, texts(x="1"), GrpcPort.write)
    assert answer == paddle_message.encode(paddle.Reply(key=["x", "log_id"], value=["1!", "7"]))


@pytest.mark.parametrize("make", CALLS)
async def test_a_cancelled_call_gets_no_reply(make: Callable[[], paddle.Call]) -> None:
    async with service_of(returning({"y": "1"})) as service:
        port = RecordingPort(GrpcPort.write)
        cancel = service.protocol.start(make(), None, port, None)
        assert cancel is not None
        cancel()
        cancel()
        await answered(service, make(), GrpcPort.write)
        assert not port.done_with
        statistics = service.engine.statistics()
        assert (statistics.admitted, statistics.cancelled, statistics.replied) == (2, 1, 1)


@pytest.mark.parametrize("own", [False, True], ids=["usual", "the user's"])
async def test_a_call_whose_unpacking_fails_ends_without_being_submitted(
    own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []

    class Watched(pipeline._PipelineCall):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.at_end(lambda: ended.append(self.refused))

    class Own(RequestOp):
        def unpack_request_package(self, request: Any) -> Any:
            raise ValueError("no such user")

    monkeypatch.setattr(pipeline, "_PipelineCall", Watched)
    async with service_of(Op("work", input_ops=[Own() if own else RequestOp()])) as service:
        port = RecordingPort(GrpcPort.write)
        service.protocol.start(paddle.Call(["x", "y"], ["1"], []), None, port, None)
        async with asyncio.timeout(5):
            await port.called.wait()
        assert (len(port.done_with), ended) == (1, [True])


async def test_an_answered_request_is_freed_without_the_garbage_collector() -> None:
    async with service_of(returning({"y": "1"})) as service:
        port = RecordingPort(GrpcPort.write)
        context = OwnDict()
        reference = weakref.ref(context)
        cancel = service.protocol.start(texts(x="1"), None, port, context)
        del context
        await asyncio.wait_for(port.called.wait(), 5)
        await asyncio.sleep(0.05)  # until the worker drops its references
        assert reference() is not None
        gc.disable()
        try:
            port.done_with.clear()
            del cancel
            assert reference() is None
        finally:
            gc.enable()


async def test_a_refusal_is_reported_before_start_returns() -> None:
    async with service_of(returning({"y": "1"})) as service:
        service.engine.drain(lambda: None)
        port = RecordingPort(GrpcPort.write)
        assert service.protocol.start(texts(x="1"), None, port, None) is None
        [(_, answer, error)] = port.done_with
        assert answer is None
        assert error is not None


class Call:
    """A call of either port, which records its reply."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.exchange = self

    def reply(self, *answer: Any) -> None:
        self.bodies.append(answer[-1])


@pytest.mark.parametrize("port", [GrpcPort, HttpPort])
def test_a_reply_that_cannot_be_encoded_becomes_an_internal_error(
    port: Any, caplog: pytest.LogCaptureFixture
) -> None:
    call = Call()
    port(None).done(call, paddle.Reply(err_no=10**30, err_msg="no such number"), None)
    (body,) = call.bodies
    internal = paddle.Reply(err_no=10000, err_msg="internal error")
    assert body in (paddle_message.encode(internal), paddle_json.encode(internal))
    assert "please report this" in caplog.text


class BlockingPack:
    """Replaces ``paddle.pack``: blocks until ``go_on`` is set, and records its threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pack = paddle.pack
        self.threads: list[int] = []
        self.go_on = threading.Event()
        monkeypatch.setattr(paddle, "pack", self)

    def __call__(self, *args: Any, **more: Any) -> Any:
        self.threads.append(threading.get_ident())
        assert self.go_on.wait(5)
        return self._pack(*args, **more)


@pytest.mark.parametrize("own_root", [False, True])
async def test_a_large_array_is_written_in_a_thread_off_the_loop(
    own_root: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OwnRoot(RequestOp):
        def unpack_request_package(self, request: Any) -> Any:
            return {"x": "1"}

    class Returning(Op):
        def postprocess(self, input_dicts: Any, fetch: Any, data_id: int, log_id: int) -> Any:
            return {"y": np.arange(5000.0)}, None, ""

    pack = BlockingPack(monkeypatch)
    root = OwnRoot() if own_root else RequestOp()
    async with service_of(Returning("giving", input_ops=[root])) as service:
        request = asyncio.create_task(service.call(x="1"))
        async with asyncio.timeout(5):
            while not pack.threads:
                await asyncio.sleep(0)
        assert pack.threads != [threading.get_ident()]
        pack.go_on.set()
        assert (await request).value[0].startswith("array([")
