"""Servers and load generators as processes, each on its own core of this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import grpc

from benchmarks.hop import HopCost
from benchmarks.load import Report
from benchmarks.load_grpc import INFERENCE
from benchmarks.models import model_folder
from benchmarks.scenario import Contender, Load, Scenario

ROOT = Path(__file__).parent.parent
START_SECONDS = 60.0
STOP_SECONDS = 10.0
GENERATORS = {"http": "load_http", "grpc": "load_grpc"}
PROGRAMS = {"http": "load_wrk", "grpc": "load_h2load"}
WITH_HEADS = {"http": "load_wrk", "grpc": "load_calls"}
GENERATOR_SECONDS = 150.0
"""Bound of one generator's run beyond its measured time: its own patience, twice, and a start."""


class BenchmarkError(Exception):
    """Something that was to be measured does not run or answers wrongly."""


def two_cores() -> tuple[int, int]:
    """A core for the servers and one for the generators.

    Raises:
        BenchmarkError: fewer than two cores are allowed to this process.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise BenchmarkError("needs two cores: one for the server, one for the load generator")
    return cores[0], cores[1]


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def is_ready(port: int) -> bool:
    """Whether the service says so."""
    connection = HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def ask_http(port: int, path: str, body: bytes) -> bytes:
    """The body of one POST's answer, by the standard library's client."""
    connection = HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise BenchmarkError(f"POST {path} answered {response.status}: {answer[:300]!r}")
    return answer


def ask_grpc(port: int, message: bytes) -> bytes:
    """The message of one call's answer, by the grpc package's client."""
    unlimited = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=unlimited) as channel:
        call = channel.unary_unary(INFERENCE, request_serializer=bytes, response_deserializer=bytes)
        answer: bytes = call(message, timeout=START_SECONDS, wait_for_ready=True)
    return answer


class Server:
    """One server process; use it as a context manager. ``folder`` is for its files and its log."""

    def __init__(self, contender: Contender, core: int, folder: Path, models: Path) -> None:
        assert contender.server is not None
        folder.mkdir(parents=True, exist_ok=True)
        self.contender = contender
        self.http_port = free_port()
        self.grpc_port = free_port()
        self._log = folder / "server.log"
        command = [sys.executable, "-m", f"benchmarks.servers.{contender.server}"]
        command += ["--core", str(core), *contender.options]
        command += ["--http-port", str(self.http_port), "--grpc-port", str(self.grpc_port)]
        for model in contender.models:
            command += ["--model", str(model_folder(model, models))]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def port(self, protocol: str) -> int:
        """Where it listens for ``http`` or ``grpc``."""
        return self.http_port if protocol == "http" else self.grpc_port

    def wait_until_ready(self) -> None:
        """Return once it says that it is ready.

        Raises:
            BenchmarkError: it ended, or is not ready in time; with the end of its log.
        """
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            try:
                # Waiting for its end is the pause between two questions.
                self._process.wait(0.05)
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline:
                    continue
            raise BenchmarkError(f"{self.contender.server} did not start:\n{self.log_tail()}")

    def _answers(self) -> bool:
        if "http" not in self.contender.protocols:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.grpc_port)) == 0
        connection = HTTPConnection("127.0.0.1", self.http_port, timeout=5.0)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def log_tail(self, lines: int = 15) -> str:
        """The last lines it wrote."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def ask(server: Server, scenario: Scenario, protocol: str) -> bytes:
    """The body of one answer to the scenario's request."""
    try:
        if protocol == "http":
            return ask_http(server.http_port, scenario.path, scenario.body())
        return ask_grpc(server.grpc_port, scenario.body())
    except (OSError, HTTPException, grpc.RpcError) as error:
        raise BenchmarkError(f"{server.contender.server}: {error}\n{server.log_tail()}") from error


def measure_server(
    server: Server,
    load: Load,
    core: int,
    files: tuple[Path, Path | None],
    scenario: Scenario,
    *,
    seconds: float,
) -> Report:
    """One run of a load generator on ``core``; ``files`` hold the body and the expected answer."""
    body, expected = files
    generator = (PROGRAMS if scenario.programs else GENERATORS)[load.protocol]
    if load.heads is not None:
        generator = WITH_HEADS[load.protocol]
    command = [sys.executable, "-m", f"benchmarks.{generator}", "--core", str(core)]
    command += ["--port", str(server.port(load.protocol)), "--server-pid", str(server.pid)]
    command += ["--connections", str(load.connections), "--seconds", str(seconds)]
    command += ["--body", str(body)]
    if load.heads is not None:
        command += ["--heads", load.heads]
    if expected is not None:
        command += ["--expect", str(expected)]
    if load.protocol == "http":
        command += ["--path", scenario.path]
    else:
        command += ["--streams", str(load.streams)]
    return run_generator(command, seconds)


def measure_client(server: Server, core: int, *, seconds: float) -> Report:
    """One run of the contender's client on ``core``, against its server."""
    client = server.contender.client
    assert client is not None
    command = [sys.executable, "-m", "benchmarks.client_calls", "--client", client]
    command += ["--core", str(core), "--port", str(server.grpc_port), "--seconds", str(seconds)]
    return run_generator(command, seconds)


def measure_loop(contender: Contender, core: int, models: Path, *, seconds: float) -> Report:
    """One run of the contender's loop; over models on ``core``, the servers' own, now idle."""
    command = [sys.executable, "-m", f"benchmarks.{contender.loop}", "--seconds", str(seconds)]
    command += contender.options
    if contender.models:
        command += ["--core", str(core), "--batch", str(contender.batch)]
    for model in contender.models:
        command += ["--model", str(model_folder(model, models))]
    return run_generator(command, seconds)


def measure_hop(seconds: float, rounds: int) -> list[HopCost]:
    """The cost of one hop through the engine, on the servers' core.

    Raises:
        BenchmarkError: it failed.
    """
    command = [sys.executable, "-m", "benchmarks.hop", "--json", "--core", str(two_cores()[0])]
    command += ["--seconds", str(seconds), "--rounds", str(rounds)]
    return [HopCost(**cost) for cost in json.loads(last_line(command, 12 * seconds * rounds))]


def run_generator(command: list[str], seconds: float) -> Report:
    """Run a generator to its end and read its report.

    Raises:
        BenchmarkError: it failed, or reports a fault.
    """
    report = Report.from_json(last_line(command, seconds))
    if report.fault_count:
        raise BenchmarkError(f"{report.fault_count} faults, first: {'; '.join(report.faults)}")
    return report


def last_line(command: list[str], seconds: float) -> str:
    """What a measuring process printed last; ``seconds`` is how long it was told to measure."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=seconds + GENERATOR_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"{command[2]} did not end in {error.timeout:.0f} s") from error
    lines = done.stdout.splitlines()
    if not lines:
        raise BenchmarkError(f"{command[2]} failed:\n{done.stderr[-2000:]}")
    return lines[-1]
