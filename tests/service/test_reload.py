"""``penstock run --reload``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
from pathlib import Path

import pytest

from tests.services.process import direct, free_port

pytestmark = pytest.mark.real

SCRIPT = """
from penstock import App
app = App("reloaded", http_port={port}, rpc_port=0)

@app.route("/number")
def number(x: int) -> int:
    return x + {more}
"""


def _ask(port: int, wanted: int | None) -> None:
    """Until the answer is this; None: until there is none."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            with direct.open(f"http://127.0.0.1:{port}/number", b'{"x": 1}', timeout=5) as answer:
                found = json.load(answer)
        except (urllib.error.URLError, OSError):
            found = None
        if found == wanted:
            return
        time.sleep(0.05)
    raise AssertionError(f"the answer did not become {wanted}")


def test_a_changed_script_is_served_and_a_broken_one_waits(tmp_path: Path) -> None:
    port = free_port()
    path = tmp_path / "app.py"
    path.write_text(SCRIPT.format(port=port, more=1))
    command = [sys.executable, "-m", "penstock", "run", str(path), "--reload"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _ask(port, 2)
        path.write_text(SCRIPT.format(port=port, more=5))
        _ask(port, 6)
        path.write_text("this is no Python")
        _ask(port, None)
        path.write_text(SCRIPT.format(port=port, more=7))
        _ask(port, 8)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
    _ask(port, None)
