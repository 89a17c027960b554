from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from penstock import LocalServiceHandler, Op, RequestOp, ResponseOp
from penstock.config.load import load
from penstock.errors import ConfigError, HookError, StartupError
from penstock.ops.short import Model
from penstock.runtimes.runtime import ModelOptions
from penstock.service.blueprint import deploy, draw_blueprint
from penstock.service.build import Works, bound_op
from penstock.service.placement import EngineId
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
def test_an_op_runs_where_its_own_key_says_else_where_that_of_the_graph_does(
    config: dict[str, Any], flags: dict[str, Any], place: str
) -> None:
    blueprint = drawn(Op("work", input_ops=[root()]), config, flags)
    assert [each.executor.name for each in blueprint.options] == [place]
    assert blueprint.has_processes == (place == "process")


@pytest.mark.parametrize(
    "config", [{"dag": {"is_thread_op": False}}, {"op": {"work": {"executor": "process"}}}]
)
async def test_a_coroutine_stays_on_the_loop_whatever_is_asked_for(config: dict[str, Any]) -> None:
    class Asking(Op):
        async def process(self, feed_batch: Any, typical_logid: int) -> Any:
            return {"a": "1"}

    op = Asking("work", input_ops=[root()])
    assert not drawn(op, config).has_processes
    async with inside(op, config) as service:
        reply = await service.ask(a="0")
    assert list(reply.value) == ["1"]


@pytest.mark.parametrize("again", [False, True])
async def test_whether_a_batch_that_died_runs_again_is_told_to_the_stage(again: bool) -> None:
    config = {"op": {"work": {"retry_on_crash": again}}}
    async with inside(Op("work", input_ops=[root()]), config) as service:
        (stage,) = service.engine.stages
        assert stage.options.retry_on_crash is again


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


@pytest.mark.parametrize(
    "raised",
    [ValueError("no"), FileNotFoundError(2, "is missing", "x"), SystemExit(0)],
)
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
        Works(deploy([blueprint]))
    assert caught.value.__cause__ is raised
    assert f"init_op failed: {type(raised).__name__}: {raised}" in str(caught.value)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is raised


def test_init_ops_run_in_the_order_of_the_graph_once_each() -> None:
    order: list[str] = []

    class Noting(Op):
        def init_op(self) -> None:
            order.append(self.name)

    first = Noting("first", input_ops=[root()], concurrency=3)
    Works(deploy([drawn(Noting("second", input_ops=[first]))]))
    assert order == ["first", "second"]


def test_nothing_is_opened_by_drawing_the_blueprint(tmp_path: Path) -> None:
    class Never(Op):
        def init_op(self) -> None:
            raise AssertionError

    (tmp_path / "none.onnx").write_bytes(b"no model")
    model = {"local_service_conf": {"model_config": str(tmp_path / "none.onnx")}}
    assert drawn(Never("work", input_ops=[root()]), {"op": {"work": model}}).config.rpc_port == 0


# What shows before anything is opened


@pytest.fixture
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])


@pytest.mark.usefixtures("no_card")
def test_every_option_of_a_model_that_cannot_be_obeyed_is_told_at_once_with_its_line(
    tmp_path: Path,
) -> None:
    file = tmp_path / "config.yml"
    file.write_text(
        "rpc_port: 0\n"
        "op:\n"
        "  work:\n"
        "    local_service_conf:\n"
        f"      model_config: {tmp_path / 'nowhere.onnx'}\n"
        "      precision: fp16\n"
        "      use_calib: true\n"
        '      devices: "0"\n'
        "  more:\n"
        "    local_service_conf:\n"
        f"      model_config: {tmp_path / 'folder'}\n"
    )
    loaded = load(
        yml_file=file, environ={}, overrides={"op.more.local_service_conf.precision": "int8"}
    )
    work = Op("work", input_ops=[root()])
    with pytest.raises(ConfigError) as caught:
        draw_blueprint(ResponseOp(input_ops=[Op("more", input_ops=[work])]), loaded)
    conf = "op.work.local_service_conf"
    told = [
        f"{file}:5: {conf}.model_config: model ",
        f"{file}:6: {conf}.precision: fp16 is not available with ONNX Runtime, only fp32",
        f"{file}:7: {conf}.use_calib: int8 calibration is not available",
        f"{file}:8: {conf}.devices: card 0 was asked for",
        f"{file}:11: op.more.local_service_conf.model_config: model ",
        "flag: op.more.local_service_conf.precision: int8 is not available",
    ]
    problems = caught.value.problems
    assert len(problems) == len(told)
    for problem, beginning in zip(problems, told, strict=True):
        assert problem.startswith(beginning)


def test_a_model_that_a_constructor_names_is_looked_at_too(tmp_path: Path) -> None:
    handler = LocalServiceHandler(str(tmp_path / "gone.onnx"), precision="int8")
    work = Op("work", input_ops=[root()], local_service_handler=handler)
    with pytest.raises(ConfigError) as caught:
        drawn(Model(tmp_path / "lost.onnx", work, name="last"))
    first, second, third = caught.value.problems
    assert first.startswith("constructor of op work: local_service_handler: model_config: ")
    assert "gone.onnx': no such file or folder" in first
    assert second.startswith("constructor of op work: local_service_handler: precision: int8")
    assert third.startswith("constructor of op last: ")
    assert "lost.onnx': no such file or folder" in third


def test_a_model_of_an_op_outside_the_graph_need_not_exist() -> None:
    conf = {"local_service_conf": {"model_config": "nowhere.onnx"}}
    (warning,) = drawn(Op("work", input_ops=[root()]), {"op": {"other": conf}}).warnings
    assert "op.other" in warning
    assert "nowhere" not in warning


def test_every_hook_that_cannot_be_called_is_told_at_once() -> None:
    class Reading(RequestOp):
        def unpack_request_package(self) -> Any: ...  # type: ignore[override]

    class Wrong(Op):
        def preprocess(self) -> Any: ...  # type: ignore[override]

        async def postprocess(self, input_data: Any, fetch_data: Any) -> Any: ...

    with pytest.raises(HookError) as caught:
        drawn(Wrong("work", input_ops=[Reading()]))
    first, second, third = str(caught.value).splitlines()
    assert first.startswith("op 'work': preprocess takes 0 arguments")
    assert second.startswith("op 'work': postprocess is a coroutine")
    assert third.startswith("op '@DAGExecutor': unpack_request_package takes 0")


def test_engines_of_one_service_never_use_the_same_data_id() -> None:
    blueprint = drawn(Op("work", input_ops=[root()]), {"build_dag_each_worker": True})
    for index in range(3):
        works = Works(deploy([blueprint]).at(EngineId(index=index, engines=3)))
        loop = asyncio.new_event_loop()
        try:
            options = works.engine(loop).options
        finally:
            loop.close()
        assert (options.first_id, options.id_step, options.max_running) == (index, 3, None)


@pytest.mark.parametrize(
    ("executor", "cards"),
    [("thread", ["3", "5", "3"]), ("process", ["3", "5", "3", "5", "3", "5"])],
)
def test_engines_take_turns_on_the_cards_and_so_do_their_worker_processes(
    executor: str, cards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    class Opened(Exception):
        pass

    def opened(options: ModelOptions) -> Model:
        used.extend(options.devices)
        raise Opened

    monkeypatch.setattr("penstock.service.models.Model.open", opened)
    monkeypatch.setattr("penstock.service.models.model_problems", lambda options: [])
    monkeypatch.setattr("penstock.service.models.show_only", lambda *args: False)
    conf = {"model_config": "m.onnx", "devices": "3,5"}
    entry = {"executor": executor, "concurrency": 2, "local_service_conf": conf}
    blueprint = drawn(Op("work", input_ops=[root()]), {"op": {"work": entry}})
    for index in range(3):
        there = deploy([blueprint]).at(EngineId(index=index, engines=3))
        if executor == "thread":
            with pytest.raises(Opened):
                Works(there)
        else:
            for worker in range(2):
                with pytest.raises(Opened):
                    bound_op(there, "work", worker)
    assert used == cards
