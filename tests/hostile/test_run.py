"""A small sample of the big run, for the gate."""

import pytest

from tests.hostile.run import faults_in_log, hostile_run


@pytest.mark.real
def test_good_and_bad_requests_side_by_side_all_get_their_answers() -> None:
    report = hostile_run(3000)
    assert report.faults == []
    assert " 0 cancelled" not in report.totals
    assert set(report.kinds) == {"good", "leaver", "op error", "bad value", "bad transport"}


def test_lines_of_the_log_that_are_about_something_else_are_found() -> None:
    raised = "[penstock.ops.failures] op batched: process raised"
    log = "\n".join(
        [
            "INFO 2026-01-01 [penstock] fine",
            "WARNING 2026-01-01 [penstock.engine] odd",
            "Traceback (most recent call last):",
            f"WARNING 2026-01-01 {raised} (data_ids=[7] log_id=0)\\nError: planted in process",
            f"WARNING 2026-01-01 {raised} (data_ids=[7] log_id=0)\\nKeyError: 'x'",
            f"WARNING 2026-01-01 {raised} (data_ids=[7, 8] log_id=0)\\nError: planted in process",
        ]
    )
    assert len(faults_in_log(log)) == 4
