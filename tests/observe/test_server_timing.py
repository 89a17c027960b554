"""The timeline of a request in the header field ``Server-Timing``."""

from __future__ import annotations

from penstock.observe.server_timing import MOST_BYTES, field_of
from penstock.observe.timeline import Step
from penstock.protocols.server_timing import decode

from .test_live import step, timeline


def test_the_field_has_the_request_and_its_ops_by_their_begins() -> None:
    late, early = step("ocr/b", 12.0, 13.0), step("a", 11.0, 12.0)
    late.attempt = 2
    total, *ops = decode(field_of(timeline(late, early, data_id=17)))
    assert total.name == "total"
    assert total.parameters == {"dur": "4000", "unpack": "500", "engine": "1", "id": "17"}
    assert [each.name for each in ops] == ["a", "ocr/b"]
    assert ops[0].parameters == {
        "dur": "1000", "begin": "1000", "queue": "100", "transfer-in": "100", "preprocess": "100",
        "process": "200", "postprocess": "100", "transfer-out": "400", "rows": "4", "worker": "1",
    }  # fmt: skip
    assert ops[1].parameters["attempt"] == "2"


def test_an_op_that_the_request_did_not_leave_is_unfinished() -> None:
    _, op = decode(field_of(timeline(Step("a", 11.0, 1, None))))
    assert op.parameters == {"dur": "3000", "begin": "1000", "unfinished": "3000"}


def test_a_field_that_would_be_too_long_leaves_out_the_last_ops() -> None:
    steps = [step(f"op-{at:03}", 10.5 + at / 1000, 12.0) for at in range(200)]
    field = field_of(timeline(*steps))
    assert len(field) < MOST_BYTES + 30
    *shown, left = decode(field)
    assert shown[-1].name == f"op-{len(shown) - 2:03}"
    assert left == ("left-out", {"count": str(201 - len(shown))})
