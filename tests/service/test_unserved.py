"""A script that defines a service and ends without serving it says so, and no other program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

APP = """\
from penstock import App, Op, Service, WebService

app = App("hello")


@app.route("/double")
def double(x: int) -> int:
    return 2 * x

"""
TOLD = (
    "app.py defines {} and has not served it: run it, such as by app.run(), or use:"
    " penstock run app.py\n"
)


def errors_of(*command: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    return done.stderr


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        (APP, "<App 'hello' /double>"),
        ('from penstock import Op, Service\n\ns = Service("s", Op("op"))\n', "<Service 's'>"),
        ('from penstock import PipelineServer\n\ns = PipelineServer("s")', "<PipelineServer 's'>"),
    ],
)
def test_a_script_that_runs_nothing_says_so(script: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(script)
    assert errors_of("app.py", folder=tmp_path) == TOLD.format(shown)


TEST = """\
from penstock.testing import client

with client(app) as http:
    assert http.post("/double", json={"x": 1}).json() == 2
"""


@pytest.mark.parametrize(
    "command",
    [
        ("-c", "import app"),
        ("-c", "from app import app"),
        ("tested.py",),
        ("-m", "penstock", "check", "app.py"),
        ("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_app.py"),
        ("other_server.py",),
    ],
    ids=lambda command: " ".join(command[:4]),
)
def test_other_programs_say_nothing(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "tested.py").write_text(APP + TEST)
    (tmp_path / "test_app.py").write_text("from app import app\n\n\ndef test():\n    assert app\n")
    (tmp_path / "other_server.py").write_text(APP + "import uvicorn\n")
    assert "has not served" not in errors_of(*command, folder=tmp_path)


def test_a_script_that_raised_shows_only_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(f"{APP}raise SystemError\n")
    text = errors_of("app.py", folder=tmp_path)
    assert text.endswith("SystemError\n")
    assert "has not served" not in text
