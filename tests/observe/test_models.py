"""``penstock models``: requests to a service, and what is printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.observe.models import progress, table

ROW = {"name": "m", "version": "3", "state": "READY", "reason": "", "default": True}
LOADING = {"name": "m", "version": "4", "state": "LOADING", "reason": "being made ready"}


class Service(ThreadingHTTPServer):
    """A service whose port for operators is another one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.told: list[Any] = []
        self.answer: tuple[int, Any] = (200, {})
        self.rows: list[dict[str, Any]] = [ROW]
        self.elsewhere: str | None = None
        self.index_status = 200
        self.asked = Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_GET(self) -> None:
        service = self.server
        if service.elsewhere is not None:
            self.send_response(307)
            self.send_header("location", f"http://{service.elsewhere}{self.path}")
            self.end_headers()
            return
        if service.told:
            service.asked.set()
        self.reply(service.index_status, service.rows)

    def do_POST(self) -> None:
        service = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        service.told.append((self.path, body, self.headers.get("authorization")))
        if self.path.endswith("/load"):
            service.asked.wait(10)
        self.reply(*service.answer)

    def reply(self, status: int, value: Any) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["models", *arguments])


def test_the_list_is_a_table_or_json(service: Service) -> None:
    service.rows = [ROW, LOADING]
    done = run("list", "-a", service.address)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "MODEL  VERSION  STATE",
        "m      3        READY    default",
        "m      4        LOADING  being made ready",
    ]
    assert json.loads(run("list", "--json", "-a", service.address).stdout) == [ROW, LOADING]
    assert json.loads(run("list", "--json", "--ready", "-a", service.address).stdout) == [ROW]


@pytest.mark.parametrize(
    ("arguments", "path", "body"),
    [
        (["unload", "m"], "/m/unload", {"parameters": {"unload_dependents": False}}),
        (
            ["unload", "m", "--dependents"],
            "/m/unload",
            {"parameters": {"unload_dependents": True}},
        ),
        (["label", "a b", "canary", "4"], "/a%20b/update", {"labels": {"canary": "4"}}),
        (["label", "m", "canary", "--remove"], "/m/update", {"labels": {"canary": None}}),
        (["weights", "m", "3=90", "4=10"], "/m/update", {"weights": {"3": 90, "4": 10}}),
        (["weights", "m", "--clear"], "/m/update", {"weights": {}}),
        (["promote", "m", "4"], "/m/update", {"promote": "4"}),
        (["rollback", "m"], "/m/update", {"rollback": True}),
    ],
)
def test_each_command_is_one_request(
    service: Service, arguments: list[str], path: str, body: Any
) -> None:
    done = run(*arguments, "-a", service.address, "--token", "secret", "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, [ROW] if "m" in arguments else [])
    assert service.told == [(f"/v2/repository/models{path}", body, "Bearer secret")]


def test_a_load_shows_the_states_until_it_is_done(service: Service) -> None:
    service.rows = [ROW, LOADING]
    done = run("load", "m", "-a", service.address)
    assert done.exit_code == 0
    assert done.stderr == "version 4: being made ready\n"
    assert service.told[0][:2] == ("/v2/repository/models/m/load", {"parameters": {}})


def test_a_failure_is_one_line_and_exit_status_1(service: Service) -> None:
    service.answer = (500, {"error": "failed to load 'm': it is truncated"})
    done = run("load", "m", "--json", "-a", service.address)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "error: failed to load 'm': it is truncated\n"


def test_the_port_for_operators_is_found(service: Service) -> None:
    with Service() as door:
        door.elsewhere = service.address
        thread = Thread(target=door.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        done = run("promote", "m", "4", "-a", door.address)
        door.shutdown()
        thread.join()
    assert (done.exit_code, door.told, len(service.told)) == (0, [], 1)


def test_a_service_that_is_away_is_an_error_with_a_hint_how_to_name_another() -> None:
    done = run("list", "-a", "127.0.0.1:1")
    assert done.exit_code == 1
    assert "the model repository cannot be read" in done.stderr
    assert "; --address HOST:PORT is that of another service" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["weights", "m", "3"],
        ["weights", "m", "3=x"],
        ["weights", "m"],
        ["weights", "m", "3=1", "--clear"],
        ["label", "m", "canary"],
        ["label", "m", "canary", "4", "--remove"],
    ],
)
def test_wrong_arguments_send_nothing(service: Service, arguments: list[str]) -> None:
    assert run(*arguments, "-a", service.address).exit_code == 2
    assert service.told == []


def test_the_table_of_no_models() -> None:
    assert table([]) == "no models"


def test_labels_weights_and_reasons_are_shown() -> None:
    row = {**ROW, "labels": ["a", "b"], "weight": 90, "reason": "canary"}
    assert table([row]).splitlines()[1].endswith("default; labels a, b; weight 90; canary")
    rolling = {**row, "rollout": {"step": 2, "steps": 3, "share": 25}}
    end = "weight 90; rollout: step 2 of 3, 25 %; canary"
    assert table([rolling]).splitlines()[1].endswith(end)


def test_a_fetch_has_a_bar() -> None:
    fetching = {**LOADING, "fetched": [2**20, 4 * 2**20]}
    assert progress([ROW, fetching], 8) == "version 4 [##      ] 1.0 of 4.0 MiB"
    assert progress([ROW], 8) == ""


def test_a_service_whose_models_do_not_change_says_how_they_would(service: Service) -> None:
    service.index_status, service.rows = 404, []
    done = run("list", "-a", service.address)
    assert done.exit_code == 1
    assert "models change if `penstock serve` has --model-control-mode poll" in done.stderr
