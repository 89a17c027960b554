"""A short run of ``tests.hostile.run``."""

import json

import pytest

from tests.hostile.run import faults_in_log, hostile_run


@pytest.mark.real
def test_concurrent_good_and_bad_requests_get_their_answers() -> None:
    report = hostile_run(3000)
    assert report.faults == []
    assert " 0 cancelled" not in report.totals
    assert set(report.kinds) == {"good", "leaver", "op error", "bad value", "bad transport"}


def test_log_events_that_were_not_planted_are_faults() -> None:
    planted = {
        "level": "WARNING",
        "logger": "penstock.ops.failures",
        "message": "op batched: process raised (data_ids=[7] log_id=0)",
        "exception": "RuntimeError: planted in process",
    }
    others = [
        planted | {"exception": "KeyError: 'x'"},
        planted | {"message": "op batched: process raised (data_ids=[7, 8] log_id=0)"},
        planted | {"logger": "penstock.engine"},
        planted | {"level": "ERROR"},
    ]
    fine = {"level": "INFO", "logger": "penstock", "message": "fine"}
    log = [json.dumps(event) for event in (fine, planted, *others)]
    faults, count = faults_in_log("\n".join([*log, "Traceback (most recent call last):"]))
    assert (len(faults), count) == (5, 1)
