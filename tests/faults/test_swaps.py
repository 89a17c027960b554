"""Changes of a model under load, some of them broken: no request notices them.

A sample of ``python -m tests.faults.swaps``, which also measures times and memory.
"""

from __future__ import annotations

import pytest

from tests.faults.swaps import CACHE_MIB, run

pytestmark = pytest.mark.faults

SOME = ["truncated", "another signature", "crash at warm-up", "deleted while loading"]


@pytest.mark.parametrize(
    ("where", "engines"),
    [
        ("process", 1),
        ("thread", 3),
        pytest.param("process", 3, marks=pytest.mark.long),
        pytest.param("thread", 1, marks=pytest.mark.long),
    ],
)
def test_no_request_notices_that_its_model_changes(where: str, engines: int) -> None:
    result = run(where, engines, 6, rate=60.0, pause=0.0, limit=120, kinds=SOME)
    assert result.answers > 0
    assert result.failures == []
    assert result.wrong == []
    assert result.disordered == 0
    assert result.surprises == []
    assert result.early is not None
    assert result.late is not None
    assert result.late.processes == result.early.processes
    assert result.late.cached_bytes <= CACHE_MIB << 20
