"""HTTP/1.1 load by wrk: the options and the report of ``benchmarks.load_http``, for less CPU.

wrk sees statuses; one answer is read and judged here first, and the weight of all of them compared
with it. Without wrk, and for ``--count``, our own generator runs.

    python -m benchmarks.load_wrk --port 8000 --path /echo --body request.json --connections 32
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import sys
import tempfile
from pathlib import Path

from benchmarks import load_http
from benchmarks.load import MANY, Plan, Report, add_plan_arguments, expected_of, plan_of
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
) -> Report:
    """Load a server on 127.0.0.1.

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
            command += [f"http://127.0.0.1:{port}{path}", "--", file.name]
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
    """Print the report as one line of JSON; exit status 0 means that no fault was found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load_wrk")
    add_plan_arguments(parser)
    parser.add_argument("--path", required=True)
    arguments = parser.parse_args()
    if shutil.which("wrk") is None or arguments.count != MANY:
        return load_http.main()
    report = load_wrk(
        port=arguments.port,
        path=arguments.path,
        body=arguments.body.read_bytes(),
        expected=expected_of(arguments),
        connections=arguments.connections,
        plan=plan_of(arguments),
    )
    print(report.to_json(), flush=True)
    return 1 if report.fault_count else 0


if __name__ == "__main__":
    sys.exit(main())
