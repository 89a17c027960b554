"""HTTP/1.1 load by wrk: the options and the report of ``benchmarks.load_http``, for less CPU.

wrk sees statuses; one answer is read and judged here first, and the weight of all of them compared
with it. Without wrk, and for ``--count``, our own generator runs.

    python -m benchmarks.load_wrk --port 8000 --path /echo --body request.json --connections 32
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
import tempfile
from pathlib import Path

import uvloop

from benchmarks import load_http
from benchmarks.calls import HEADS
from benchmarks.load import MANY, Plan, Report, told
from benchmarks.load_http import check_body, length_of, request_bytes
from benchmarks.load_programs import Measured, ProgramFailed, run_program, weight_fault

SCRIPT = Path(__file__).with_suffix(".lua")
ERRORS = ("connect", "read", "write", "status", "timeout")


def load_wrk(
    *,
    port: int,
    path: str,
    body: bytes,
    expected: bytes | None,
    connections: int,
    plan: Plan,
    heads: str = "bare",
) -> Report:
    """Load a server on 127.0.0.1; ``heads`` is explained in ``load_wrk.lua``.

    Raises:
        BadResponse: the first answer is wrong.
        ProgramFailed: wrk did not run to its end.
    """
    right = probe(port, path, body, expected)
    with tempfile.NamedTemporaryFile(prefix="wrk-") as file:
        file.write(body)
        file.flush()

        def run(seconds: float) -> Measured:
            whole = max(1, round(seconds))  # wrk knows whole seconds only
            command = ["wrk", "--threads=1", f"--connections={connections}"]
            command += [f"--duration={whole}s", f"--script={SCRIPT}"]
            command += [f"http://127.0.0.1:{port}{path}", "--", file.name, heads]
            return run_program(command, seconds=whole, server_pid=plan.server_pid)

        if plan.warmup_seconds > 0:
            run(plan.warmup_seconds)
        return report_of(run(plan.seconds), right=right, in_flight=connections)


def probe(port: int, path: str, body: bytes, expected: bytes | None) -> int:
    """Ask once and judge the answer; gives its bytes with its head.

    Raises:
        BadResponse: it is wrong.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.sendall(request_bytes(port, path, body))
        found = b""
        while (end := found.find(b"\r\n\r\n") + 4) == 3 or len(found) < end + length_of(
            found[:end]
        ):
            piece = line.recv(65536)
            if not piece:
                raise load_http.BadResponse(f"the connection ended after {found[:200]!r}")
            found += piece
    check_body(found[end:], expected)
    return len(found)


def report_of(measured: Measured, *, right: int, in_flight: int) -> Report:
    """The report from what wrk printed; ``right`` is the bytes of one right answer.

    Raises:
        ProgramFailed: its output is not what this knows.
    """
    lines = [line for line in measured.text.splitlines() if line.startswith("{")]
    try:
        counts = json.loads(lines[-1])
        requests, seconds = counts["requests"], counts["seconds"]
        bad = {name: counts[name] for name in ERRORS if counts[name]}
    except (IndexError, KeyError, ValueError) as error:
        raise ProgramFailed(f"cannot read what wrk printed: {measured.text[-2000:]}") from error
    faults = [f"wrk: {bad}"] if bad else []
    fault_count = sum(bad.values())
    wrong = weight_fault(counts["bytes"], requests, right, in_flight)
    if wrong is not None:
        faults.append(wrong)
        fault_count += 1
    if not requests:
        faults.append("no right answer within the measured time")
        fault_count += 1
    return Report(
        requests=requests,
        seconds=seconds,
        rps=requests / seconds if seconds else 0.0,
        p50_us=counts["p50_us"],
        p99_us=counts["p99_us"],
        client_cpu=measured.client_cpu_s / seconds if seconds else 0.0,
        server_cpu_s=measured.server_cpu_s,
        fault_count=fault_count,
        faults=faults,
    )


def main() -> int:
    """Exit status 0 means that no fault was found."""
    parser = load_http.parser_of("benchmarks.load_wrk")
    parser.add_argument("--heads", choices=("bare", *HEADS), default="bare")
    arguments = parser.parse_args()
    asked = load_http.asked(arguments)
    if shutil.which("wrk") is None or arguments.count != MANY:
        return told(uvloop.run(load_http.load_http(**asked)))
    return told(load_wrk(**asked, heads=arguments.heads))


if __name__ == "__main__":
    sys.exit(main())
