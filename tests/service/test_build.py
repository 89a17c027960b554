from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from penstock import Op, RequestOp, ResponseOp
from penstock.errors import StartupError
from penstock.service.build import Works
from tests.service.inside import drawn, inside, root

OPTIONS: dict[str, tuple[Any, Any, Any, Any]] = {
    # option: default, YAML, constructor, flag
    "concurrency": (1, 2, 3, 4),
    "batch_size": (1, 2, 3, 4),
    "retry": (1, 2, 3, 4),
    "timeout": (None, 0.2, 0.3, 0.4),
    "auto_batching_timeout": (None, 0.2, 0.3, 0.4),
    "fetch_list": (None, ("yaml",), ("code",), ("flag",)),
}


def as_written(option: str, value: Any) -> Any:
    if option in ("timeout", "auto_batching_timeout"):
        return round(value * 1000)
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("rank", range(4), ids=["default", "yaml", "constructor", "flag"])
def test_a_flag_comes_before_the_constructor_before_yaml_before_the_default(
    option: str, rank: int
) -> None:
    layers = OPTIONS[option]
    yaml, code, flag = (
        {option: as_written(option, layers[n])} if rank >= n else {} for n in (1, 2, 3)
    )
    if option == "auto_batching_timeout":  # a window has no effect on batches of one
        yaml["batch_size"] = 9
    blueprint = drawn(
        Op("work", input_ops=[root()], **code),
        {"op": {"work": yaml}},
        {f"op.work.{key}": value for key, value in flag.items()},
    )
    (options,) = blueprint.options
    name = "window" if option == "auto_batching_timeout" else option
    assert getattr(options, name) == layers[rank]


def test_an_inline_op_has_one_worker_and_says_so() -> None:
    blueprint = drawn(
        Op("work", input_ops=[root()]),
        {"op": {"work": {"executor": "inline", "concurrency": 4}}},
    )
    assert blueprint.warnings == (
        "op 'work' runs inline, where there is one worker: its concurrency of 4 has no effect",
    )


@pytest.mark.parametrize("kind", ["thread", "inline"])
async def test_every_executor_answers_the_same(kind: str) -> None:
    class Echo(Op):
        def preprocess(self, input_dicts: Any, data_id: int, log_id: int) -> Any:
            return {"ids": f"{data_id} {log_id}"}

    config = {"op": {"work": {"executor": kind}}}
    async with inside(Echo("work", input_ops=[root()]), config) as service:
        replies = [await service.ask(log_id=7, a="1") for _ in range(2)]
    assert [list(reply.value) for reply in replies] == [["0 7"], ["1 7"]]


async def test_worker_num_bounds_what_is_inside_and_refuses_nobody() -> None:
    inside_now: list[int] = []
    most: list[int] = []

    class Counting(Op):
        async def process(self, feed_batch: Any, typical_logid: int) -> Any:
            inside_now.append(1)
            most.append(len(inside_now))
            await asyncio.sleep(0)
            inside_now.pop()
            return {"a": "1"}

    op = Counting("work", input_ops=[root()], concurrency=8)
    async with inside(op, {"worker_num": 2}) as service:
        replies = await asyncio.gather(*(service.ask(a="1") for _ in range(10)))
    assert [reply.err_no for reply in replies] == [0] * 10
    assert max(most) <= 2


async def test_beyond_max_requests_the_reply_is_3004() -> None:
    gate = asyncio.Event()

    class Waiting(Op):
        async def process(self, feed_batch: Any, typical_logid: int) -> Any:
            await gate.wait()
            return {"a": "1"}

    async with inside(Waiting("work", input_ops=[root()]), {"max_requests": 1}) as service:
        first = asyncio.create_task(service.ask(a="1"))
        await asyncio.sleep(0)
        assert (await service.ask(a="1")).err_no == 3004
        gate.set()
        assert (await first).err_no == 0


# Start


@pytest.mark.parametrize("raised", [ValueError("no file"), SystemExit(0)])
@pytest.mark.parametrize("where", ["request", "op", "response"])
def test_an_init_op_that_fails_fails_the_start_with_the_original_exception(
    where: str, raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Any) -> None:
        raise raised

    def base(kind: type[Any], name: str) -> type[Any]:
        return type("Failing", (kind,), {"init_op": fail}) if where == name else kind

    source = base(RequestOp, "request")()
    last = base(Op, "op")("work", input_ops=[source])
    blueprint = drawn(base(ResponseOp, "response")(input_ops=[last]))
    with caplog.at_level(logging.ERROR), pytest.raises(StartupError) as caught:
        Works(blueprint)
    assert caught.value.__cause__ is raised
    assert f"init_op failed: {raised!r}" in str(caught.value)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is raised


def test_init_ops_run_in_the_order_of_the_graph_once_each() -> None:
    order: list[str] = []

    class Noting(Op):
        def init_op(self) -> None:
            order.append(self.name)

    first = Noting("first", input_ops=[root()], concurrency=3)
    Works(drawn(Noting("second", input_ops=[first])))
    assert order == ["first", "second"]


def test_nothing_is_opened_by_drawing_the_blueprint(tmp_path: Path) -> None:
    class Never(Op):
        def init_op(self) -> None:
            raise AssertionError

    model = {"local_service_conf": {"model_config": str(tmp_path / "none.onnx")}}
    assert drawn(Never("work", input_ops=[root()]), {"op": {"work": model}}).config.rpc_port == 0
