import dataclasses
from pathlib import Path

import pytest

from benchmarks import processes
from benchmarks.__main__ import chosen
from benchmarks.load import Report
from benchmarks.processes import Server, measure_server
from benchmarks.scenario import Load


class Listening(Server):
    """A server that somebody else has started."""

    def __init__(self) -> None:
        self.http_port, self.grpc_port = 8001, 8002

    @property
    def pid(self) -> int:
        return 7


@pytest.mark.parametrize(
    ("protocol", "programs", "generator"),
    [
        ("http", True, "load_wrk"),
        ("grpc", True, "load_h2load"),
        ("http", False, "load_http"),
        ("grpc", False, "load_grpc"),
    ],
)
def test_a_scenario_says_whether_programs_make_its_load(
    monkeypatch: pytest.MonkeyPatch, protocol: str, programs: bool, generator: str
) -> None:
    commands: list[list[str]] = []

    def note(command: list[str], seconds: float) -> Report | None:
        commands.append(command)
        return None

    monkeypatch.setattr(processes, "run_generator", note)
    (echo,) = chosen([f"{protocol}-echo"])
    scenario = dataclasses.replace(echo, programs=programs)
    load = Load(protocol=protocol, connections=3, streams=2)
    files = (Path("body"), Path("expected"))
    measure_server(Listening(), load, 1, files, scenario, seconds=1.0)
    (command,) = commands
    assert f"benchmarks.{generator}" in command
    told = dict(zip(command[3::2], command[4::2], strict=True))
    assert told["--connections"] == "3"
    assert told["--expect"] == "expected"
    assert told["--port"] == ("8001" if protocol == "http" else "8002")
    assert told.get("--streams") == (None if protocol == "http" else "2")
