"""Each parameter of an op's constructor, given in Python or in YAML."""

from __future__ import annotations

import asyncio
import threading
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import LocalServiceHandler, Op, RequestOp
from penstock.errors import ConfigError, GraphError
from tests.kit.onnx_models import scale
from tests.service.in_process import blueprint_of, pairs, root, service_of

PLACES = pytest.mark.parametrize("place", ["constructor", "yaml"])
X = np.array([[1, 2, 3]], dtype=np.float32)


def options_at(place: str, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options as keywords of the constructor, or as an entry of the configuration."""
    if place == "constructor":
        return options, {}
    return {}, {"op": {"work": options}}


class Work(Op):
    """Replies with the rows of its ``process`` call, and records all calls."""

    def __init__(self, **options: Any) -> None:
        self.calls: list[Any] = []
        self.act: Any = lambda: None
        super().__init__("work", input_ops=[RequestOp()], **options)

    def preprocess(self, input_dicts: Any, data_id: int, log_id: int) -> Any:
        return {"rows": np.zeros((1, 1))}, False, None, ""

    def process(self, feed_batch: Any, typical_logid: int) -> Any:
        rows = len(feed_batch[0]["rows"])
        self.calls.append(rows)
        self.act()
        return {"rows": np.full((rows, 1), rows)}

    def postprocess(self, input_dicts: Any, fetch: Any, data_id: int, log_id: int) -> Any:
        return {"together": str(fetch["rows"].item())}, None, ""


def test_without_options_the_defaults_are_the_original_s() -> None:
    op = Op()
    assert op.name.startswith("Op")
    assert op.get_input_ops() == op.get_jump_to_ops() == []
    assert (op.retry, op.concurrency, op.timeout, op.batch_size) == (0, None, None, None)
    assert (op.concurrency_idx, op.client, op.with_serving) == (None, None, False)
    assert op.is_jump_op() is False


def test_unnamed_ops_are_numbered_consecutively() -> None:
    first, second = Op(), Op()
    assert int(second.name[2:]) == int(first.name[2:]) + 1


@pytest.mark.parametrize("name", ["", "a\nb", 5])
def test_a_name_that_is_no_printable_text_is_refused(name: Any) -> None:
    with pytest.raises(GraphError, match="name must be printable text"):
        Op(name=name)


def test_a_single_input_needs_no_list() -> None:
    source = root()
    assert Op("a", input_ops=source).get_input_ops() == [source]
    assert Op("a", source).get_input_ops() == [source]


@pytest.mark.parametrize("wrong", [["x"], "x", 5, [None]])
@pytest.mark.parametrize("parameter", ["input_ops", "jump_to_ops"])
def test_an_input_that_is_no_op_is_refused_with_the_op_s_name(parameter: str, wrong: Any) -> None:
    with pytest.raises(GraphError, match=f"op 'a': {parameter} holds .*not an Op"):
        Op("a", **{parameter: wrong})


def test_an_op_s_followers_change_with_their_inputs() -> None:
    first, second = Op("first"), Op("second")
    reader = Op("reader", input_ops=[first])
    assert (first.followers(), second.followers()) == ([reader], [])
    reader.set_input_ops(second)
    assert (first.followers(), second.followers()) == ([], [reader])


def test_dynamic_shapes_are_set_in_the_constructor_after_the_attributes() -> None:
    class Shaped(Op):
        def set_dynamic_shape_info(self) -> None:
            self.dynamic_shape_info = {"name": self.name, "size": self.batch_size}

    assert Shaped("s", batch_size=3).dynamic_shape_info == {"name": "s", "size": 3}


@PLACES
async def test_concurrency_is_the_number_of_batches_at_once(place: str) -> None:
    keywords, config = options_at(place, concurrency=3)
    op = Work(**keywords)
    meeting = threading.Barrier(3)
    op.act = lambda: meeting.wait(10)
    async with service_of(op, config) as service:
        replies = await asyncio.gather(*(service.call() for _ in range(3)))
    assert [reply.err_no for reply in replies] == [0, 0, 0]


@PLACES
async def test_a_process_that_exceeds_timeout_is_6000(place: str) -> None:
    keywords, config = options_at(place, timeout=50)
    op = Work(**keywords)
    gate = threading.Event()
    op.act = lambda: gate.wait(10)
    async with service_of(op, config) as service:
        reply = await service.call(log_id=7)
        gate.set()
    assert reply.err_no == 6000
    assert reply.err_msg == (
        "[work] failed to predict. (log_id=7) [work|0] Failed to process(batch: [0]): exceeded "
        "retry count. It may take 50 ms, with 1 attempt. Please check the input dict and checkout "
        "PipelineServingLogs/pipeline.log for more details."
    )
    assert op.calls == [1]


@PLACES
async def test_retry_is_the_number_of_attempts_of_a_process_that_times_out(place: str) -> None:
    keywords, config = options_at(place, timeout=50, retry=3, concurrency=3)
    op = Work(**keywords)
    gate = threading.Event()
    op.act = lambda: len(op.calls) == 3 or gate.wait(10)
    async with service_of(op, config) as service:
        reply = await service.call()
        gate.set()
    assert pairs(reply) == {"together": "1"}
    assert op.calls == [1, 1, 1]


async def test_an_error_other_than_a_timeout_is_not_retried() -> None:
    op = Work(timeout=5000, retry=3)
    op.act = lambda: 1 / 0
    async with service_of(op) as service:
        reply = await service.call()
    assert (reply.err_no, op.calls) == (10000, [1])


@PLACES
async def test_batch_size_is_the_number_of_requests_in_a_batch(place: str) -> None:
    keywords, config = options_at(place, batch_size=3, auto_batching_timeout=10_000)
    op = Work(**keywords)
    async with service_of(op, config) as service:
        replies = await asyncio.gather(*(service.call() for _ in range(6)))
    assert [pairs(reply)["together"] for reply in replies] == ["3"] * 6


async def test_a_batch_size_without_a_window_does_not_wait_and_does_not_warn() -> None:
    op = Work(batch_size=3)
    async with service_of(op) as service:
        assert pairs(await service.call()) == {"together": "1"}
    assert service.loaded.deployment.warnings == ()


@PLACES
async def test_fetch_list_is_the_model_s_outputs_in_the_reply(place: str, tmp_path: Path) -> None:
    keywords, config = options_at(place, fetch_list=["twice"])
    entry = config.setdefault("op", {}).setdefault("work", {})
    entry["local_service_conf"] = {"model_config": str(scale(tmp_path / "m.onnx", 10))}
    async with service_of(Op("work", input_ops=[root()], **keywords), config) as service:
        reply = await service.call(x=X)
    assert [tensor.name for tensor in reply.tensors] == ["twice"]
    assert pairs(reply) == {"twice": "array([[20., 40., 60.]], dtype=float32)"}


async def test_an_op_reads_its_fetch_list_and_its_client(tmp_path: Path) -> None:
    class Asking(Op):
        def process(self, feed_batch: Any, typical_logid: int) -> Any:
            assert self.with_serving
            return self.client.predict(feed=feed_batch[0], fetch=self.fetch_list, batch=True)

    op = Asking("work", input_ops=[root()], fetch_list=["y"])
    model = {"model_config": str(scale(tmp_path / "m.onnx", 10))}
    async with service_of(op, {"op": {"work": {"local_service_conf": model}}}) as service:
        reply = await service.call(x=X)
    assert pairs(reply) == {"y": "array([[10., 20., 30.]], dtype=float32)"}


@pytest.mark.parametrize("own", [None, ["twice"]])
async def test_a_local_service_handler_runs_the_op(own: list[str] | None, tmp_path: Path) -> None:
    handler = LocalServiceHandler(str(scale(tmp_path / "m.onnx", 10)), fetch_names=["y"])
    op = Op("work", input_ops=[root()], local_service_handler=handler, fetch_list=own)
    async with service_of(op) as service:
        reply = await service.call(x=X)
    assert list(pairs(reply)) == (own or ["y"])


async def test_a_handler_overrides_yaml_and_a_flag_overrides_the_handler(tmp_path: Path) -> None:
    ten, hundred = (scale(tmp_path / f"{n}.onnx", n) for n in (10, 100))
    key = "op.work.local_service_conf.model_config"
    for flags, expected in [({}, "10."), ({key: str(hundred)}, "100.")]:
        handler = LocalServiceHandler(str(ten), fetch_names=["y"])
        op = Op("work", input_ops=[root()], local_service_handler=handler)
        config = {"op": {"work": {"local_service_conf": {"model_config": str(hundred)}}}}
        async with service_of(op, config, flags) as service:
            assert expected in pairs(await service.call(x=X))["y"]


def test_a_handler_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"op work: .*must be a LocalServiceHandler, got str"):
        blueprint_of(Work(local_service_handler="m"))


async def test_jump_to_ops_are_skipped_if_check_jumping_is_true() -> None:
    class Jumping(Op):
        def check_jumping(self, input_data: Any) -> bool:
            (data,) = input_data.values()
            return data.parse()["skip"] == "yes"

    class Marking(Op):
        def preprocess(self, input_dicts: Any) -> Any:
            (feed,) = input_dicts.values()
            return {**feed, "marked": "by the middle"}

    first = Jumping("first", input_ops=[root()])
    middle = Marking("middle", input_ops=[first])
    first.set_jump_to_ops([middle])
    last = Op("last", input_ops=[middle])
    async with service_of(last) as service:
        assert pairs(await service.call(skip="no")) == {"skip": "no", "marked": "by the middle"}
        assert pairs(await service.call(skip="yes")) == {"skip": "yes"}


async def test_two_inputs_without_a_preprocess_warn_at_start_and_are_3000() -> None:
    source = root()
    left, right = (Op(name, input_ops=[source]) for name in ("left", "right"))
    async with service_of(Op("join", input_ops=[left, right])) as service:
        reply = await service.call(a="1")
    assert reply.err_no == 3000
    assert "this Op has multiple previous inputs. Please override this func." in reply.err_msg
    (warning,) = service.loaded.deployment.warnings
    assert "'join' has several inputs but no preprocess" in warning


# Workers' copies


class Remembering(Op):
    """Keeps a request's text in an attribute between preprocess and postprocess, as old examples
    do."""

    inits = 0

    def init_op(self) -> None:
        Remembering.inits += 1
        self.shared: list[int] = []

    def preprocess(self, input_dicts: Any, data_id: int, log_id: int) -> Any:
        (feed,) = input_dicts.values()
        self.text = feed["text"]
        self.shared.append(id(self))
        return {"x": np.zeros((1, 1))}, False, None, ""

    def process(self, feed_batch: Any, typical_logid: int) -> Any:
        threading.Event().wait(0.001)  # lets another worker in between
        return {"y": feed_batch[0]["x"]}

    def postprocess(self, input_dicts: Any, fetch: Any, data_id: int, log_id: int) -> Any:
        return {"text": self.text}, None, ""


async def test_attributes_of_an_op_are_per_worker_with_batches_of_one() -> None:
    Remembering.inits = 0
    op = Remembering("remember", input_ops=[root()], concurrency=4)
    async with service_of(op) as service:
        replies = await asyncio.gather(*(service.call(text=str(n)) for n in range(100)))
    assert [pairs(reply)["text"] for reply in replies] == [str(n) for n in range(100)]
    assert Remembering.inits == 1
    assert len(op.shared) == 100  # attributes of init_op are shared by the workers
    assert len(set(op.shared)) > 1  # each worker has its own object
    assert not hasattr(op, "text")  # attributes set by a worker are its own


def test_a_copy_shares_values_and_rebinds_only_its_own_methods() -> None:
    class Holding(Op):
        def own(self) -> Op:
            return self

    op, other = Holding("a"), Holding("b")
    op.values, op.mine, op.theirs = [1], op.own, other.own  # type: ignore[attr-defined]
    twin = copy(op)
    assert twin.values is op.values  # type: ignore[attr-defined]
    assert twin.mine() is twin  # type: ignore[attr-defined]
    assert twin.theirs() is other  # type: ignore[attr-defined]
