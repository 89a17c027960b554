from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from penstock import LocalServiceHandler, Op, RequestOp, ResponseOp
from penstock.errors import ConfigError, StartupError
from penstock.ops import words
from penstock.ops.short import Model
from penstock.service.blueprint import deploy
from penstock.service.bound_ops import init
from penstock.service.build import LoadedDeployment, load
from penstock.typed.op import TypedOp
from tests.kit.onnx_models import save
from tests.service.in_process import blueprint_of, root, service_of


@pytest.mark.parametrize(
    ("config", "flags", "place"),
    [
        ({}, {}, "thread"),
        ({"dag": {"is_thread_op": False}}, {}, "process"),
        ({"dag": {"is_thread_op": False}, "op": {"work": {"executor": "inline"}}}, {}, "inline"),
        ({"op": {"work": {"executor": "process"}}}, {}, "process"),
        ({}, {"dag.is_thread_op": False}, "process"),
        ({"op": {"work": {"executor": "process"}}}, {"op.work.executor": "thread"}, "thread"),
    ],
)
def test_an_op_s_executor_key_overrides_the_graph_s(
    config: dict[str, Any], flags: dict[str, Any], place: str
) -> None:
    blueprint = blueprint_of(Op("work", input_ops=[root()]), config, flags)
    assert [each.executor.name for each in blueprint.options] == [place]
    assert bool(blueprint.processes) == (place == "process")


@pytest.mark.parametrize(
    "config", [{"dag": {"is_thread_op": False}}, {"op": {"work": {"executor": "process"}}}]
)
async def test_a_coroutine_op_runs_on_the_loop_whatever_the_executor_key(
    config: dict[str, Any],
) -> None:
    class CoroutineOp(Op):
        async def process(self, feed_batch: Any, typical_logid: int) -> Any:
            return {"a": "1"}

    op = CoroutineOp("work", input_ops=[root()])
    assert not blueprint_of(op, config).processes
    async with service_of(op, config) as service:
        reply = await service.call(a="0")
    assert list(reply.value) == ["1"]


@pytest.mark.parametrize("again", [False, True])
async def test_retry_on_crash_is_an_option_of_the_op_s_stage(again: bool) -> None:
    config = {"op": {"work": {"retry_on_crash": again}}}
    async with service_of(Op("work", input_ops=[root()]), config) as service:
        (stage,) = service.engine.stages
        assert stage.options.retry_on_crash is again


def test_an_inline_op_has_one_worker_with_a_warning() -> None:
    blueprint = blueprint_of(
        Op("work", input_ops=[root()]),
        {"op": {"work": {"executor": "inline", "concurrency": 4}}},
    )
    assert blueprint.warnings == (
        "op 'work' runs inline, where there is one worker: its concurrency of 4 has no effect",
    )


async def test_worker_num_limits_requests_in_flight_and_refuses_none() -> None:
    in_flight: list[int] = []
    counts: list[int] = []

    class Counting(Op):
        async def process(self, feed_batch: Any, typical_logid: int) -> Any:
            in_flight.append(1)
            counts.append(len(in_flight))
            await asyncio.sleep(0)
            in_flight.pop()
            return {"a": "1"}

    op = Counting("work", input_ops=[root()], concurrency=8)
    async with service_of(op, {"worker_num": 2}) as service:
        replies = await asyncio.gather(*(service.call(a="1") for _ in range(10)))
    assert [reply.err_no for reply in replies] == [0] * 10
    assert max(counts) <= 2


# Start


@pytest.mark.parametrize(
    "raised",
    [ValueError("no"), FileNotFoundError(2, "is missing", "x"), SystemExit(0)],
)
@pytest.mark.parametrize("where", ["request", "op", "response"])
def test_a_failed_init_op_fails_the_start_with_the_original_exception(
    where: str, raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Any) -> None:
        raise raised

    def base(kind: type[Any], name: str) -> type[Any]:
        return type("Failing", (kind,), {"init_op": fail}) if where == name else kind

    source = base(RequestOp, "request")()
    last = base(Op, "op")("work", input_ops=[source])
    blueprint = blueprint_of(base(ResponseOp, "response")(input_ops=[last]))
    with caplog.at_level(logging.ERROR), pytest.raises(StartupError) as caught:
        LoadedDeployment(deploy([blueprint]))
    assert caught.value.__cause__ is raised
    assert f"init_op failed: {type(raised).__name__}: {raised}" in str(caught.value)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is raised


def test_a_coroutine_of_a_plain_init_op_fails_the_start() -> None:
    class Later(Op):
        def init_op(self) -> Any:
            async def later() -> None:
                raise AssertionError

            return later()

    with pytest.raises(StartupError, match="init_op returned a coroutine, which nothing awaits"):
        init(Later("later"))


def test_init_ops_run_once_each_in_the_graph_s_order() -> None:
    order: list[str] = []

    class Recording(Op):
        def init_op(self) -> None:
            order.append(self.name)

    first = Recording("first", input_ops=[root()], concurrency=3)
    LoadedDeployment(deploy([blueprint_of(Recording("second", input_ops=[first]))]))
    assert order == ["first", "second"]


# Checks before anything is opened


def test_missing_models_of_constructors_are_configuration_errors(tmp_path: Path) -> None:
    handler = LocalServiceHandler(str(tmp_path / "gone.onnx"), precision="int8")
    work = Op("work", input_ops=[root()], local_service_handler=handler)
    with pytest.raises(ConfigError) as caught:
        blueprint_of(Model(tmp_path / "lost.onnx", work, name="last"))
    first, second, third = caught.value.problems
    assert first.startswith("constructor of op work: local_service_handler: model_config: ")
    assert "gone.onnx': no such file or folder" in first
    assert second.startswith("constructor of op work: local_service_handler: precision: int8")
    assert third.startswith("model of op last: ")
    assert "lost.onnx': no such file or folder" in third


def test_a_model_of_an_op_outside_the_graph_is_not_checked() -> None:
    conf = {"local_service_conf": {"model_config": "nowhere.onnx"}}
    (warning,) = blueprint_of(Op("work", input_ops=[root()]), {"op": {"other": conf}}).warnings
    assert "op.other" in warning
    assert "nowhere" not in warning


class Second:
    made = 0

    def __init__(self) -> None:
        Second.made += 1
        if Second.made > 1:
            raise FileNotFoundError(2, "No such file or directory", "second.bin")

    def predict(self, x: float) -> float:
        return x


async def test_a_second_worker_whose_class_fails_is_a_startup_error_of_the_class() -> None:
    two = words.read("route('/second')", {"workers": 2})
    second = TypedOp(Second, batched=False, inputs=root(), given=two)
    loaded = load(deploy([blueprint_of(second)]))
    message = "op 'Second': Second.__init__ failed: FileNotFoundError: .*: 'second.bin'"
    with pytest.raises(StartupError, match=message) as raised:
        loaded.engine(asyncio.get_running_loop())
    assert isinstance(raised.value.__cause__, FileNotFoundError)


def fixed_rows_model(file: Path, rows: int) -> Path:
    """A model of ``y = x + x`` for exactly ``rows`` rows."""
    return save(file, f"(float[{rows}, 3] x) => (float[{rows}, 3] y) {{ y = Add(x, x) }}")


@pytest.mark.parametrize(
    ("rows", "keys", "most", "warns"),
    [
        (1, {"batch_size": 8}, 1, True),
        (4, {"batch_size": 4}, 1, True),
        (4, {"batch_size": 8, "batch_rows": True}, 4, True),
        (4, {"batch_size": 2, "batch_rows": True}, 4, True),
        (1, {"batch_size": 1}, 1, False),
        (4, {"batch_size": 4, "batch_rows": True}, 4, False),
        (4, {"batch_rows": True}, 1, False),
    ],
)
def test_another_batch_size_than_a_model_s_fixed_rows_is_a_warning(
    tmp_path: Path, rows: int, keys: dict[str, Any], most: int, warns: bool
) -> None:
    model = Model(fixed_rows_model(tmp_path / "m.onnx", rows), inputs=root(), name="net")
    loaded = load(deploy([blueprint_of(model, {"op": {"net": keys}})]))
    ((options,),) = loaded.options
    assert options.batch_size == most
    text = f"op 'net': batch_size: {keys.get('batch_size')} has no effect, since its model takes"
    assert [each.startswith(text) for each in loaded.notes] == [True] * warns
