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

from tests.service.scripts import until
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
    told, log = tmp_path / "out", tmp_path / "log"
    with told.open("w") as stdout, log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr)
    try:
        _ask(port, 2)
        path.write_text(SCRIPT.format(port=port, more=5))
        _ask(port, 6)
        (tmp_path / "page.html").write_text("<p>changed")
        until(lambda: told.read_text().count("GET /docs") == 3, "a start after a changed page")
        path.write_text("this is no Python")
        until(lambda: "invalid syntax" in log.read_text(), "the end of the broken script")
        _ask(port, None)
        path.write_text(SCRIPT.format(port=port, more=7))
        _ask(port, 8)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
    _ask(port, None)
    for name, times in (("app.py", 3), ("page.html", 1)):
        assert told.read_text().count(f"changed: {name}; starting again\n") == times
    noise = [each for each in log.read_text().splitlines() if "exit code" in each or "Keyb" in each]
    assert noise == [], log.read_text()
