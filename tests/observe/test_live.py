"""The live page's data of a request: the sum of its parts is its time."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from penstock.errors import Raised
from penstock.observe.live import details, summary
from penstock.observe.recorder import NO_ID
from penstock.observe.timeline import BatchTimes, Step, Timeline

SECOND = 1000.0


def step(op: str, queued: float, returned: float, **more: object) -> Step:
    facts = {
        "op": op, "number": 5, "worker": 1, "reason": "full", "rows": 4, "data_ids": [1, 2**53 + 1],
        "closed": queued + 0.1, "began": queued + 0.2, "prepared": 0.1, "processed": 0.2,
        "ran": 0.4, "returned": returned, "elements": 10, "filled_in": 3,
    }  # fmt: skip
    return Step(op, queued, 1, BatchTimes(**{**facts, **more}))  # type: ignore[arg-type]


def timeline(*steps: Step, data_id: int = 2**53 + 1, error: str | None = None) -> Timeline:
    return Timeline(
        engine=1, graph="ocr", route="/{name}", data_id=data_id, log_id=2**60 + 1, trace="",
        began=10.0, admitted=10.5, replied=14.0, ended=14.25, status=200, error=error,
        method="POST", trace_state="", steps=[*steps], text="it failed" if error else "",
    )  # fmt: skip


def test_the_sum_of_parts_is_the_time_with_ops_in_parallel() -> None:
    shown = details(
        timeline(step("a", 11.0, 12.0), step("b", 11.0, 13.0), step("c", 13.5, 14.0)), 20.0
    )
    assert shown["unpack"] == 0.5 * SECOND
    assert shown["entry"] == 0.5 * SECOND
    assert shown["ops"] == 2.5 * SECOND
    assert shown["between"] == 0.5 * SECOND
    assert shown["pack"] == 0.25 * SECOND
    assert shown["ms"] == 4.25 * SECOND
    first = shown["steps"][0]
    assert [part["name"] for part in first["parts"]] == [
        "queue", "transfer in", "preprocess", "process", "postprocess", "transfer out",
    ]  # fmt: skip
    assert [part["begin"] for part in first["parts"][1:]] == [
        part["end"] for part in first["parts"][:-1]
    ]
    assert (first["parts"][0]["begin"], first["parts"][-1]["end"]) == (1.0 * SECOND, 2.0 * SECOND)
    assert (first["batch"]["elements"], first["batch"]["filled_in"]) == (10, 3)


def test_ids_are_texts_as_browsers_would_round_numbers() -> None:
    shown = details(timeline(step("a", 11.0, 12.0)), 20.0)
    assert shown["id"] == "9007199254740993"
    assert shown["log_id"] == "1152921504606846977"
    assert shown["steps"][0]["batch"]["requests"] == ["1", "9007199254740993"]


def test_requests_that_the_worker_ran_at_the_same_time_are_named() -> None:
    others = [
        timeline(step("a", 11.5, 13.0, number=6), data_id=6),
        timeline(step("a", 11.5, 13.0, number=7, worker=2), data_id=7),
        timeline(step("b", 11.5, 13.0, number=8), data_id=8),
        timeline(step("a", 12.0, 13.0, number=9), data_id=9),
        timeline(step("a", 11.0, 12.0), data_id=10),
        timeline(replace(step("a", 11.0, 12.0), batch=None), data_id=11),
    ]
    shown = details(timeline(step("a", 11.0, 12.0)), 20.0, others)
    assert shown["steps"][0]["batch"]["beside"] == ["6"]


def test_the_sum_of_parts_is_the_time_of_a_request_that_timed_out() -> None:
    late = step("a", 11.0, 30.0, given_up=True)
    shown = details(timeline(late, Step("b", 13.0, 2, None), error="op_timeout"), 20.0)
    assert shown["ops"] == 3.0 * SECOND
    parts = [shown[name] for name in ("unpack", "entry", "ops", "between", "pack")]
    assert sum(parts) == pytest.approx(shown["ms"])
    assert (shown["error"], shown["text"]) == ("op_timeout", "it failed")
    assert shown["steps"][1]["batch"] is None
    assert shown["steps"][1]["attempt"] == 2


def test_a_request_whose_op_raised_has_the_exception() -> None:
    failed = timeline(step("a", 11.0, 12.0), error="hook_failed")
    assert summary(failed, 20.0)["error_type"] is details(failed, 20.0)["exception"] is None
    failed.raised = Raised("a", "ValueError", "Traceback\nValueError: no")
    back = Timeline.of(json.loads(json.dumps(failed.plain())))
    assert back == failed
    assert summary(back, 20.0)["error_type"] == "ValueError"
    assert "exception" not in summary(back, 20.0)
    shown = {"type": "ValueError", "op": "a", "traceback": "Traceback\nValueError: no"}
    assert details(back, 20.0)["exception"] == shown


def test_a_summary_has_the_longest_part_and_the_age() -> None:
    shown = summary(timeline(step("a", 11.0, 12.0), step("b", 12.0, 14.0)), 20.0)
    assert shown["longest"] == {"op": "b", "part": "transfer out", "ms": pytest.approx(1400.0)}
    assert shown["ago"] == 5.75
    refused = summary(timeline(data_id=NO_ID, error="busy"), 20.0)
    assert refused["id"] is None
    assert refused["longest"] == {"op": "", "part": "unpack", "ms": 500.0}


def test_an_answer_in_pieces_has_their_number_and_rate() -> None:
    assert summary(timeline(), 20.0)["stream"] is None
    streamed = replace(timeline(), pieces=5, first_piece=12.0)
    assert summary(streamed, 20.0)["stream"] == {"pieces": 5, "first": 2000.0, "rate": 2.0}
    at_once = replace(timeline(), pieces=1, first_piece=14.0)
    assert summary(at_once, 20.0)["stream"] == {"pieces": 1, "first": 4000.0, "rate": None}
