"""Reloads of a program under load, some of them of broken ones: no request notices them.

A sample of ``python -m tests.faults.reloads``, which also measures memory.
"""

from __future__ import annotations

import pytest

from tests.faults.reloads import run

pytestmark = pytest.mark.faults

SOME = ["worker dies", "exits 0"]
FORMS = ("class", "function", "project", "serve")


@pytest.mark.parametrize(
    ("form", "where", "engines"),
    [
        ("class", "process", 3),
        ("project", "thread", 1),
        *(
            pytest.param(form, where, engines, marks=pytest.mark.long)
            for form in FORMS
            for where in ("process", "thread")
            for engines in (1, 3)
        ),
    ],
)
def test_no_request_notices_that_its_program_changes(form: str, where: str, engines: int) -> None:
    kinds = None if form == "serve" else SOME
    result = run(form, where, engines, 3, rate=60.0, pause=0.0, limit=120, kinds=kinds)
    assert result.answers > 0
    assert result.faults == []
    assert result.early is not None
    assert result.last is not None
    assert result.last.processes == result.early.processes
    assert result.last.descriptors == result.early.descriptors
