"""``penstock plan`` on the command line, with a real service."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from penstock.cli import app
from tests.service.scripts import NAME, script
from tests.services.process import ServiceProcess, running

pytestmark = pytest.mark.real

HOOKS = """
def process(self, feed_batch, typical_logid):
    import time
    time.sleep(0.01)
    return feed_batch[0]
"""
SHORT = ("--measuring", "1s")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with running(script(tmp_path_factory.mktemp("service"), HOOKS)) as server:
        yield server


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(app, ("plan", *arguments))


def url(service: ServiceProcess) -> str:
    return f"{service.http_url}/{NAME}/prediction"


@pytest.mark.alone
def test_plans_are_made_from_a_measuring_run_and_from_its_file(
    service: ServiceProcess, tmp_path: Path
) -> None:
    kept = tmp_path / "costs.json"
    done = plan(url(service), "x=1", *SHORT, "--qps", "120", "-o", str(kept))
    assert done.exit_code == 0, done.output
    for part in ("bottleneck: the workers of op work", "+    concurrency: 2", "is more than the"):
        assert part in done.stdout
    assert "measuring with 1 in flight for 1 s" in done.stderr
    done = plan(str(kept), "--qps", "150", "--set", "work.concurrency=3", "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    (op,) = found["costs"]["ops"]
    assert op["workers"] == 3
    assert op["place"] == "thread"
    assert 0.010 < op["wait"]["each"] < 0.02
    assert 150 < found["throughput"]["rate"] < 300
    assert found["at_rate"]["p95"] > 0.010
    assert "-    concurrency: 1" in found["diff"]
    assert json.loads(kept.read_text())["traceEvents"]


@pytest.mark.alone
def test_a_plan_is_compared_with_measurements(service: ServiceProcess) -> None:
    done = plan(
        url(service), "x=1", *SHORT, "--qps", "30", "--verify", "--duration", "4s", "--json"
    )
    found = json.loads(done.stdout)
    verified = {each["what"]: each for each in found["verified"]}
    assert done.exit_code == (0 if all(each["kept"] for each in verified.values()) else 1)
    assert verified["30/s: answers/s"]["predicted"] <= 30
    assert verified["8 in flight: answers/s"]["predicted"] == pytest.approx(95, rel=0.2)
    assert all(each["measured"] > 0 for each in verified.values())


APP = """
import time
from penstock import App

app = App("slow")

@app.route("/slow", batch=2)
def slow(x: list[int]) -> list[int]:
    time.sleep(0.01)
    return x

@app.route("/stuck")
def stuck(x: int) -> int:
    time.sleep(3)
    return x
"""


@pytest.mark.alone
def test_a_plan_of_routes_is_in_the_words_of_routes(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(APP)
    with running(path, command=(sys.executable, "-m", "penstock", "run")) as server:
        done = plan(
            f"{server.http_url}/slow", "x:=1", *SHORT, "--qps", "1", "--set", "slow.workers=2"
        )
        assert done.exit_code == 0, done.output
        assert "-route('/slow'): workers=1\n+route('/slow'): workers=2" in done.stdout
        words = "2 rows cost|known for one size only|not known yet"
        assert re.search(rf"^batches of \S*slow: ({words})", done.stdout, re.M), done.stdout
        assert "more workers, batches (inputs of the same shapes)" in done.stdout
        assert "concurrency" not in done.stdout.replace("op_concurrency", "")
        done = plan(f"{server.http_url}/stuck", "x:=1", "--measuring", "100ms")
        assert (done.exit_code, "no request ended within 0.1 s" in done.stderr) == (1, True)


def test_a_plan_with_other_settings_than_the_services_is_not_verified(
    service: ServiceProcess,
) -> None:
    done = plan(url(service), "x=1", *SHORT, "--set", "work.concurrency=2", "--verify")
    assert done.exit_code == 1
    assert "the service has 1 workers of work, the plan 2: start it with" in done.stderr


def test_an_op_that_the_service_lacks_is_refused_before_the_measuring_run(
    service: ServiceProcess,
) -> None:
    address = service.http_url.removeprefix("http://")
    for source in ((url(service), "x=1"), (address,)):
        done = plan(*source, "--set", "job.concurrency=2")
        assert done.exit_code == 1
        assert "job.concurrency cannot be planned; of the ops work:" in done.stderr
        assert "measuring" not in done.stderr
        assert "watching" not in done.stderr


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_a_recording_without_requests_gives_no_plan(service: ServiceProcess, scheme: str) -> None:
    done = plan(scheme + service.http_url.removeprefix("http://"), "--measuring", "200ms")
    assert done.exit_code == 1
    assert "error: there were no requests while it was recorded" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("http://127.0.0.1:9/", "-d", "{}"), "the status cannot be read"),
        (("nowhere.json",), "nowhere.json: no such file"),
        (("127.0.0.1:9",), "the status cannot be read"),
        (("http://127.0.0.1:9/", "--costs", "nowhere.json"), "nowhere.json cannot be read"),
        (("http://127.0.0.1:9/", "-c", "x"), "write --concurrency 1,4,16"),
        (("http://127.0.0.1:9/", "--measuring", "soon"), "'soon' is no duration"),
    ],
)
def test_invalid_arguments_are_errors(arguments: tuple[str, ...], message: str) -> None:
    done = plan(*arguments)
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ") or "error: " in done.stderr
    assert message in done.stderr
    assert done.stdout == ""
