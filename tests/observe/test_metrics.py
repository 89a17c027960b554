"""Metrics: names, units, types and texts by Prometheus' conventions, and their values."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_plain

from penstock.door.limits import DoorStatistics
from penstock.errors import HookFailed, ServiceClosed
from penstock.executors.seats.counts import StepCounts
from penstock.executors.workers.places import Lack, Places
from penstock.observe.chrome import trace
from penstock.observe.counters import Counters, of_steps
from penstock.observe.metrics import DOOR, FAMILIES, OF_ORIGINAL, exposition
from penstock.observe.recorder import Recorder
from penstock.observe.timeline import Timeline
from tests.documents import ROOT, rows_of

# promtool check metrics: promlint in github.com/prometheus/client_golang.
_ABBREVIATED = re.compile(r"(^|_)(s|ms|us|ns|sec|b|kb|mb|min|hr)(_|$)")
_NOT_BASE = re.compile(r"(milli|micro|nano)seconds|minutes|hours|(kilo|mega|giga)bytes|bits")
_RESERVED = ("le", "quantile", "job", "instance")


def op(name: str, **more: Any) -> dict[str, Any]:
    counters = Counters().of_op(name)
    numbers = {"name": name, "workers": 3, "idle": 1, "waiting": 4, "batches": 2, "samples": 5}
    return {**counters, **numbers, "process": {"memory": 4096, "cpu": 1.5}, **more}


def report(**more: Any) -> dict[str, Any]:
    counters = Counters()
    found: dict[str, Any] = {
        "engines": 1,
        "ready": True,
        "requests": {"waiting": 2},
        **counters.of_requests(),
        "door": dict.fromkeys((*DOOR, "requests"), 0)
        | {"error_answers": {"404": 5}, "caller_refusals": {"quota": 3}},
        "caller_series": [
            {
                "name": "ann",
                "requests": 9,
                "failed": 2,
                "cancelled": 1,
                "refused": {"quota": 3, "forbidden": 1},
            }
        ],
        "process": {"memory": 8192, "cpu": 2.5},
        "graphs": [
            {
                "name": "ocr",
                "version": "1",
                "inside": 3,
                "requests": {
                    "answers": {"ok": 7, "op_timeout": 2},
                    "refusals": {"busy": 1},
                    "cancelled": 4,
                    "seconds": {"sum": 0.5, "classes": {"<= 0.001": 5, "<= 0.1": 3, "> 10": 1}},
                },
                "ops": [
                    op(
                        "ocr/det",
                        reasons={"idle slot": 2},
                        rows={"sum": 5, "classes": {"<= 1": 1, "<= 4": 1}},
                        seconds={"preprocess": 0.1, "process": 0.2, "postprocess": 0.0},
                        transfer=0.05,
                        worker_changes={"started": 3, "died": 1},
                    )
                ],
            }
        ],
    }
    return {**found, **more}


def families(text: bytes, *, openmetrics: bool = False) -> dict[str, Metric]:
    read = read_openmetrics if openmetrics else read_plain
    return {each.name: each for each in read(text.decode())}


def samples(text: bytes) -> dict[tuple[str, tuple[str, ...]], float]:
    """By name and the values of the labels, in the order of their names."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()) if value)): (
            sample.value
        )
        for family in families(text).values()
        for sample in family.samples
    }


@pytest.mark.parametrize("family", [*FAMILIES, *OF_ORIGINAL], ids=lambda each: each.name)
def test_names_units_and_texts_follow_promtools_rules(family: Any) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name)
    assert family.text.endswith(".")
    assert not any(word in family.name for word in ("counter", "gauge", "histogram"))
    if family not in OF_ORIGINAL:
        assert family.name.startswith("penstock_")
        assert not _ABBREVIATED.search(family.name)
        assert not _NOT_BASE.search(family.name)
        assert not family.name.endswith(("_total", "_count", "_sum", "_bucket"))
    for label in family.labels:
        assert re.fullmatch(r"[a-z][a-z_]*", label)
        assert label not in _RESERVED


@pytest.mark.parametrize("openmetrics", [False, True])
def test_every_family_is_exported_with_its_type_and_text(openmetrics: bool) -> None:
    kind, text = exposition(report(), openmetrics=openmetrics, of_original=True)
    assert kind.startswith(b"application/openmetrics-text" if openmetrics else b"text/plain")
    assert text.endswith(b"# EOF\n") is openmetrics
    read = families(text, openmetrics=openmetrics)
    for family in (*FAMILIES, *OF_ORIGINAL):
        name = family.name
        assert (read[name].type, read[name].documentation) == (family.kind, family.text)
        for sample in read[name].samples:
            assert set(sample.labels) - {"le"} == set(family.labels)
    assert set(read) == {each.name for each in (*FAMILIES, *OF_ORIGINAL)}


def test_the_originals_names_are_exported_only_if_configured() -> None:
    assert b"pd_" not in exposition(report())[1]


def test_values_are_those_of_the_report() -> None:
    read = samples(exposition(report(), of_original=True)[1])
    request, det = ("ocr", "1"), ("det", "ocr", "1")
    expected = {
        ("penstock_ready", ()): 1,
        ("penstock_door_errors_total", ("404",)): 5,
        ("penstock_caller_refusals_total", ("quota",)): 3,
        ("penstock_caller_requests_total", ("ann", "ok")): 2,
        ("penstock_caller_requests_total", ("ann", "cancelled")): 1,
        ("penstock_caller_requests_total", ("ann", "error")): 2,
        ("penstock_caller_requests_total", ("ann", "refused")): 4,
        ("penstock_requests_total", ("ok", *request)): 7,
        ("penstock_requests_total", ("op_timeout", "error", *request)): 2,
        ("penstock_requests_total", ("busy", "refused", *request)): 1,
        ("penstock_requests_total", ("cancelled", *request)): 4,
        ("penstock_requests_in_flight", request): 3,
        ("penstock_requests_waiting", ()): 2,
        ("penstock_request_duration_seconds_bucket", ("0.001", *request)): 5,
        ("penstock_request_duration_seconds_bucket", ("0.05", *request)): 5,
        ("penstock_request_duration_seconds_bucket", ("0.1", *request)): 8,
        ("penstock_request_duration_seconds_bucket", ("10.0", *request)): 8,
        ("penstock_request_duration_seconds_bucket", ("+Inf", *request)): 9,
        ("penstock_request_duration_seconds_count", request): 9,
        ("penstock_request_duration_seconds_sum", request): 0.5,
        ("penstock_op_queue_length", det): 4,
        ("penstock_op_batch_rows_sum", det): 5,
        ("penstock_op_batches_total", ("det", "idle_slot", "ocr", "1")): 2,
        ("penstock_op_stage_seconds_total", ("det", "ocr", "process", "1")): 0.2,
        ("penstock_op_stage_seconds_total", ("det", "ocr", "transfer", "1")): 0.05,
        ("penstock_op_workers", ("det", "ocr", "idle", "1")): 1,
        ("penstock_op_workers", ("det", "ocr", "busy", "1")): 2,
        ("penstock_op_worker_deaths_total", det): 1,
        ("penstock_process_resident_memory_bytes", ("engine",)): 8192,
        ("penstock_process_resident_memory_bytes", ("det", "worker", "ocr", "1")): 4096,
        ("pd_query_request_success_total", request): 7,
        ("pd_query_request_failure_total", request): 2,
        ("pd_query_request_duration_us_total", request): 500_000,
        ("pd_inference_count_total", det): 2,
        ("pd_inference_duration_us_total", det): pytest.approx(300_000),
    }
    assert {key: read.get(key) for key in expected} == expected


def test_a_graph_without_a_name_is_exported_as_a_star_and_a_door_is_optional() -> None:
    (graph,) = report()["graphs"]
    read = samples(exposition(report(door=None, graphs=[{**graph, "name": None}]))[1])
    assert read["penstock_requests_total", ("ok", "*", "1")] == 7
    assert not any(name.startswith("penstock_door") for name, _ in read)


def test_models_of_repositories_are_exported_up_to_a_limit() -> None:
    rows = [{"name": f"m{n}", "version": "1", "state": "READY"} for n in range(1500)]
    places = [{"name": "s3://a", "why": ""}, {"name": "s3://b", "why": "it is down"}]
    read = samples(exposition(report(models=rows, repositories=places))[1])
    assert read["penstock_model_versions", ("m0", "READY", "1")] == 1
    assert len([name for name, _ in read if name == "penstock_model_versions"]) == 1000
    assert read["penstock_repository_answers", ("s3://a",)] == 1
    assert read["penstock_repository_answers", ("s3://b",)] == 0


def test_versions_have_their_share_loads_rollouts_and_answers_to_copies() -> None:
    (graph,) = report()["graphs"]
    copies = {"same": 8, "differed": 2, "dropped": 1, "failed": 0}
    rolling = {"name": "ocr", "version": "2", "state": "running", "step": "3"}
    over = {"name": None, "version": "4", "state": "taken back", "step": "1"}
    text = exposition(
        report(
            graphs=[graph, {**graph, "version": "2", "share": 0.25, "copies": copies}],
            loads=[{"name": "ocr", "outcomes": {"served": 3, "content_refused": 1}}],
            rollouts=[rolling, over],
            rollout_ends=[{"name": "*", "outcomes": {"taken back": 1}}],
        )
    )[1]
    read = samples(text)
    expected = {
        ("penstock_version_share", ("ocr", "2")): 0.25,
        ("penstock_version_loads_total", ("ok", "ocr")): 3,
        ("penstock_version_loads_total", ("failed", "content_refused", "ocr")): 1,
        ("penstock_rollout_step", ("ocr", "2")): 3,
        ("penstock_rollouts_total", ("taken_back", "*")): 1,
        ("penstock_rollouts_total", ("promoted", "*")): 0,
        ("penstock_rollouts_total", ("taken_back", "ocr")): 0,
        ("penstock_shadow_answers_total", ("differed", "ocr", "2")): 2,
    }
    assert {key: read.get(key) for key in expected} == expected
    assert ("penstock_version_share", ("ocr", "1")) not in read
    assert ("penstock_rollout_step", ("*", "4")) not in read


def test_every_counted_limit_of_the_door_is_exported() -> None:
    counters = DoorStatistics()
    left = {"open", "calls", "unsent", "accepted", "requests", "idle", "abuses", "gone"}
    left |= {"cut", "error_answers", "caller_refusals"}
    assert set(DOOR) == {each for each in counters.__slots__ if each not in left}  # type: ignore[attr-defined]


def test_the_document_lists_every_metric_as_it_is_declared() -> None:
    rows = rows_of((ROOT / "docs/metrics.md").read_text())
    assert rows == [
        [f"`{each.shown}`", each.kind, ", ".join(f"`{x}`" for x in each.labels) or "–", each.text]
        for each in (*FAMILIES, *OF_ORIGINAL)
    ]


def test_a_graph_that_streams_has_the_metrics_of_pieces() -> None:
    streams = {
        "open": 2,
        "ended": {"ok": 3, "hook_failed": 1},
        "pieces": 50,
        "first": {"sum": 0.5, "classes": {"<= 0.1": 6}},
        "between": {"sum": 0.25, "classes": {"<= 0.05": 4}},
    }
    plain = report()
    _, text = exposition(plain)
    assert not any("piece" in name or "stream" in name for name, _ in samples(text))
    plain["graphs"][0]["streams"] = streams
    _, text = exposition(plain)
    found = samples(text)
    labels = ("ocr", "1")
    assert found["penstock_first_piece_seconds_count", labels] == 6
    assert found["penstock_between_pieces_seconds_sum", labels] == 0.25
    assert found["penstock_pieces_total", labels] == 50
    assert found["penstock_streams_open", labels] == 2
    ended = {key: value for key, value in found.items() if key[0] == "penstock_streams_ended_total"}
    assert sorted(ended.values()) == [1, 3]


def test_an_op_in_processes_of_its_own_has_the_states_of_its_workers_and_their_nodes() -> None:
    plain = report()
    assert not any("states" in name or "node" in name for name, _ in _series(plain))
    places = Places(6, 0.0)
    for index, node in enumerate(("a", "b", "a")):
        there = {"id": f"{index}", "address": "192.0.2.1", "host": node}  # two nodes of one host
        places.placed(index, "there", there)
        places.runs(index, 1, 1.0)
    places.placed(2, "there", {"id": "2", "address": "192.0.2.1", "host": "a"})
    places.waits(3, Lack("", {"CPU": 1}, True))
    places.waits(4, Lack("", {"CPU": 9}, False))
    places.failed(5, "")
    numbers = {"workers": 6, "idle": 5, "ready": 2}
    plain["graphs"][0]["ops"].append(op("ocr/read", places=places.plain(2.0)[0], **numbers))
    found = _series(plain)
    taken = {
        labels[2]: value
        for (name, labels), value in found.items()
        if name == "penstock_op_workers" and labels[0] == "read"
    }
    assert taken == {"idle": 1, "busy": 1, "missing": 4}
    states = {
        labels[2]: value
        for (name, labels), value in found.items()
        if name == "penstock_op_worker_states"
    }
    assert states == {
        "running": 2, "starting": 1, "waiting": 1, "impossible": 1, "failed": 1,
    }  # fmt: skip
    nodes = {
        labels: value for (name, labels), value in found.items() if name.endswith("node_workers")
    }
    assert nodes == {
        ("192.0.2.1", "a", "read", "ocr", "1"): 1,
        ("192.0.2.1", "b", "read", "ocr", "1"): 1,
    }
    places.runs(2, 1, 3.0)
    plain["graphs"][0]["ops"][1]["places"] = places.plain(4.0)[0]
    found = _series(plain)
    assert found["penstock_op_node_workers", ("192.0.2.1", "a", "read", "ocr", "1")] == 2


def test_an_op_with_seats_has_the_metrics_of_seats_and_steps() -> None:
    counts = StepCounts()
    for running, seconds in ((16, 0.0002), (16, 0.02), (3, 0.5)):
        counts.add(running, seconds)
    plain = report()
    assert not any("step" in name or "seats" in name for name, _ in _series(plain))
    seated = {"seats": {"all": 32, "taken": 12}, "steps": of_steps(counts.numbers)}
    plain["graphs"][0]["ops"].append(op("ocr/read", **seated))
    found = _series(plain)
    labels = ("read", "ocr", "1")
    assert found["penstock_op_seats", labels] == 32
    for name in ("running", "seconds"):
        assert found[f"penstock_step_{name}_count", labels] == 3
    assert found["penstock_step_running_sum", labels] == 35
    assert found["penstock_step_running_bucket", ("4.0", *labels)] == 1
    assert found["penstock_step_seconds_sum", labels] == pytest.approx(0.5202)
    assert found["penstock_step_seconds_bucket", ("0.00025", *labels)] == 1
    del plain["graphs"][0]["ops"][1]["seats"]  # the engines have ended, and their seats
    assert _series(plain)["penstock_op_seats", labels] == 0


def _series(plain: dict[str, Any]) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        key: value
        for key, value in samples(exposition(plain)[1]).items()
        if not key[0].startswith("penstock_op_stage")
    }


class _Graph:
    key = ("g", "1")
    label = "g"
    stages = ()


class _Request:
    """A request whose answer comes in pieces."""

    graph, caller, call, steps, samples, log_id = _Graph(), None, None, None, (), 0

    def __init__(self, data_id: int, admitted_at: float) -> None:
        self.data_id, self.admitted_at = data_id, admitted_at
        self.stream = SimpleNamespace(taken=0)
        self.copied = False


def test_answers_in_pieces_are_counted_at_their_begin_and_end() -> None:
    counters = Counters()
    recorder = Recorder(0, counters)
    whole, cut, open_one, at_once = (_Request(number, 10.0) for number in range(4))
    for request in (whole, cut, open_one):
        counters.stream_begun(request, 10.02)
    whole.stream.taken, cut.stream.taken, open_one.stream.taken = 5, 1, 7
    recorder.replied(whole, None, 10.38)
    recorder.cancelled(cut, 11.0)
    recorder.replied(at_once, ServiceClosed(), 11.0)
    seen = counters.of_streams(_Graph())
    assert seen["open"] == 1
    assert seen["ended"] == {"ok": 1, "cancelled": 1}
    assert seen["pieces"] == 5 + 1 + 7
    assert seen["first"]["classes"] == {"<= 0.025": 3}
    assert seen["between"] == {"sum": pytest.approx(0.09), "classes": {"<= 0.1": 1}}
    assert [(each.pieces, each.first_piece) for each in recorder.latest()] == [
        (5, 10.02), (1, 10.02), (0, None),
    ]  # fmt: skip
    recorder.replied(open_one, HookFailed("x"), 12.0)
    seen = counters.of_streams(_Graph())
    assert (seen["open"], seen["pieces"]) == (0, 13)
    assert seen["ended"] == {"ok": 1, "cancelled": 1, "hook_failed": 1}
    assert not counters.open_streams
    for _ in range(1000):  # more than are counted together
        request = _Request(9, 10.0)
        counters.stream_begun(request, 10.0)
        request.stream.taken = 2
        recorder.replied(request, None, 10.0)
    assert sum(counters.of_streams(_Graph())["between"]["classes"].values()) == 1002
    timeline = recorder.latest()[0]
    assert Timeline.of(timeline.plain()) == timeline


def test_a_trace_has_the_pieces_of_an_answer_as_a_slice() -> None:
    counters = Counters()
    recorder = Recorder(0, counters)
    request = _Request(1, 10.0)
    counters.stream_begun(request, 10.5)
    request.stream.taken = 11
    recorder.replied(request, HookFailed("x"), 11.5)
    events = trace(recorder.latest())["traceEvents"]
    (pieces,) = [each for each in events if each["name"] == "pieces"]
    assert (pieces["ts"], pieces["dur"]) == (0.5e6, 1e6)
    assert pieces["args"] == {"pieces": 11, "pieces_per_second": 10.0}
    (whole,) = [each for each in events if each["name"] == "g 1"]
    assert (whole["args"]["pieces"], whole["args"]["ended"]) == (11, "hook_failed")
