"""The page on external workers, from its own text: its service, its commands, its plain worker."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgpack
import pytest

from tests.documents import ROOT, blocks_of, commands_of
from tests.services.process import ServiceProcess, running

pytestmark = pytest.mark.real

PAGE = ROOT / "docs/external-workers.md"
FILES = {block.name: block.text for block in blocks_of(PAGE) if block.name}
ADDRESS = "http://127.0.0.1:8080"
PENSTOCK = (sys.executable, "-m", "penstock")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@contextmanager
def serving(folder: Path) -> Iterator[ServiceProcess]:
    script = folder / "service.py"
    with running(script, command=(*PENSTOCK, "run"), cwd=folder, ready=False) as server:
        yield server


@contextmanager
def started(folder: Path, *command: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    worker = subprocess.Popen(command, cwd=folder, env={**os.environ, **variables})
    try:
        yield worker
    finally:
        worker.kill()
        worker.wait()


def shown() -> list[tuple[str, str]]:
    """The page's commands, and what they print."""
    return [
        (command.line, command.output.strip())
        for block in blocks_of(PAGE)
        if block.language == "console"
        for command in commands_of(block)
    ]


def typed(line: str, server: ServiceProcess) -> str:
    """What a command of the page prints here."""
    line = line.replace(ADDRESS, server.http_url)
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout.strip()


def test_the_commands_of_the_page_print_what_it_shows(folder: Path) -> None:
    (_, worker, *asked) = shown()
    command = worker[0].removesuffix(" &").split()
    with started(folder, *PENSTOCK, *command[1:]) as process, serving(folder) as server:
        server.wait_ready()
        assert len(asked) == 2
        for line, output in asked:
            assert typed(line, server) == output
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert not server.is_ready()
        assert server.stop() == 0
        assert "external worker 0" in server.log()
        assert "has left" in server.log()


def test_the_plain_worker_needs_forty_lines_and_no_penstock(folder: Path) -> None:
    assert FILES["worker.py"].count("\n") <= 40
    packages = folder / "packages"
    shutil.copytree(Path(msgpack.__file__).parent, packages / "msgpack")
    # Without the site's packages, and so without ours.
    python = (sys.executable, "-S", "worker.py", "sums.sock")
    hidden = subprocess.run(
        [sys.executable, "-S", "-c", "import msgpack, penstock"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'penstock'" in hidden.stderr
    with started(folder, *python, PYTHONPATH=str(packages)), serving(folder) as server:
        server.wait_ready()
        good, bad = (typed(line, server) for line, _ in shown()[2:])
        assert good == '{"sum": 6.0}'
        assert '"loc":["body","row"],"msg":"could not convert string to float' in bad
        assert '"error":"invalid_input"' in bad
        assert server.stop() == 0
