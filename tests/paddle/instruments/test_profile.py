"""Profile lines, and the Analyst that reads them: Penstock's, and the original's."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from penstock import Analyst, Op, PipelineClient
from penstock.observe.recorder import Recorder
from penstock_paddle.instruments.profile import profile_text
from tests.service.in_process import root, service_of
from tests.service.scripts import post, script
from tests.services.process import running

# Of two workers, with an unrelated line, an executor of each generation, and a truncated line.
ORIGINAL = (
    "I1124 10:00:00 starting\n"
    "PROFILE\tpid:60\tprep#[bow|0]_0:1000 prep#[bow|0]_1:3000 midp#[bow|0]_0:3000 "
    "midp#[bow|0]_1:13000 postp#[bow|0]_0:13000 postp#[bow|0]_1:14000 \n"
    "PROFILE\tpid:61\tprep#[bow|1]_0:1000 prep#[bow|1]_1:5000 midp#[bow|1]_0:5000 "
    "midp#[bow|1]_1:25000 postp#[bow|1]_0:25000 postp#[bow|1]_1:28000 \n"
    "\nPROFILE\tpid:60\tprepack_0#@DAGExecutor_0:500 prepack_0#@DAGExecutor_1:1000 "
    "call_0#DAG-0_0:1000 call_0#DAG-0_1:15000 postpack_0#@DAGExecutor_0:15000 "
    "postpack_0#@DAGExecutor_1:15200 \n"
    "\nPROFILE\tpid:60\tprepack_1#@G_0:500 prepack_1#@G_1:2000 call_1#DAG_0:1000 "
    "call_1#DAG_1:31000 \n"
    "PROFILE\tpid:60\tpy_prepro_0:10 py_prepro_1:20 \n"
    "PROFILE\tpid:60\n"
    "PROFILE\tpid:60\tprep#[bow|0]_0:1000 prep#[bow|0]_1:\n"
)


@pytest.fixture
def analyst(tmp_path: Path) -> Analyst:
    path = tmp_path / "profile.txt"
    path.write_text(ORIGINAL)
    return Analyst(path)


def test_the_originals_profile_is_converted_to_the_same_trace(
    analyst: Analyst, tmp_path: Path
) -> None:
    trace = analyst.get_trace()
    assert trace[0] == {"name": "prep", "tid": "[bow|0]", "pid": "60", "ts": "1000", "ph": "B"}
    assert {"name": "call_0", "tid": "DAG-0", "pid": "60", "ts": "15000", "ph": "E"} in trace
    assert {"name": "py_prepro", "tid": 0, "pid": "60", "ts": "10", "ph": "B"} in trace
    analyst.save_trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text()) == trace


def test_the_analyst_computes_means_of_requests_and_ops(analyst: Analyst) -> None:
    call, prepack, postpack, ops = analyst.get_profile()
    assert (call, prepack, postpack) == (22.0, 1.0, 0.2)
    assert ops.times() == {"bow": {"prep": 3.0, "midp": 15.0, "postp": 2.0}}
    assert ops.times("bow") == ops.times()["bow"]
    assert ops.qps("bow")["postp"] == 500
    assert json.loads(str(analyst.get_op_analyst())) == ops.times()


def test_the_analyst_computes_the_concurrency_for_the_slowest_step(
    analyst: Analyst, tmp_path: Path
) -> None:
    cards = tmp_path / "cards.yml"
    cards.write_text('bow: {midp: "0,1,2", prep: 3}')
    assert analyst.get_op_analyst().concurrency_analysis(cards) == {"bow": 4.0}
    cards.write_text('bow: {midp: "0,1", prep: 1}')
    with pytest.raises(ValueError, match="card 1 is given twice"):
        analyst.get_op_analyst().concurrency_analysis(cards)
    cards.write_text("bow: {in: 1}")
    with pytest.raises(ValueError, match=r"has no bow\.in"):
        analyst.get_op_analyst().concurrency_analysis(cards)


def test_a_profile_without_requests_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    with pytest.raises(ValueError, match="no requests"):
        Analyst(tmp_path / "empty").get_profile()


class Slow(Op):
    def process(self, feed_batch: Any, typical_logid: int) -> Any:
        time.sleep(0.01)
        return {"y": ["1"] * len(feed_batch)}


async def test_profile_lines_have_the_timelines_times_for_any_op_name(tmp_path: Path) -> None:
    name = "a_0#b|c d:e\u00e9%"
    async with service_of(Slow(name, input_ops=[root()])) as service:
        recorder = Recorder()
        service.engine.instruments.install(recorder)
        await service.call(x="1")
        (timeline,) = recorder.latest()
    path = tmp_path / "profile.txt"
    path.write_text(profile_text(timeline))
    analyst = Analyst(path)
    parts = dict(
        zip(
            ("prep", "midp", "postp"),
            [
                end - begin
                for part, begin, end in timeline.steps[0].stages(0.0)
                if "process" in part
            ],
            strict=True,
        )
    )
    call, _, _, ops = analyst.get_profile()
    for step, seconds in parts.items():
        assert ops.times(name)[step] == pytest.approx(1000 * seconds, abs=0.01)
    assert call == pytest.approx(1000 * (timeline.replied - timeline.admitted), abs=0.01)


HOOKS = """
def process(self, feed_batch, typical_logid):
    import time
    time.sleep(0.01)
    return feed_batch[0]
"""


@pytest.mark.real
@pytest.mark.parametrize("threads", [True, False])
def test_a_client_receives_its_profile_and_the_log_has_all_profiles(
    threads: bool, tmp_path: Path
) -> None:
    config = f'"dag": {{"use_profile": True, "is_thread_op": {threads}}}'
    with running(script(tmp_path, HOOKS, config)) as server:
        with PipelineClient() as client:
            client.connect([server.rpc_endpoint])
            plain = client.predict(feed_dict={"x": "1"})
            profiled = client.predict(feed_dict={"x": "1"}, profile=True)
        over_http = post(server, **{"x": "1", "pipeline.profile": "1"}).json
        refused = post(server, **{"x": "1", "pipeline.profile": "0"}).json
        assert server.stop() == 0
        shown = server.log()
    assert list(plain.key) == ["x"]
    assert list(profiled.key) == over_http["key"] == ["x", "pipeline.profile"]
    assert refused["key"] == ["x"]
    for text in (profiled.value[1], over_http["value"][1]):
        path = tmp_path / "one.txt"
        path.write_text(text)
        call, _, _, ops = Analyst(path).get_profile()
        assert 10 <= ops.times("work")["midp"] <= call
        assert len(Analyst(path).get_trace()) == 12
    (tmp_path / "all.txt").write_text(shown)
    names = [each["name"] for each in Analyst(tmp_path / "all.txt").get_trace()]
    assert names.count("midp") == 8
    assert len({each for each in names if each.startswith("call_")}) == 4
