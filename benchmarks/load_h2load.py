"""gRPC load by h2load: the options and the report of ``benchmarks.load_grpc``, for less CPU.

h2load sees HTTP statuses, not those of gRPC; with ``--expect`` the weight of all answers is
compared as well. Latencies come from its log. Without h2load, and for ``--count``, our own
generator runs.

    python -m benchmarks.load_h2load --port 9000 --body request.bin --connections 8 --streams 4
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

import uvloop

from benchmarks import load_grpc
from benchmarks.load import MANY, Plan, Report, percentile_us, told
from benchmarks.load_grpc import INFERENCE, grpc_message
from benchmarks.load_programs import Measured, ProgramFailed, run_program, weight_fault

_REQUESTS = re.compile(
    r"^requests: .* (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout$",
    re.MULTILINE,
)
_CODES = re.compile(r"^status codes: \d+ 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx$", re.MULTILINE)
_DATA = re.compile(r"^traffic: .* \((\d+)\) data$", re.MULTILINE)


def load_h2load(
    *,
    port: int,
    message: bytes,
    expected: bytes | None,
    connections: int,
    streams: int,
    plan: Plan,
    path: str = INFERENCE,
) -> Report:
    """Load a server on 127.0.0.1; messages come without gRPC's prefix.

    Raises:
        ProgramFailed: h2load did not run to its end.
    """
    with tempfile.TemporaryDirectory(prefix="h2load-") as folder:
        body, log = Path(folder, "body"), Path(folder, "log")
        body.write_bytes(grpc_message(message))
        command = ["h2load", "--threads=1", f"--data={body}"]
        command += [f"--clients={connections}", f"--max-concurrent-streams={streams}"]
        command += ["--header=content-type: application/grpc", "--header=te: trailers"]
        url = f"http://127.0.0.1:{port}{path}"
        if plan.warmup_seconds > 0:
            warmup = plan.warmup_seconds
            run_program(
                [*command, f"--duration={round(warmup * 1000)}ms", url],
                seconds=warmup,
                server_pid=plan.server_pid,
            )
        command += [f"--log-file={log}", f"--duration={round(plan.seconds * 1000)}ms", url]
        measured = run_program(command, seconds=plan.seconds, server_pid=plan.server_pid)
        right = None if expected is None else len(grpc_message(expected))
        return report_of(
            measured, log.read_text(), plan.seconds, right=right, in_flight=connections * streams
        )


def report_of(
    measured: Measured, log: str, seconds: float, *, right: int | None, in_flight: int
) -> Report:
    """The report from what h2load printed and logged.

    Args:
        measured: its run.
        log: a line for each answer: begin, status and latency, both times in microseconds.
        seconds: how long it was told to load.
        right: bytes of a right answer's body, if it is known.
        in_flight: how many requests were under way at once.

    Raises:
        ProgramFailed: its output is not what this knows.
    """
    requests, codes = _REQUESTS.search(measured.text), _CODES.search(measured.text)
    data = _DATA.search(measured.text)
    if requests is None or codes is None or data is None:
        raise ProgramFailed(f"cannot read what h2load printed: {measured.text[-2000:]}")
    answered, *bad = map(int, requests.groups())
    fault_count = sum(bad) + sum(map(int, codes.groups()))
    faults = [f"h2load: {requests[0]}; {codes[0]}"] if fault_count else []
    if right is not None:
        wrong = weight_fault(int(data[1]), answered, right, in_flight)
        faults += [wrong] if wrong else []
        fault_count += wrong is not None
    if not answered:
        faults.append("no right answer within the measured time")
        fault_count += 1
    lines = (line.split("\t") for line in log.splitlines())
    ordered = sorted(int(line[2]) * 1000 for line in lines if line[1] == "200")
    return Report(
        requests=answered,
        seconds=seconds,
        rps=answered / seconds,
        p50_us=percentile_us(ordered, 0.50),
        p99_us=percentile_us(ordered, 0.99),
        client_cpu=measured.client_cpu_s / seconds,
        server_cpu_s=measured.server_cpu_s,
        fault_count=fault_count,
        faults=faults,
    )


def main() -> int:
    """Exit status 0 means that no fault was found."""
    arguments = load_grpc.arguments_of("benchmarks.load_h2load")
    asked = load_grpc.asked(arguments)
    if shutil.which("h2load") is None or arguments.count != MANY:
        return told(uvloop.run(load_grpc.load_grpc(**asked)))
    return told(load_h2load(**asked))


if __name__ == "__main__":
    sys.exit(main())
