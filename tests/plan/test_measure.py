"""The files that ``penstock trace`` and ``penstock plan`` write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.plan import measure


def test_a_trace_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watched(address: str, requests: int, seconds: float, *_: object) -> dict[str, Any]:
        return {"otherData": {"requests": requests}}

    monkeypatch.setattr(measure, "watched", watched)
    file = tmp_path / "none" / "trace.json"
    done = CliRunner().invoke(app, ("trace", "-o", str(file)))
    assert done.exit_code == 1
    assert done.stderr == f"error: {file} cannot be written: No such file or directory\n"
