"""One scenario from start to rows: servers up, answers verified, rounds in turn, rows."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TypeVar

import grpc

from benchmarks.graphs import GRAPHS, Bare
from benchmarks.load import Report
from benchmarks.load_wrk import fields_of
from benchmarks.models import model_folder
from benchmarks.results import Row, summarise
from benchmarks.scenarios import Contender, Load, Scenario

ROOT = Path(__file__).parent.parent
START_SECONDS = 60.0
STOP_SECONDS = 10.0
GENERATOR_SECONDS = 150.0
"""Limit of a generator's time beyond the measured one: twice its own wait, and its start."""
JUDGED = 6
"""Answers of a graph that are compared with the bare models' before the measurements."""

T = TypeVar("T")


class BenchmarkError(Exception):
    """A measured program does not run or answers wrongly."""


def two_cores() -> tuple[int, int]:
    """A core for the servers and one for the generators.

    Raises:
        BenchmarkError: fewer than two cores are allowed to this process.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise BenchmarkError("needs two cores: one for the server, one for the load generator")
    return cores[0], cores[1]


def turn_order(contenders: Sequence[T], number: int) -> list[T]:
    """The order in round ``number``: forwards in even rounds, backwards in odd ones."""
    return list(contenders) if number % 2 == 0 else list(reversed(contenders))


def free_port() -> int:
    """A port of loopback without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Server:
    """One server process; use it as a context manager. ``folder`` is for its files and its log."""

    def __init__(
        self, contender: Contender, core: int, folder: Path, models: Sequence[Path] = ()
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.contender = contender
        self.ports = {"http": free_port(), "grpc": free_port()}
        self._log = folder / "server.log"
        command = [sys.executable, "-m", f"benchmarks.servers.{contender.server}"]
        command += ["--core", str(core), *contender.options]
        for protocol, port in self.ports.items():
            command += [f"--{protocol}-port", str(port)]
        for model in models:
            command += ["--model", str(model)]
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

    def wait_until_ready(self) -> None:
        """Return when the server reports that it is ready.

        Raises:
            BenchmarkError: it ended, or is not ready in time; with the end of its log.
        """
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            try:
                # Waiting for its end is the pause between two requests.
                self._process.wait(0.05)
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline:
                    continue
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
            raise BenchmarkError(f"{self.contender.server} did not start:\n{tail}")

    def _answers(self) -> bool:
        if self.contender.ready is None:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.ports["grpc"])) == 0
        try:
            connection = HTTPConnection("127.0.0.1", self.ports["http"], timeout=5.0)
            connection.request("GET", self.contender.ready)
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def ask(self, protocol: str, message: bytes, scenario: Scenario) -> bytes:
        """The body of one answer to a message of the scenario, by an independent client.

        Raises:
            BenchmarkError: there is none.
        """
        port = self.ports[protocol]
        try:
            if protocol == "http":
                return ask_http(port, scenario.path, message, scenario.kind, self.contender.bearer)
            return ask_grpc(port, scenario.method, message)
        except (OSError, HTTPException, grpc.RpcError) as error:
            raise BenchmarkError(f"{self.contender.server}: {error}") from error

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def ask_http(port: int, path: str, body: bytes, kind: str, bearer: str | None = None) -> bytes:
    """The body of one POST's answer, by the standard library's client."""
    connection = HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
    try:
        connection.request("POST", path, body, fields_of(kind, bearer))
        return connection.getresponse().read()
    finally:
        connection.close()


def ask_grpc(port: int, method: str, message: bytes) -> bytes:
    """The message of one call's answer, by the grpc package's client."""
    unlimited = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=unlimited) as channel:
        call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
        answer: bytes = call(message, timeout=START_SECONDS, wait_for_ready=True)
    return answer


class ScenarioRun:
    """Runs one scenario. ``results`` holds models, messages, expected answers and servers' logs."""

    def __init__(self, scenario: Scenario, results: Path, *, rounds: int, seconds: float) -> None:
        self._scenario = scenario
        self._contenders = (scenario.floor, *scenario.ours)
        self._models = results / "models"
        self._folder = results / "run" / scenario.name
        self._rounds = rounds
        self._seconds = seconds * scenario.seconds
        self._server_core, self._load_core = two_cores()
        self._servers: dict[str, Server] = {}
        self._failures: dict[str, str] = {}

    def run(self, tell: Callable[[str], None]) -> list[Row]:
        """Measure everything; ``tell`` is called with a text before each measurement."""
        messages = self._folder / "messages"
        messages.mkdir(parents=True, exist_ok=True)
        for number, message in enumerate(self._scenario.messages()):
            (messages / f"{number:03}").write_bytes(message)
        rows: list[Row] = []
        with ExitStack() as stack:
            for contender in self._contenders:
                tell(f"{self._scenario.name}: {contender.name} starts")
                self._start(contender, stack)
            for load in self._scenario.loads:
                reports: dict[str, list[Report]] = {each.name: [] for each in self._contenders}
                for number in range(self._rounds):
                    tell(f"{self._scenario.name}: {load.label}, round {number + 1}")
                    for contender in turn_order(self._contenders, number):
                        self._measure(contender, load, reports[contender.name])
                rows += self._rows(load, reports)
        return rows

    def _start(self, contender: Contender, stack: ExitStack) -> None:
        """Start it and check its first answers; after a failure it is left out of the rounds."""
        graph = self._scenario.graph
        names = GRAPHS[graph].models if graph is not None else self._scenario.models
        models = [model_folder(name, self._models) for name in names]
        if contender.server is None:
            return
        folder = self._folder / contender.name.replace(" ", "-")
        server = Server(contender, self._server_core, folder, models)
        stack.enter_context(server)
        self._servers[contender.name] = server
        try:
            server.wait_until_ready()
            for protocol in {load.protocol for load in self._scenario.loads}:
                self._judge(server, protocol, folder)
        except BenchmarkError as error:
            self._failures[contender.name] = str(error)

    def _judge(self, server: Server, protocol: str, folder: Path) -> None:
        messages, graph = self._scenario.messages(), self._scenario.graph
        answers = [server.ask(protocol, each, self._scenario) for each in messages[:JUDGED]]
        if graph is None:
            assert self._scenario.is_right is not None
            right = list(map(self._scenario.is_right, answers))
        else:
            expected = Bare(graph, self._models).answers()[:JUDGED]
            right = list(map(self._scenario.matches, answers, expected))
        if not all(right):
            wrong = answers[right.index(False)]
            raise BenchmarkError(f"wrong answer over {protocol}: {wrong[:300]!r}")
        (folder / f"expected.{protocol}").write_bytes(answers[0])

    def _measure(self, contender: Contender, load: Load, reports: list[Report]) -> None:
        if contender.name in self._failures:
            return
        try:
            reports.append(run_generator(self._command(contender, load), self._seconds))
        except BenchmarkError as error:
            self._failures[contender.name] = f"{load.label}: {error}"

    def _command(self, contender: Contender, load: Load) -> list[str]:
        """The command that measures the contender: a load generator, a client, or the bare loop."""
        common = ["--seconds", str(self._seconds), "--core"]
        if contender.server is None:
            graph = ["--graph", str(self._scenario.graph), "--models", str(self._models)]
            core = str(self._server_core)
            return ["benchmarks.graphs", *common, core, *graph, *contender.options]
        server = self._servers[contender.name]
        common += [str(self._load_core), "--port", str(server.ports[load.protocol])]
        if contender.client is not None:
            return ["benchmarks.client_calls", *common, "--client", contender.client]
        messages, folder = self._folder / "messages", self._folder
        common += ["--server-pid", str(server.pid), "--heads", load.heads]
        common += ["--connections", str(load.connections)]
        if self._scenario.exact:
            folder = self._folder / contender.name.replace(" ", "-")
            common += ["--expect", str(folder / f"expected.{load.protocol}")]
        if load.protocol == "http":
            common += ["--kind", self._scenario.kind, "--path", self._scenario.path]
            if contender.bearer is not None:
                common += ["--bearer", contender.bearer]
            return ["benchmarks.load_wrk", *common, "--body", str(messages)]
        common += ["--method", self._scenario.method, "--streams", str(load.streams)]
        return ["benchmarks.load_calls", *common, "--body", str(messages)]

    def _rows(self, load: Load, reports: dict[str, list[Report]]) -> list[Row]:
        floor = self._scenario.floor
        rows = []
        for contender in self._scenario.ours:
            failure = self._failures.get(contender.name) or self._failures.get(floor.name)
            summary = None
            if failure is None:
                summary = summarise(reports[contender.name], reports[floor.name])
            rows.append(
                Row(
                    scenario=self._scenario.name,
                    title=self._scenario.title,
                    load=load.label,
                    contender=contender.name,
                    target=self._scenario.targets.get((contender.name, load.label)),
                    summary=summary,
                    failure=failure,
                )
            )
        return rows


def run_generator(command: list[str], seconds: float) -> Report:
    """Run a module that measures, and read its report.

    Raises:
        BenchmarkError: it failed, or reports a fault.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=seconds + GENERATOR_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"{command[0]} did not end in {error.timeout:.0f} s") from error
    lines = done.stdout.splitlines()
    if not lines:
        raise BenchmarkError(f"{command[0]} failed:\n{done.stderr[-2000:]}")
    report = Report.read(lines[-1])
    if report.fault_count:
        raise BenchmarkError(f"{report.fault_count} faults, first: {'; '.join(report.faults)}")
    return report
