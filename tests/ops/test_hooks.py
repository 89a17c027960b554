"""Hooks with every accepted signature, and every accepted form of result."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock import CustomExceptionCode, Op
from penstock.errors import HookError
from penstock.ops.hooks import bind
from tests.service.in_process import blueprint_of, pairs, root, service_of

X = np.ones((1, 1), dtype=np.float32)


def op_with(name: str = "work", **hooks: Callable[..., Any]) -> Op:
    """An op of a new class with these hooks, after a new root."""
    return type("Made", (Op,), hooks)(name, input_ops=[root()])  # type: ignore[no-any-return]


async def call(op: Op, log_id: int = 7, **feed: Any) -> Any:
    async with service_of(op) as service:
        return await service.call(log_id=log_id, **(feed or {"a": "1"}))


# Signatures


@pytest.mark.parametrize(
    ("hook", "function", "expected"),
    [
        ("preprocess", lambda self, x: (x,), ("i",)),
        ("preprocess", lambda self, x, data_id, log_id: (x, data_id, log_id), ("i", 3, 7)),
        ("preprocess", lambda self, x, data_id=0, log_id=0: (x, data_id, log_id), ("i", 3, 7)),
        ("preprocess", lambda self, *args: args, ("i", 3, 7)),
        ("process", lambda self, x: (x,), ("i",)),
        ("process", lambda self, x, typical_logid: (x, typical_logid), ("i", 3)),
        ("postprocess", lambda self, x, y: (x, y), ("i", 3)),
        ("postprocess", lambda self, x, y, log_id: (x, y, log_id), ("i", 3, 9)),
        ("postprocess", lambda self, x, y, log_id=0: (x, y, log_id), ("i", 3, 9)),
        ("postprocess", lambda self, x, y, data_id, log_id: (x, y, data_id, log_id), "all"),
        ("postprocess", lambda self, x, y, z, u, extra=5: (x, y, z, u), "all"),
        ("postprocess", lambda self, *args, **kwargs: args, "all"),
    ],
)
def test_each_signature_gets_the_arguments_that_it_takes(
    hook: str, function: Callable[..., Any], expected: Any
) -> None:
    full = ("i", 3, 7, 9) if hook == "postprocess" else ("i", 3, 7)
    full = full[:2] if hook == "process" else full
    assert bind(op_with(**{hook: function}), hook)(*full) == (
        full if expected == "all" else expected
    )


def test_a_static_method_is_called_without_self() -> None:
    op = op_with(preprocess=staticmethod(lambda x: x))
    assert bind(op, "preprocess")("i", 3, 7) == "i"


def test_a_decorator_with_args_and_kwargs_passes_on_the_function_s_arguments() -> None:
    def twice(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) * 2

        return call

    assert bind(op_with(preprocess=twice(lambda self, x: x)), "preprocess")("i", 3, 7) == "ii"


def test_a_decorator_with_its_own_signature_is_called_by_that_signature() -> None:
    def old(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(self: Any, x: Any, data_id: int, log_id: int) -> Any:
            return function(self, x, must=data_id)

        return call

    op = op_with(preprocess=old(lambda self, x, *, must: (x, must)))
    assert bind(op, "preprocess")("i", 3, 7) == ("i", 3)


@pytest.mark.parametrize(
    ("hook", "function", "words"),
    [
        ("preprocess", lambda self: {}, "takes 0 arguments after self"),
        ("preprocess", lambda self, a, b, c, d: {}, "takes 4 arguments after self"),
        ("preprocess", lambda self, a, *, must: {}, "needs the keyword 'must'"),
        ("preprocess", None, "cannot be called"),
        ("process", lambda self, a, b, c: {}, "takes 3 arguments .* called with 1 or 2"),
        ("postprocess", lambda self, a: {}, "takes 1 argument .* called with 2, 3 or 4"),
        ("postprocess", lambda self, a, b, c, d, e, *f: {}, "takes 5 or more"),
        ("init_op", lambda self, a: None, "takes 1 argument .* called with 0"),
        ("check_jumping", lambda self: False, "takes 0 arguments"),
    ],
)
def test_a_hook_with_a_wrong_signature_is_refused_at_start_with_the_fix(
    hook: str, function: Any, words: str
) -> None:
    with pytest.raises(HookError, match=rf"op 'work': {hook} .*{words}.*: write def {hook}\(self"):
        blueprint_of(op_with(**{hook: function}))


@pytest.mark.parametrize("hook", ["preprocess", "postprocess", "init_op", "check_jumping"])
def test_only_process_may_be_a_coroutine(hook: str) -> None:
    async def coroutine(self: Any, *args: Any) -> Any:
        return {}

    with pytest.raises(HookError, match=f"op 'work': {hook} is a coroutine.*write def {hook}"):
        blueprint_of(op_with(**{hook: coroutine}))


async def a_generator_on_the_loop(self: Any, *args: Any) -> Any:
    yield {}


def a_generator(self: Any, *args: Any) -> Any:
    yield {}


@pytest.mark.parametrize("function", [a_generator, a_generator_on_the_loop])
@pytest.mark.parametrize("hook", ["preprocess", "postprocess", "init_op", "check_jumping"])
def test_only_process_may_be_a_generator(hook: str, function: Any) -> None:
    with pytest.raises(HookError, match=f"op 'work': {hook} is a generator.*return instead of"):
        blueprint_of(op_with(**{hook: function}))


# What preprocess returns


@pytest.mark.parametrize(
    "result",
    [
        {"a": "1", "b": "2"},
        ({"a": "1", "b": "2"}, False, None, ""),
        ({"a": "1", "b": "2"}, True, None, "unread"),
    ],
    ids=["dict", "tuple of four", "tuple that skips"],
)
async def test_preprocess_may_return_a_dict_or_the_tuple_of_four(result: Any) -> None:
    op = op_with(preprocess=lambda self, x: result)
    assert pairs(await call(op)) == {"a": "1", "b": "2"}


@pytest.mark.parametrize("length", [0, 2, 3, 5])
async def test_a_tuple_of_another_length_is_an_error_with_op_and_hook(length: int) -> None:
    reply = await call(op_with(preprocess=lambda self, x: ({},) * length))
    assert reply.err_no == 10000
    assert f"op 'work': preprocess returned a tuple of {length}" in reply.err_msg


@pytest.mark.parametrize("data", [5, None, "text", [1]])
async def test_a_result_of_preprocess_that_process_cannot_take_is_7000(data: Any) -> None:
    op = op_with(preprocess=lambda self, x: data, process=lambda self, feeds: {})
    reply = await call(op)
    assert reply.err_no == 7000
    assert "op 'work': preprocess must give a dict" in reply.err_msg


# What process returns


@pytest.mark.parametrize(
    "result",
    [{"y": "1"}, ({"y": "1"}, 0, ""), ({"y": "1"}, np.int64(0), "")],
    ids=["dict", "tuple", "tuple with a number of numpy's"],
)
async def test_process_may_return_a_result_or_the_tuple_of_three(result: Any) -> None:
    assert pairs(await call(op_with(process=lambda self, feeds: result))) == {"y": "1"}


def wrapped(text: str) -> str:
    return (
        f"[work] failed to predict. {text}. Please check the input dict and checkout "
        "PipelineServingLogs/pipeline.log for more details."
    )


@pytest.mark.parametrize(
    ("result", "number", "text"),
    [
        ((None, 1234, "no luck"), 1234, wrapped("no luck")),
        (({}, np.int32(77), "no luck"), 77, wrapped("no luck")),
        (
            (None, 2**40, ""),
            10000,
            wrapped(f"process gave the error code {2**40}, which is no int32"),
        ),
        (None, 9000, wrapped("process gave no result")),
        ((None, 0, ""), 9000, wrapped("process gave no result")),
        ([1], 7000, wrapped("process must give a dict, got list")),
        (
            ({}, "0", ""),
            7000,
            wrapped("process must give a dict, got tuple whose error code is no int: 0 is none"),
        ),
        (
            ({}, None, ""),
            7000,
            wrapped("process must give a dict, got tuple whose error code is no int: 0 is none"),
        ),
        (({}, 0), 7000, wrapped("process must give a dict, got tuple")),
        (
            (None, CustomExceptionCode.CLIENT_ERROR, "no card"),
            7000,
            wrapped(
                "process must give a dict, got tuple whose error code is no int: "
                "give CustomExceptionCode.CLIENT_ERROR.value"
            ),
        ),
    ],
)
async def test_other_results_of_process_are_errors(result: Any, number: int, text: str) -> None:
    reply = await call(op_with(process=lambda self, feeds: result))
    assert (reply.err_no, reply.err_msg) == (number, text)


async def test_typical_logid_is_the_first_request_s_log_id() -> None:
    op = op_with(process=lambda self, feeds, typical_logid: {"y": str(typical_logid)})
    assert pairs(await call(op, log_id=11)) == {"y": "11"}


async def test_a_coroutine_process_runs_for_several_requests_at_once() -> None:
    started: list[int] = []
    all_started = asyncio.Event()

    async def process(self: Any, feeds: Any) -> Any:
        started.append(1)
        if len(started) == 3:
            all_started.set()
        await all_started.wait()
        return {"y": "together"}

    op = op_with(process=process)
    op.concurrency = 3
    async with service_of(op) as service:
        replies = await asyncio.gather(*(service.call(a="1") for _ in range(3)))
    assert [pairs(reply) for reply in replies] == [{"y": "together"}] * 3


async def test_a_coroutine_process_is_cancelled_by_the_op_s_timeout() -> None:
    ended: list[str] = []

    async def process(self: Any, feeds: Any) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    op = op_with(process=process)
    op.timeout = 50
    assert (await call(op)).err_no == 6000
    assert ended == ["cancelled"]


async def test_a_plain_process_that_returns_a_coroutine_is_an_error_with_the_fix() -> None:
    async def inner(self: Any, feeds: Any) -> Any:
        return {}

    reply = await call(op_with(process=lambda self, feeds: inner(self, feeds)))
    assert (reply.err_no, reply.err_msg) == (
        7000,
        wrapped(
            "process must give a dict, got coroutine: "
            "define the function with async def, in a decorator too"
        ),
    )


async def test_an_object_with_a_coroutine_call_is_a_coroutine_process() -> None:
    class Answers:
        async def __call__(self, feeds: Any) -> Any:
            await asyncio.sleep(0)
            return {"y": "waited"}

    assert pairs(await call(op_with(process=Answers()))) == {"y": "waited"}


async def test_a_plain_process_that_runs_a_coroutine_is_plain() -> None:
    async def inner(self: Any, feeds: Any) -> Any:
        return {"y": "ran"}

    @functools.wraps(inner)
    def outer(*args: Any) -> Any:
        return asyncio.run(inner(*args))

    assert pairs(await call(op_with(process=outer))) == {"y": "ran"}


# What postprocess returns


@pytest.mark.parametrize("result", [{"y": "1"}, ({"y": "1"}, None, ""), ({"y": "1"}, None, "un")])
async def test_postprocess_may_return_a_dict_or_the_tuple_of_three(result: Any) -> None:
    assert pairs(await call(op_with(postprocess=lambda self, x, y: result))) == {"y": "1"}


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (None, "NoneType"),
        ([1], "list"),
        ("y", "str"),
        (({}, None), "tuple of 2"),
        (({}, None, "", 1), "tuple of 4"),
        ((5, None, ""), "tuple that begins with int"),
    ],
)
async def test_a_result_of_postprocess_that_is_no_dict_is_7000(result: Any, shown: str) -> None:
    reply = await call(op_with(postprocess=lambda self, x, y: result))
    assert reply.err_no == 7000
    assert reply.err_msg.startswith("postprocess should return dict")
    assert reply.err_msg.endswith(f" returned {shown}")


# Product errors


HOOKS = {
    "preprocess": lambda number: lambda self, x: ({}, False, number, "no cat"),
    "postprocess": lambda number: lambda self, x, y: ({}, number, "no cat"),
}


@pytest.mark.parametrize("hook", HOOKS)
async def test_a_product_error_s_number_and_text_are_replied(hook: str) -> None:
    after = Op("after", input_ops=[op_with(**{hook: HOOKS[hook](51)})])
    reply = await call(after)
    assert (reply.err_no, reply.err_msg, list(reply.key)) == (51, "no cat", [])
