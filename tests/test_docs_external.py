"""The page on external workers, run from its text: its service, its commands, its worker."""

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
def started_worker(
    folder: Path, *command: str, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    worker = subprocess.Popen(command, cwd=folder, env={**os.environ, **variables})
    try:
        yield worker
    finally:
        worker.kill()
        worker.wait()


def documented_commands() -> list[tuple[str, str]]:
    """The page's commands and their documented output."""
    return [
        (command.line, command.output.strip())
        for block in blocks_of(PAGE)
        if block.language == "console"
        for command in commands_of(block)
    ]


def output_of(line: str, server: ServiceProcess) -> str:
    """The actual output of one of the page's commands."""
    line = line.replace(ADDRESS, server.http_url)
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout.strip()


def test_the_pages_commands_print_the_pages_output(folder: Path) -> None:
    (_, worker, *requests) = documented_commands()
    command = worker[0].removesuffix(" &").split()
    with started_worker(folder, *PENSTOCK, *command[1:]) as process, serving(folder) as server:
        server.wait_ready()
        assert len(requests) == 2
        for line, output in requests:
            assert output_of(line, server) == output
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert not server.is_ready()
        assert server.stop() == 0
        assert "external worker 0" in server.log()
        assert "has left" in server.log()


def test_the_plain_worker_has_at_most_forty_lines_and_runs_without_penstock(folder: Path) -> None:
    assert FILES["worker.py"].count("\n") <= 40
    packages = folder / "packages"
    shutil.copytree(Path(msgpack.__file__).parent, packages / "msgpack")
    # Without site-packages, and so without penstock.
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
    with started_worker(folder, *python, PYTHONPATH=str(packages)), serving(folder) as server:
        server.wait_ready()
        good, bad = (output_of(line, server) for line, _ in documented_commands()[2:])
        assert good == '{"sum": 6.0}'
        assert '"loc":["body","row"],"msg":"could not convert string to float' in bad
        assert '"error":"invalid_input"' in bad
        assert server.stop() == 0
