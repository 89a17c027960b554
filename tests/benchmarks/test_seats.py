"""The comparison of seats with a fixed batch runs, and counts the same tokens for both."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.documents import ROOT

pytestmark = pytest.mark.real


def test_both_ways_answer_and_are_compared() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.seats", "--seconds", "0.1"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=ROOT,
    )
    seats, batches, compared = done.stdout.splitlines()
    assert seats.startswith("/seats")
    assert batches.startswith("/batches")
    assert compared.startswith("seats: ")
