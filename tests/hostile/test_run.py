"""The log's events that ``tests.hostile.run`` did not plant are faults."""

import json

from tests.hostile.run import faults_in_log


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
