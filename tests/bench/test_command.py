"""``penstock bench`` on the command line."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli import app
from tests.bench.server import Server, answer, serving

SHORT = ("--duration", "300ms", "--warm-up", "100ms")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ("bench", *arguments))


def test_the_table_has_a_row_for_each_step_and_explains_its_columns():
    with serving() as server:
        done = bench(server.url("/x"), "--data", "{}", "-c", "1,2", *SHORT)
    assert done.exit_code == 0, done.output
    heading, columns, *rows = done.stdout.splitlines()
    assert heading == f"{server.url('/x')}: closed loop, 0.3 s a step after 0.1 s of warm-up"
    assert columns.split()[:5] == ["in", "flight", "answers/s", "p50", "ms"]
    steps = [row.split() for row in rows if len(row.split()) == 8 and row.split()[0].isdigit()]
    assert [(row[0], row[-1]) for row in steps] == [("1", "0"), ("2", "0")]
    assert "not corrected for coordinated omission" in done.stdout
    assert f"{server.url('')} has no status: HTTP 404" in done.stdout
    assert done.stderr == ""


def test_csv_and_json_files_have_the_values_of_the_table(tmp_path: Path):
    out = [tmp_path / f"out.{suffix}" for suffix in ("csv", "json")]
    with serving() as server:
        files = [text for file in out for text in ("-o", str(file))]
        done = bench(server.url(), "--data", "{}", "--rate", "50,100", *SHORT, *files)
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(out[0].read_text().splitlines()))
    assert [float(row["rate_wished"]) for row in rows] == [50, 100]
    found = json.loads(out[1].read_bytes())
    assert found["target"] == server.url()
    assert found["load"]["arrivals"] == "poisson"
    for row, step in zip(rows, found["steps"], strict=True):
        assert float(row["latency_p99"]) == step["latency"]["p99"] > 0
        assert int(row["good"]) == step["good"] == step["requests"]


@pytest.mark.parametrize(
    ("limits", "broken"),
    [
        (("--max-p99", "10s", "--max-errors", "0", "--min-rate", "10"), ""),
        (("--max-p99", "1us"), "limit: 1 in flight: p99 "),
        (("--min-rate", "1e9"), "limit: 1 in flight: "),
    ],
)
def test_the_exit_status_is_1_if_a_limit_is_exceeded(limits: tuple[str, ...], broken: str):
    with serving() as server:
        done = bench(server.url(), "--data", "{}", "-c", "1", *SHORT, *limits)
    assert done.exit_code == (1 if broken else 0)
    assert done.stderr.startswith(broken)
    assert bool(done.stderr) == bool(broken)


def test_errors_set_the_exit_status_only_with_max_errors():
    async def refuse_every_other(server: Server, head: bytes) -> bytes:
        return answer(status=503 if len(server.requests) % 2 == 0 else 200)

    with serving(refuse_every_other) as server:
        arguments = (server.url(), "--data", "{}", "-c", "1", *SHORT)
        assert bench(*arguments).exit_code == 0
        server.requests.clear()
        done = bench(*arguments, "--max-errors", "0")
    assert done.exit_code == 1
    assert "× HTTP 503" in done.stdout
    assert "errors > 0" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ftp://x/",), "is no target"),
        (("http://x:port/",), "is no URL"),
        (("http://127.0.0.1:9/", "--data", "nowhere.json"), "nowhere.json cannot be read"),
        (("http://127.0.0.1:9/", "--data", "{"), "the data is no JSON"),
        (("http://127.0.0.1:9/", "--data", "[]"), "the list of requests is empty"),
        (("http://127.0.0.1:9/", "x=1", "--data", "{}"), "give either data, items or a form"),
        (("http://127.0.0.1:9/", "-c", "0"), "write --concurrency"),
        (("http://127.0.0.1:9/", "-r", "10", "-c", "1,2"), "write --concurrency"),
        (("http://127.0.0.1:9/", "--duration", "soon"), "'soon' is no duration"),
        (("http://127.0.0.1:9/", "--duration", "0"), "duration and timeout are positive"),
        (("http://127.0.0.1:9/", "--max-p99", "x"), "'x' is no duration"),
        (("http://127.0.0.1:9/", "-H", "x"), "'x' is no header"),
        (("http://127.0.0.1:9/", "-H", "x: 1\r\ny: 2"), "is no header"),
        (("http://127.0.0.1:9/", "-o", "x.txt"), "the name must end in .csv"),
    ],
)
def test_invalid_arguments_are_errors_before_a_request_is_sent(
    arguments: tuple[str, ...], message: str
):
    done = bench(*arguments)
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stdout == ""


def test_pairs_become_a_request_of_the_pipeline_protocol(tmp_path: Path):
    (tmp_path / "page").write_bytes(b"abc")
    with serving() as server:
        done = bench(
            server.url("/uci/prediction"), "a=1", f"image=@{tmp_path / 'page'}", "-c", "1", *SHORT
        )
    assert done.exit_code == 0, done.output
    assert json.loads(server.requests[0][1]) == {"key": ["a", "image"], "value": ["1", "YWJj"]}


async def answer_slowly(server: Server, head: bytes) -> bytes:
    await asyncio.sleep(0.01)
    return answer()


@pytest.mark.real
@pytest.mark.parametrize("processes", ["1", "2"])
def test_ctrl_c_ends_the_run_with_the_report_so_far(processes: str):
    with serving(answer_slowly) as server:
        command = [sys.executable, "-m", "penstock", "bench", server.url(), "--data", "{}"]
        command += ["-c", "2", "--warm-up", "0", "--duration", "60s", "--processes", processes]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert running.stdout is not None
        heading = running.stdout.readline()  # written when the load begins
        while len(server.requests) < 50:
            pass
        running.send_signal(signal.SIGINT)
        out, errors = running.communicate(timeout=20)
    assert b"closed loop" in heading
    assert b"interrupted" in out
    assert errors == b""
    assert running.returncode == 0


@pytest.mark.real
def test_progress_is_shown_on_a_terminal():
    with serving() as server:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "penstock", "bench", server.url(), "--data", "{}"]
        done = subprocess.run(
            [*command, "-c", "1,2", *SHORT],
            stdout=subprocess.PIPE,
            stderr=theirs,
            timeout=30,
            check=True,
        )
        os.close(theirs)
        shown = ""
        with suppress(OSError):  # the end of a terminal
            while piece := os.read(ours, 1 << 16):
                shown += piece.decode()
        os.close(ours)
    assert "step 1 of 2 [" in shown
    assert "step 2 of 2 [" in shown
    assert shown.endswith("\r\x1b[K")
    assert b"step" not in done.stdout.partition(b"\n")[2]
