"""The request op and the response op: their defaults, and overridden hooks."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import numpy as np
import pytest

from penstock import (
    ChannelDataErrcode,
    CustomException,
    CustomExceptionCode,
    Op,
    ProductErrCode,
    RequestOp,
    ResponseOp,
)
from penstock.errors import HookError
from penstock.ops.ends import Ends
from penstock.protocols import paddle, tensors
from penstock.protocols.pb import Request, Response
from tests.kit import own_messages
from tests.kit.own_messages import FIELD
from tests.service.in_process import blueprint_of, pairs, service_of

FEED = {"a": "1", "b": "2"}


async def call(
    request_op: RequestOp | None = None,
    response_op: type[ResponseOp] = ResponseOp,
    op: type[Op] = Op,
    **feed: Any,
) -> Any:
    last = op("work", input_ops=[request_op or RequestOp()])
    async with service_of(response_op(input_ops=[last])) as service:
        return await service.call(log_id=7, **(feed or FEED))


def unpacking(function: Any) -> RequestOp:
    return type("Unpacking", (RequestOp,), {"unpack_request_package": function})()  # type: ignore[no-any-return]


def packing(function: Any) -> type[ResponseOp]:
    return type("Packing", (ResponseOp,), {"pack_response_package": function})


class ShowLogId(Op):
    def preprocess(self, input_dicts: Any, data_id: int, log_id: int) -> Any:
        return {"log_id": str(log_id)}


# RequestOp


async def test_by_default_the_reply_has_the_request_s_pairs() -> None:
    assert pairs(await call()) == FEED


def test_the_default_unpack_returns_the_tuple_of_four() -> None:
    request = Request(key=["a"], value=["1"], logid=9)
    assert RequestOp().unpack_request_package(request) == ({"a": "1"}, 9, None, "")


def test_unpacking_none_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="request is None"):
        RequestOp().unpack_request_package(None)


def test_a_tensor_message_becomes_an_array_and_its_lod() -> None:
    sent = tensors.encode("x", np.arange(3, dtype=np.int64), lod=[0, 3])
    array, lod = RequestOp().proto_tensor_2_numpy(sent)
    assert array.tolist() == [0, 1, 2]
    assert lod is not None
    assert lod.reshape(-1).tolist() == [0, 3]


@pytest.mark.parametrize(
    "function",
    [
        lambda self, request: {"got": request.value[0]},
        lambda self, request: ({"got": request.value[0]}, request.logid, None, ""),
        lambda self, request: ({"got": request.value[0]}, 5, None, ""),
    ],
    ids=["dict", "tuple of four", "own log id"],
)
async def test_unpack_may_return_a_dict_or_the_tuple_of_four(function: Any) -> None:
    assert pairs(await call(unpacking(function))) == {"got": "1"}


async def test_the_log_id_is_the_request_s_unless_unpack_returns_another() -> None:
    old = unpacking(lambda self, request: {})
    assert pairs(await call(old, op=ShowLogId)) == {"log_id": "7"}
    none = unpacking(lambda self, request: ({}, None, None, ""))
    assert pairs(await call(none, op=ShowLogId)) == {"log_id": "7"}
    new = unpacking(lambda self, request: ({}, 5, None, ""))
    assert pairs(await call(new, op=ShowLogId)) == {"log_id": "5"}


async def test_unpack_gets_the_protobuf_message() -> None:
    messages: list[Any] = []

    def unpack(self: Any, request: Any) -> Any:
        messages.append(request)
        return {}, request.logid, None, ""

    await call(unpacking(unpack))
    assert isinstance(messages[0], Request)
    assert (list(messages[0].key), messages[0].logid) == (["a", "b"], 7)


async def test_an_overridden_unpack_may_call_the_default_one() -> None:
    class Adding(RequestOp):
        def unpack_request_package(self, request: Any) -> Any:
            feed, log_id, number, text = super().unpack_request_package(request)
            return {**feed, "c": "3"}, log_id, number, text

    assert pairs(await call(Adding())) == {**FEED, "c": "3"}


class Errors(ProductErrCode):
    NO_CAT = (51,)


@pytest.mark.parametrize("number", [51, Errors.NO_CAT])
async def test_a_product_error_of_unpack_is_replied_and_no_op_runs(number: Any) -> None:
    class Never(Op):
        def preprocess(self, input_dicts: Any) -> Any:
            raise AssertionError

    op = unpacking(lambda self, request: (None, 7, number, "no cat"))
    reply = await call(op, op=Never)
    assert (reply.err_no, reply.err_msg) == (51, "no cat")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "unpack_request_package must give a dict, got NoneType"),
        ([1], "unpack_request_package must give a dict, got list"),
        (({}, 1), "unpack_request_package must give a dict, got a tuple of 2"),
        (({}, 1, None), "unpack_request_package must give a dict, got a tuple of 3"),
        ((5, 1, None, ""), "unpack_request_package must give a dict, got int"),
        (({}, "7", None, ""), "the log_id of unpack_request_package must be an int, got str"),
    ],
)
async def test_other_results_of_unpack_are_8000_and_the_next_request_succeeds(
    given: Any, text: str
) -> None:
    results = [given, {"a": "fine"}]
    last = Op("work", input_ops=[unpacking(lambda self, request: results.pop(0))])
    async with service_of(last) as service:
        reply = await service.call(a="1")
        assert pairs(await service.call(a="1")) == {"a": "fine"}
    assert (reply.err_no, reply.err_msg) == (8000, f"rpc package error: {text}")


@pytest.mark.parametrize(
    "raised", [KeyError("box"), ValueError(), SystemExit(3), KeyboardInterrupt()]
)
@pytest.mark.parametrize("hook", ["unpack", "pack"])
async def test_an_exception_of_unpack_or_pack_is_8000(hook: str, raised: BaseException) -> None:
    def fail(self: Any, message: Any) -> Any:
        raise raised

    reply = await (call(unpacking(fail)) if hook == "unpack" else call(None, packing(fail)))
    text = str(raised) or type(raised).__name__
    if isinstance(raised, KeyError):  # a KeyError's text is the key alone
        text = f"KeyError: {text}"
    assert (reply.err_no, reply.err_msg) == (8000, f"rpc package error: {text}")


@pytest.mark.parametrize("many", [1, 5000])
async def test_an_array_without_a_text_form_is_8000(many: int) -> None:
    class Mute:
        def __repr__(self) -> str:
            raise asyncio.CancelledError

    class Arrays(Op):
        def preprocess(self, input_dicts: Any) -> Any:
            return {"y": np.array([Mute()] * many, object)}

    reply = await call(op=Arrays)
    assert (reply.err_no, reply.err_msg) == (8000, "rpc package error: CancelledError")


@pytest.mark.parametrize("hook", ["unpack", "pack"])
async def test_a_custom_exception_of_unpack_or_pack_is_replied_only_if_for_the_user(
    hook: str,
) -> None:
    for for_user, number, text in [
        (True, 5000, "no box"),
        (False, 10000, "the op failed; the server's log has the details"),
    ]:

        def fail(self: Any, message: Any, for_user: bool = for_user) -> Any:
            raise CustomException(CustomExceptionCode.INPUT_PARAMS_ERROR, "no box", for_user)

        reply = await (call(unpacking(fail)) if hook == "unpack" else call(None, packing(fail)))
        assert (reply.err_no, reply.err_msg) == (number, text)


async def test_init_op_of_both_ends_runs_before_the_first_request() -> None:
    class First(RequestOp):
        def init_op(self) -> None:
            self.greeting = "hello"

        def unpack_request_package(self, request: Any) -> Any:
            return {"said": self.greeting}

    class Last(ResponseOp):
        def init_op(self) -> None:
            self.ending = " and goodbye"

        def pack_response_package(self, channeldata: Any) -> Any:
            return Response(key=["said"], value=[channeldata.parse()["said"] + self.ending])

    assert pairs(await call(First(), Last)) == {"said": "hello and goodbye"}


@pytest.mark.parametrize("hook", ["unpack_request_package", "pack_response_package"])
def test_an_unpack_or_pack_with_a_wrong_signature_is_refused_at_start(hook: str) -> None:
    base: type[Any] = RequestOp if hook.startswith("unpack") else ResponseOp
    end = type("End", (base,), {hook: lambda self: None})
    if base is RequestOp:
        graph = ResponseOp(input_ops=[Op("work", input_ops=[end()])])
    else:
        graph = end(input_ops=[Op("work", input_ops=[RequestOp()])])
    with pytest.raises(HookError, match=rf"{hook} takes 0 arguments .*: write def {hook}\(self"):
        blueprint_of(graph)


# ResponseOp


class ImdbResponseOp(ResponseOp):
    """Copied from the style of published services."""

    def pack_response_package(self, channeldata: Any) -> Any:
        response = Response()
        response.err_no = channeldata.error_code
        if response.err_no == ChannelDataErrcode.OK.value:
            feed = channeldata.parse()
            for name, value in feed.items():
                response.value.append(repr(value))
                response.key.append(name)
        else:
            response.err_msg = channeldata.error_info
        return response


async def test_the_published_response_op_replies_values_and_errors() -> None:
    class Scoring(Op):
        def postprocess(self, input_dicts: Any, fetch: Any, log_id: int) -> Any:
            return {"prediction": np.array([[0.5, 0.25]])}, None, ""

    class Failing(Op):
        def preprocess(self, input_dicts: Any) -> Any:
            raise ValueError("no words")

    reply = await call(None, ImdbResponseOp, Scoring)
    assert pairs(reply) == {"prediction": "array([[0.5 , 0.25]])"}
    failed = await call(None, ImdbResponseOp, Failing)
    assert failed.err_no == 10000
    assert "no words" in failed.err_msg


async def test_an_overridden_pack_may_call_the_default_one() -> None:
    class Marking(ResponseOp):
        def pack_response_package(self, channeldata: Any) -> Any:
            reply = super().pack_response_package(channeldata)
            reply.key.append("mark")
            reply.value.append("x")
            return reply

    assert pairs(await call(None, Marking)) == {**FEED, "mark": "x"}


async def test_pack_can_see_whether_the_request_had_tensors() -> None:
    typed_flags: list[bool] = []

    def pack(self: Any, channeldata: Any) -> Any:
        typed_flags.append(channeldata.typed)
        return Response()

    await call(None, packing(pack))
    await call(None, packing(pack), x=np.ones(1))
    assert typed_flags == [False, True]


async def test_a_result_of_pack_that_is_no_response_is_7000() -> None:
    reply = await call(None, packing(lambda self, channeldata: {"a": "1"}))
    assert (reply.err_no, reply.err_msg) == (
        7000,
        "pack_response_package must give a Response, got dict",
    )


@pytest.mark.parametrize(
    ("ask_typed", "set_typed", "keys", "names"),
    [
        (False, False, ["y"], []),
        (True, False, ["y"], ["y"]),
        (False, True, [], ["y"]),
        (True, True, [], ["y"]),
    ],
)
@pytest.mark.parametrize("own", [False, True])
async def test_replies_are_typed_if_the_request_was_or_the_pack_format_is_set(
    ask_typed: bool, set_typed: bool, own: bool, keys: list[str], names: list[str]
) -> None:
    class Arrays(Op):
        def preprocess(self, input_dicts: Any) -> Any:
            return {"y": np.array([1.5])}

    class Own(ResponseOp):
        def pack_response_package(self, channeldata: Any) -> Any:
            return super().pack_response_package(channeldata)

    end = (Own if own else ResponseOp)(input_ops=[Arrays("work", input_ops=[RequestOp()])])
    end.set_pack_format(isTensor=set_typed)
    feed: dict[str, Any] = {"x": np.array([1.0])} if ask_typed else {"x": "1"}
    async with service_of(end) as service:
        reply = await service.call(**feed)
    assert (reply.err_no, list(reply.key)) == (0, keys)
    assert [tensor.name for tensor in reply.tensors] == names


async def test_a_value_that_is_no_text_is_7000_and_keeps_the_pairs_before_it() -> None:
    class Mixed(Op):
        def preprocess(self, input_dicts: Any) -> Any:
            return {"a": "1", "b": 2}

    reply = await call(op=Mixed)
    assert (reply.err_no, list(reply.key)) == (7000, ["a"])
    assert reply.err_msg == (
        "@DAGExecutor fetch var type must be str(<class 'int'>)."
        " The output 'b' of op 'work' cannot be sent."
    )


@pytest.mark.parametrize(
    ("raised", "level"),
    [
        (ValueError("a fault"), "WARNING"),
        (CustomException(CustomExceptionCode.INPUT_PARAMS_ERROR, "declared"), "INFO"),
    ],
)
def test_an_exception_of_unpack_is_a_warning_and_a_declared_error_is_not(
    raised: Exception, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(RequestOp):
        def unpack_request_package(self, request: Any) -> Any:
            raise raised

    source = Failing()
    ends = Ends(source, ResponseOp(input_ops=[Op("a", input_ops=[source])]))
    with caplog.at_level(logging.INFO):
        assert ends.unpack(paddle.Call([], [], []))[2] is not None
    (record,) = caplog.records
    assert (record.levelname, record.exc_info[1]) == (level, raised)  # type: ignore[index]


# Messages with fields of one's own


@pytest.mark.parametrize(
    ("base", "given", "text"),
    [
        (RequestOp, dict, "Own.message_class must be a class that protobuf generated, got <class"),
        (
            RequestOp,
            own_messages.changed({"Request": [("key", 1, FIELD.TYPE_BYTES, True)]})["Request"],
            r"Request.key = 1 must be as in the Request of pipeline_service.proto",
        ),
        (
            ResponseOp,
            own_messages.changed({"Tensor": [("nom", 23, FIELD.TYPE_STRING, False)]})["Response"],
            r"Tensor.name = 23 must be as in the Response of pipeline_service.proto",
        ),
    ],
)
def test_a_message_class_of_other_fields_is_refused_at_the_start(
    base: Any, given: Any, text: str
) -> None:
    own = type("Own", (base,), {"message_class": given})
    first = own() if base is RequestOp else RequestOp()
    last = Op("work", input_ops=[first])
    end = own(input_ops=[last]) if base is ResponseOp else ResponseOp(input_ops=[last])
    with pytest.raises(HookError, match=text):
        blueprint_of(end)


async def test_an_error_is_a_message_of_the_service_s_class() -> None:
    class Own(ResponseOp):
        message_class = own_messages.Response

        def pack_response_package(self, channeldata: Any) -> Any:
            return super().pack_response_package(channeldata)

    class Failing(Op):
        def preprocess(self, input_dicts: Any) -> Any:
            raise CustomException(CustomExceptionCode.INPUT_PARAMS_ERROR, "no", True)

    reply = await call(response_op=Own, op=Failing)
    assert type(reply) is own_messages.Response
    assert reply.err_no
