from pathlib import Path

import pytest

from benchmarks import copies
from benchmarks.copies import IN_PLACE, count_all
from benchmarks.processes import BenchmarkError


@pytest.mark.real
def test_threads_share_an_array_and_processes_copy_it(tmp_path: Path) -> None:
    found, failures = count_all(("thread", "process", IN_PLACE), tmp_path)
    assert failures == []
    assert found["thread"] == 0
    assert 0 < found["process"] <= 2
    assert found[IN_PLACE] == 0


def test_what_cannot_be_counted_is_told_and_not_taken_for_no_copies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(executor: str, folder: Path) -> float:
        if executor == "process":
            raise BenchmarkError("it did not start")
        return 0.0

    monkeypatch.setattr(copies, "count_copies", fails)
    found, failures = count_all(("thread", "process"), tmp_path)
    assert found == {"thread": 0.0}
    assert failures == ["copies, process: it did not start"]
