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


def _wait_for_reply(port: int, wanted: int | None) -> None:
    """Waits until the reply is ``wanted``; None: until there is no service."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            with direct.open(f"http://127.0.0.1:{port}/number", b'{"x": 1}', timeout=5) as answer:
                reply = json.load(answer)
        except (urllib.error.URLError, OSError):
            reply = None
        if reply == wanted:
            return
        time.sleep(0.05)
    raise AssertionError(f"the answer did not become {wanted}")


def test_a_changed_script_is_reloaded_and_a_broken_one_is_not_served(tmp_path: Path) -> None:
    port = free_port()
    path = tmp_path / "app.py"
    path.write_text(SCRIPT.format(port=port, more=1))
    command = [sys.executable, "-m", "penstock", "run", str(path), "--reload"]
    out, log = tmp_path / "out", tmp_path / "log"
    with out.open("w") as stdout, log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr)
    try:
        _wait_for_reply(port, 2)
        path.write_text(SCRIPT.format(port=port, more=5))
        _wait_for_reply(port, 6)
        (tmp_path / "page.html").write_text("<p>changed")
        until(lambda: out.read_text().count("GET /docs") == 3, "a start after a changed page")
        path.write_text("this is no Python")
        until(lambda: "invalid syntax" in log.read_text(), "the end of the broken script")
        _wait_for_reply(port, None)
        path.write_text(SCRIPT.format(port=port, more=7))
        _wait_for_reply(port, 8)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
    _wait_for_reply(port, None)
    for name, times in (("app.py", 3), ("page.html", 1)):
        assert out.read_text().count(f"changed: {name}; starting again\n") == times
    noise = [each for each in log.read_text().splitlines() if "exit code" in each or "Keyb" in each]
    assert noise == [], log.read_text()
