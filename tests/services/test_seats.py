"""A class with seats, asked by real clients over HTTP."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.observe.status import shown
from tests.service.scripts import until
from tests.services.process import KEPT, ServiceProcess, running
from tests.services.test_streams import EVENTS, LIST, events

pytestmark = pytest.mark.real

SCRIPT = Path(__file__).with_name("seats.py")


@dataclass(frozen=True)
class Seats:
    """The running service, a client of it, and the folder of its log."""

    server: ServiceProcess
    client: httpx.Client
    folder: Path
    executor: str

    def lines(self, *words: str) -> list[list[str]]:
        """The lines of the log that have these words."""
        lines = [each.split() for each in (self.folder / "log").read_text().splitlines()]
        return [each for each in lines if {*words} <= {*each}]

    def steps(self, key: str) -> int:
        """The number of steps in which a request has run."""
        return len(self.lines("step", key))

    def count(self, key: str, **more: Any) -> httpx.Response:
        return self.client.post("/count", json={"key": key, **more}, headers={"accept": LIST})

    def begin(self, key: str, **more: Any) -> tuple[HTTPConnection, HTTPResponse]:
        """A request whose first piece has arrived."""
        connection = HTTPConnection("127.0.0.1", self.server.http_port, timeout=30)
        connection.request("POST", "/count", json.dumps({"key": key, **more}))
        response = connection.getresponse()
        assert response.status == 200
        assert response.readline().startswith(b"data: ")
        assert response.readline() == b"\n"
        return connection, response

    def wait_for(self, right: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not right():
            assert time.monotonic() < deadline
            self.client.get("/livez").raise_for_status()


@pytest.fixture(scope="module", params=["thread", "process"])
def seats(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seats]:
    executor, folder = request.param, tmp_path_factory.mktemp("seats")
    environment = {"EXECUTOR": executor, "FOLDER": str(folder)}
    with (
        running(SCRIPT, environment=environment) as server,
        httpx.Client(
            base_url=server.http_url, timeout=30.0, limits=httpx.Limits(keepalive_expiry=KEPT)
        ) as client,
    ):
        yield Seats(server, client, folder, executor)


def close(connection: HTTPConnection, response: HTTPResponse) -> None:
    response.close()
    connection.close()


def ended_early(response: HTTPResponse) -> str:
    """The text of an answer that ends in the middle."""
    with pytest.raises(IncompleteRead) as incomplete:
        response.read()
    partial: bytes = incomplete.value.partial
    return partial.decode()


def test_pieces_are_events_or_a_list(seats: Seats) -> None:
    answer = seats.client.post("/count", json={"key": "events", "upto": 2})
    assert answer.headers["content-type"] == EVENTS
    assert events(answer.text) == [("message", "é1"), ("message", "é2")]
    assert seats.count("list", upto=3).json() == ["é1", "é2", "é3"]


def test_sixteen_run_in_one_step_and_others_take_the_seats_of_those_that_end(
    seats: Seats,
) -> None:
    keys = [f"many-{n}" for n in range(40)]
    with ThreadPoolExecutor(40) as callers:
        answers = list(callers.map(lambda key: seats.count(key, upto=400), keys))
    assert all(each.json() == [f"é{n + 1}" for n in range(400)] for each in answers)
    steps = [len(each) - 1 for each in seats.lines("step") if each[1].startswith("many-")]
    assert max(steps) == 16
    # Each takes 400 steps, so 40 in seats take three times as many, not forty times.
    assert len(steps) < 10 * 400


def test_requests_are_refused_as_on_other_routes_before_anything_is_sent(seats: Seats) -> None:
    assert seats.count("refused", upto="x").status_code == 422
    answer = seats.count("nobody", fault="join")
    assert answer.status_code == 404
    assert answer.json()["message"] == "there is no nobody"


def test_an_error_after_pieces_ends_its_own_answer_only(seats: Seats) -> None:
    other = seats.begin("other", upto=100_000_000)
    for fault, code in {"error": "im_a_teapot", "type": "hook_failed"}.items():
        connection, response = seats.begin(f"fails-{fault}", fault=fault)
        (kind, error) = events(ended_early(response))[-1]
        assert (kind, error["error"]) == ("error", code)
        connection.close()
    before = seats.steps("other")
    seats.wait_for(lambda: seats.steps("other") > before)
    close(*other)


@pytest.mark.parametrize("fault", ["raises", "number"])
def test_a_step_that_fails_is_told_to_all_its_requests_and_the_next_one_runs(
    seats: Seats, fault: str
) -> None:
    other, others = seats.begin(f"with-{fault}", upto=100_000_000)
    connection, response = seats.begin(f"all-{fault}", fault=fault)
    for each in (response, others):
        (kind, error) = events(ended_early(each))[-1]
        assert (kind, error["error"]) == ("error", "hook_failed")
    other.close()
    connection.close()
    if fault == "number":
        until(lambda: "step must return a list of" in seats.server.log(), "the reason", 10)
    assert seats.count("after", upto=2).json() == ["é1", "é2"]
    for key in (f"with-{fault}", f"all-{fault}"):
        assert len(seats.lines("leave", key)) == 1


def test_a_caller_that_disconnects_leaves_and_runs_in_no_further_step(seats: Seats) -> None:
    connection, response = seats.begin("leaves", upto=100_000_000)
    close(connection, response)
    seats.wait_for(lambda: bool(seats.lines("leave", "leaves")))
    before = seats.steps("leaves")
    seats.count("later", upto=3)
    assert seats.steps("leaves") == before
    assert len(seats.lines("leave", "leaves")) == 1


def test_a_thousand_callers_that_disconnect_give_their_seats_back(seats: Seats) -> None:
    def leave(n: int) -> None:
        close(*seats.begin(f"gone-{n}", upto=100_000_000))

    with ThreadPoolExecutor(16) as callers:
        list(callers.map(leave, range(1000)))
    seats.wait_for(
        lambda: len([x for x in seats.lines("leave") if x[1].startswith("gone-")]) == 1000
    )
    assert len([x for x in seats.lines("join") if x[1].startswith("gone-")]) == 1000
    assert seats.count("after the thousand", upto=1).json() == ["é1"]


def test_a_reader_that_stops_is_left_out_and_another_is_not_held_up(seats: Seats) -> None:
    slow = seats.begin("slow", upto=100_000_000)
    seen = -1

    def stands() -> bool:
        nonlocal seen
        before, seen = seen, seats.steps("slow")
        seats.count("quick", upto=10).raise_for_status()
        return before == seen

    seats.wait_for(stands)
    connection, response = slow
    for _ in range(seen * 2):
        assert response.readline()
    seats.wait_for(lambda: seats.steps("slow") > seen)
    close(connection, response)
    seats.wait_for(lambda: len(seats.lines("leave", "slow")) == 1)


def test_the_last_op_of_a_graph_may_have_seats(seats: Seats) -> None:
    answer = seats.client.post("/letters", json={"word": " ab "})
    assert answer.status_code == 200
    if answer.headers["content-type"] == EVENTS:
        assert [each for _, each in events(answer.text)] == [{"letter": "a"}, {"letter": "b"}]
    else:
        assert answer.json() == {"letter": ["a", "b"]}


def test_the_description_has_the_parameters_of_join_and_the_pieces_of_step(seats: Seats) -> None:
    document = seats.client.get("/openapi.json").json()
    operation = document["paths"]["/count"]["post"]
    content = operation["responses"]["200"]["content"]
    assert content[LIST]["schema"] == {"type": "array", "items": {"type": "string"}}
    request = operation["requestBody"]["content"]["application/json"]["schema"]
    (name,) = [request["$ref"].rpartition("/")[2]]
    assert [*document["components"]["schemas"][name]["properties"]] == ["key", "upto", "fault"]


def test_the_metrics_and_the_status_have_seats_and_steps(seats: Seats) -> None:
    def of_the_op() -> tuple[dict[str, Any], dict[str, float]]:
        text = seats.client.get("/metrics").raise_for_status().text
        lines = [each.rpartition(" ") for each in text.splitlines() if 'op="Count"' in each]
        values = {line.partition("{")[0]: float(value) for line, _, value in lines}
        status = seats.client.get("/status").json()
        (op,) = next(graph["ops"] for graph in status["graphs"] if graph["name"] == "Count")
        return op, values

    seats.wait_for(lambda: of_the_op()[0]["seats"]["taken"] == 0)
    before, _ = of_the_op()
    seats.count("counted", upto=7)
    op, values = of_the_op()
    assert op["steps"]["count"] - before["steps"]["count"] == 7
    assert op["steps"]["running"]["sum"] - before["steps"]["running"]["sum"] == 7
    assert values["penstock_op_seats"] == 16
    assert values["penstock_step_running_count"] == op["steps"]["count"]
    assert values["penstock_step_running_sum"] == op["steps"]["running"]["sum"]
    assert values["penstock_step_seconds_count"] == op["steps"]["count"]
    assert values["penstock_step_seconds_sum"] >= 0.001 * op["steps"]["count"]
    taken = [seats.begin(f"seated-{n}", upto=100_000_000) for n in range(3)]
    assert of_the_op()[0]["seats"] == {"all": 16, "taken": 3}
    assert "3/16 seats" in shown(seats.client.get("/status").json())
    for each in taken:
        close(*each)


def test_the_start_line_shows_the_seats(seats: Seats) -> None:
    kind = "1 process" if seats.executor == "process" else "1 thread"
    assert f"{kind} x 16 seats" in seats.server.log()


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_drain_with_all_seats_taken_lets_them_end(executor: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    with (
        running(SCRIPT, environment={"EXECUTOR": executor, "FOLDER": str(tmp_path)}) as server,
        httpx.Client(
            base_url=server.http_url, timeout=30.0, limits=httpx.Limits(keepalive_expiry=KEPT)
        ) as client,
    ):
        seats = Seats(server, client, tmp_path, executor)
        taken = [seats.begin(f"taken-{n}", upto=400) for n in range(15)]
        taken.append(seats.begin("gate", upto=3, fault="gate"))
        server.send_signal(signal.SIGTERM)
        until(lambda: not server.is_ready(), "the begin of the drain")
        (tmp_path / "gate").write_bytes(b"")
        for connection, response in taken:
            response.read()  # to its end
            connection.close()
        assert server.wait_exit() == 0
    # How many of the others are still there depends on how quickly the last one came.
    beside = [len(each) - 2 for each in seats.lines("step", "gate")]
    assert len(beside) == 3
    assert all(1 <= each <= 15 for each in beside)
    joined = sorted(each[1] for each in seats.lines("join"))
    assert joined == sorted(each[1] for each in seats.lines("leave"))


@pytest.mark.parametrize("fault", ["dies", "dies in join"])
def test_a_worker_that_dies_is_told_to_all_its_requests_and_replaced(
    seats: Seats, fault: str
) -> None:
    if seats.executor == "thread":
        pytest.skip("a thread cannot end without its service")
    others = [seats.begin(f"with-{fault[-4:]}-{n}", upto=100_000_000) for n in range(3)]
    if fault == "dies":
        others.append(seats.begin("dies", fault=fault))
    else:  # nothing of its answer was sent
        assert seats.count("dies", fault=fault).json()["error"] == "worker_died"
    for connection, response in others:
        (kind, error) = events(ended_early(response))[-1]
        assert (kind, error["error"]) == ("error", "worker_died")
        connection.close()
    assert seats.count("next", upto=2).json() == ["é1", "é2"]
