"""HTTP/1.1 load by wrk, which needs far less CPU than a generator in Python.

wrk checks statuses only, so one answer to each body is checked here first, and the size of all
answers is compared with that of the same number of right ones.

    python -m benchmarks.load_wrk --port 8000 --path /echo --body request.json --connections 32
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.load import SERVER_OPTIONS, CpuClock, Plan, Report, options_of, plan_of

SCRIPT = Path(__file__).with_suffix(".lua")
ERRORS = ("connect", "read", "write", "status", "timeout")
JSON = "application/json"
_OF_A_CHUNK = 8
"""Most bytes that a chunk of less than 64 KiB has besides its content."""
_DIGITS = 0.1
"""Part by which an answer's size may differ where it need not be equal byte by byte: numbers of
texts have more or fewer digits."""
_LATEST = 10
"""Seconds after which an answer is a fault."""
START_SECONDS = 30.0
"""Limit of a run's time in addition to the measured time."""


class WrkFailed(Exception):
    """wrk failed, or its output cannot be parsed."""


def load_wrk(
    *,
    port: int,
    path: str,
    body: Path,
    expected: bytes | None,
    connections: int,
    heads: str,
    plan: Plan,
    kind: str = JSON,
    bearer: str | None = None,
) -> Report:
    """Load a server on 127.0.0.1.

    Args:
        body: a file, or a folder of files that are sent in turn.
        expected: the right answer to a single body; None: answers may differ.

    Raises:
        WrkFailed: the first answer is wrong, or wrk failed.
    """
    bodies = sorted(body.iterdir()) if body.is_dir() else [body]
    weights = [
        weight_of_answer(port, path, each.read_bytes(), expected, kind, bearer) for each in bodies
    ]
    least, most = min(low for low, _ in weights), max(high for _, high in weights)
    if expected is None:
        least, most = round(least * (1 - _DIGITS)), round(most * (1 + _DIGITS))
    server = CpuClock(plan.server_pid)
    for seconds in (plan.warmup_seconds, plan.seconds):
        before, loop_before, own_before = server.seconds(), server.loop_seconds(), _children_cpu()
        counts = _run(port, path, bodies, connections, heads, seconds, kind, bearer)
        server_cpu_s, own_cpu_s = server.seconds() - before, _children_cpu() - own_before
        loop_cpu_s = server.loop_seconds() - loop_before
    faults = [f"{name} errors: {counts[name]}" for name in ERRORS if counts[name]]
    answers, seconds = int(counts["requests"]), counts["seconds"]
    # Answers in flight at the end may be counted on one side only.
    if not (answers - connections) * least <= counts["bytes"] <= (answers + connections) * most:
        faults.append(f"{answers} answers weigh {counts['bytes']} bytes, not {answers * least}")
    if not answers:
        faults.append("no right answer within the measured time")
    return Report(
        answers=answers,
        seconds=seconds,
        p50_us=counts["p50_us"],
        p99_us=counts["p99_us"],
        generator=own_cpu_s / seconds,
        server_cpu_s=server_cpu_s,
        loop_cpu_s=loop_cpu_s,
        fault_count=len(faults),
        faults=tuple(faults),
    )


def weight_of_answer(
    port: int,
    path: str,
    body: bytes,
    expected: bytes | None,
    kind: str = JSON,
    bearer: str | None = None,
) -> tuple[int, int]:
    """Send one request and check the answer; returns the least and the most bytes of such answers,
    with their head: those of lines may be sent in any number of chunks, at most one a line.

    Raises:
        WrkFailed: it is wrong.
    """
    connection = HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
    try:
        connection.request("POST", path, body, fields_of(kind, bearer))
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    if response.status != 200 or (expected is not None and answer != expected):
        raise WrkFailed(f"status {response.status}, body {answer[:200]!r}")
    lines = [f"HTTP/1.1 {response.status} {response.reason}"]
    lines += [f"{name}: {value}" for name, value in response.getheaders()]
    head = sum(len(line) + 2 for line in lines) + 2
    weight = head + len(answer)
    if response.getheader("transfer-encoding") == "chunked":
        return weight, weight + _OF_A_CHUNK * (answer.count(b"\n") + 2)
    return weight, weight


def fields_of(kind: str, bearer: str | None) -> dict[str, str]:
    """The header fields of a request with a body of this media type."""
    return {"Content-Type": kind, **({"Authorization": f"Bearer {bearer}"} if bearer else {})}


def _run(
    port: int,
    path: str,
    bodies: list[Path],
    connections: int,
    heads: str,
    seconds: float,
    kind: str,
    bearer: str | None,
) -> dict[str, float]:
    whole = max(1, round(seconds))  # wrk takes whole seconds only
    command = ["wrk", "--threads=1", f"--connections={connections}", f"--duration={whole}s"]
    command += [f"--timeout={_LATEST}s"]
    command += [
        f"--script={SCRIPT}",
        f"http://127.0.0.1:{port}{path}",
        "--",
        ",".join(map(str, bodies)),
        heads,
        kind,
        *([bearer] if bearer else []),
    ]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=whole + START_SECONDS,
            check=True,
            env={name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        )
        found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    except FileNotFoundError as error:
        raise WrkFailed("wrk is not installed: make peers") from error
    except subprocess.CalledProcessError as error:
        raise WrkFailed(f"wrk ended with {error.returncode}: {error.stderr[-2000:]}") from error
    except (IndexError, ValueError) as error:
        raise WrkFailed(f"cannot read what wrk printed: {done.stdout[-2000:]}") from error
    return found


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Exit status 0 means that no fault was found."""
    more: tuple[tuple[str, dict[str, object]], ...] = (
        ("--path", {"required": True}),
        ("--kind", {"default": JSON}),
        ("--bearer", {"help": "a key or token, sent with each request"}),
    )
    options = options_of("benchmarks.load_wrk", *SERVER_OPTIONS, *more)
    expected = options.expect.read_bytes() if options.expect is not None else None
    return load_wrk(
        port=options.port,
        path=options.path,
        body=options.body.resolve(),
        expected=expected,
        connections=options.connections,
        heads=options.heads,
        plan=plan_of(options),
        kind=options.kind,
        bearer=options.bearer,
    ).print()


if __name__ == "__main__":
    sys.exit(main())
