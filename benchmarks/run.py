"""One scenario from start to rows: servers up, answers verified, rounds, ratios."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.load import Report
from benchmarks.models import model_folder
from benchmarks.processes import (
    BenchmarkError,
    Server,
    ask,
    measure_client,
    measure_loop,
    measure_server,
    two_cores,
)
from benchmarks.results import Row
from benchmarks.rounds import summarise, turn_order
from benchmarks.scenario import Contender, Load, Scenario

Tick = Callable[[str], None]


class ScenarioRun:
    """Runs one scenario. ``results`` holds models, bodies, expected answers and servers' logs."""

    def __init__(self, scenario: Scenario, results: Path, *, rounds: int, seconds: float) -> None:
        self._scenario = scenario
        self._models = results / "models"
        self._folder = results / "run" / scenario.name
        self._rounds = rounds
        self._seconds = seconds * scenario.patience
        self._server_core, self._load_core = two_cores()
        self._servers: dict[str, Server] = {}
        self._expected: dict[tuple[str, str], Path | None] = {}
        self._failures: dict[str, str] = {}

    @property
    def measurements(self) -> int:
        """How many single measurements there are, for a progress bar."""
        contenders = 1 + len(self._scenario.ours)
        return len(self._scenario.loads) * contenders * self._rounds

    def run(self, tick: Tick) -> list[Row]:
        """Measure everything; ``tick`` is called after each measurement with what it was."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._body.write_bytes(self._scenario.body())
        rows: list[Row] = []
        with ExitStack() as stack:
            for contender in self._contenders():
                self._prepare(contender, stack)
            for load in self._scenario.loads:
                rows += self._rows_of(load, self._measure(load, tick))
        return rows

    @property
    def _body(self) -> Path:
        return self._folder / "body"

    def _contenders(self) -> list[Contender]:
        return [self._scenario.floor, *self._scenario.ours]

    def _folder_of(self, contender: Contender) -> Path:
        return self._folder / contender.name.replace(" ", "").replace(",", "-")

    def _prepare(self, contender: Contender, stack: ExitStack) -> None:
        """Start it and verify its first answer; a failure is kept and spares it the rounds."""
        for model in contender.models:
            model_folder(model, self._models)
        if contender.server is None:
            return
        folder = self._folder_of(contender)
        server = Server(contender, self._server_core, folder, self._models)
        stack.enter_context(server)
        try:
            server.wait_until_ready()
            for protocol in {load.protocol for load in self._scenario.loads}:
                answer = ask(server, self._scenario, protocol)
                if not self._scenario.right(answer, self._models):
                    raise BenchmarkError(f"wrong answer over {protocol}: {answer[:300]!r}")
                expected = folder / f"expected.{protocol}"
                expected.write_bytes(answer)
                self._expected[contender.name, protocol] = expected if contender.exact else None
        except BenchmarkError as error:
            self._failures[contender.name] = str(error)
        self._servers[contender.name] = server

    def _measure(self, load: Load, tick: Tick) -> dict[str, list[Report]]:
        reports: dict[str, list[Report]] = {c.name: [] for c in self._contenders()}
        for number in range(self._rounds):
            for contender in turn_order(self._contenders(), number):
                if contender.name not in self._failures:
                    try:
                        reports[contender.name].append(self._measure_once(contender, load))
                    except BenchmarkError as error:
                        self._failures[contender.name] = f"{load.label}: {error}"
                tick(f"{self._scenario.name} {load.label}")
        return reports

    def _measure_once(self, contender: Contender, load: Load) -> Report:
        if contender.server is None:
            return measure_loop(contender, self._server_core, self._models, seconds=self._seconds)
        server = self._servers[contender.name]
        if contender.client is not None:
            return measure_client(server, self._load_core, seconds=self._seconds)
        files = (self._body, self._expected[contender.name, load.protocol])
        return measure_server(
            server, load, self._load_core, files, self._scenario, seconds=self._seconds
        )

    def _rows_of(self, load: Load, reports: dict[str, list[Report]]) -> list[Row]:
        floor = self._scenario.floor
        rows = []
        for contender in self._contenders():
            failure = self._failures.get(contender.name) or self._failures.get(floor.name)
            summary = None
            if failure is None:
                cores = len(os.sched_getaffinity(0)) if self._scenario.scales else None
                summary = summarise(reports[contender.name], reports[floor.name], cores)
            rows.append(
                Row(
                    scenario=self._scenario.name,
                    title=self._scenario.title,
                    load=load.label,
                    contender=contender.name,
                    is_floor=contender is floor,
                    target=self._scenario.targets.get((contender.name, load.label)),
                    summary=summary,
                    failure=failure,
                )
            )
        return rows
