"""``penstock serve`` of a repository: models change while it serves."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.security.keys import line_of, new_key
from tests.kit.onnx_models import save
from tests.services.process import free_port, running
from tests.services.repository import (
    SERVE,
    Repository,
    alive,
    index,
    load,
    models,
    once,
    serving,
    states,
    until,
    workers,
)

pytestmark = pytest.mark.real

ANY_SIGNATURE = 'parameters { key: "penstock.signature" value { string_value: "any" } }'


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "models")
    made.add("m", 1)
    return made


ENGINES = [
    {},
    {"PENSTOCK_BUILD_DAG_EACH_WORKER": "true", "PENSTOCK_WORKER_NUM": "2"},
]


@pytest.mark.parametrize("environment", ENGINES, ids=["one engine", "two engines"])
def test_a_new_version_is_served_under_load_and_the_old_process_ends(
    repository: Repository, environment: dict[str, str]
) -> None:
    with serving(repository, environment=environment) as server:
        with load(server) as callers:
            callers.wait("1")
            old: list[int] = []
            for version in (2, 3):
                old += workers(server, str(version - 1))
                repository.add("m", version)
                callers.wait(str(version))
        assert callers.failures == []
        until(lambda: states(server)["2"] == "UNAVAILABLE")
        assert index(server)["2"]["reason"] == "unloaded"
        assert states(server)["3"] == "READY"
        assert len(old) == 2 * len(workers(server, "3"))
        until(lambda: not alive(old))
        assert server.stop() == 0
        assert server.leftovers() == []
        log = server.log()
    assert "model m: version 3 serves, after" in log
    assert "Traceback" not in log


def test_a_broken_version_changes_nothing_and_is_told_once(repository: Repository) -> None:
    with serving(repository) as server:
        with load(server) as callers:
            callers.wait("1")
            repository.put("m", 2, b"no model")
            until(lambda: states(server).get("2") == "UNAVAILABLE")
            repository.add("m", 3)
            callers.wait("3")
        assert callers.failures == []
        reason = index(server)["2"]["reason"]
        assert reason
        until(lambda: states(server) == {"1": "UNAVAILABLE", "2": "UNAVAILABLE", "3": "READY"})
        assert models(server, "list").stdout.count("UNAVAILABLE") == 2
        assert server.log().count("version 2 cannot be served") == 1


def test_a_version_that_has_made_room_is_not_ready(repository: Repository) -> None:
    with serving(repository, "--swap", "resource") as server:
        assert states(server) == {"1": "READY"}
        repository.add("m", 2)
        seen: list[dict[str, str]] = []

        def replaced() -> bool:
            seen.append(states(server))
            return seen[-1].get("2") == "READY"

        until(replaced)
        assert {"1": "UNAVAILABLE", "2": "LOADING"} in seen
        assert all({*each.values()} != {"READY"} for each in seen[1:] if len(each) == 2)


@pytest.mark.long
def test_callers_of_two_signatures_through_a_change(repository: Repository) -> None:
    """Of as many values that their requests are decoded in threads."""
    repository.config("m", ANY_SIGNATURE)

    def put(version: int, columns: int) -> None:
        made = repository.folder.parent / f"made-{version}"
        made.mkdir()
        axes = f"float[n, {columns}]"
        save(made / "model.onnx", f"({axes} x) => ({axes} y) {{ y = Add(x, x) }}")
        repository.move(made, "m", version)

    def call(columns: int) -> None:
        tensor = {"name": "x", "datatype": "FP32", "shape": [256, columns]}
        body = {"inputs": [{**tensor, "data": [1.0] * 256 * columns}]}
        with httpx.Client(timeout=60) as http:
            while not stop.is_set():
                got = http.post(f"{server.http_url}/v2/models/m/infer", json=body)
                answers[columns].append((got.status_code, got.json()))

    put(2, 4)
    stop = threading.Event()
    answers: dict[int, list[tuple[int, Any]]] = {4: [], 5: []}
    with serving(repository) as server:
        threads = [threading.Thread(target=call, args=(each,)) for each in (4, 4, 5, 5)]
        for each in threads:
            each.start()
        try:
            until(lambda: len(answers[4]) > 20)
            put(3, 5)
            until(lambda: 200 in [status for status, _ in answers[5][-20:]])
        finally:
            stop.set()
            for each in threads:
                each.join()
        assert "Traceback" not in server.log()
    for columns, version in ((4, "2"), (5, "3")):
        kinds = {(status, got.get("model_version")) for status, got in answers[columns]}
        assert kinds == {(200, version), (400, None)}
        refused = {got["error"] for status, got in answers[columns] if status == 400}
        assert all("'x'" in each for each in refused)


def test_an_operator_loads_and_unloads(repository: Repository) -> None:
    with serving(repository, mode="explicit") as server:
        assert once(server)[0] == 404
        assert states(server) == {"1": "UNAVAILABLE"}
        done = models(server, "load", "m", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        assert [each["state"] for each in json.loads(done.stdout)] == ["READY"]
        assert once(server)[1]["model_version"] == "1"
        pids = workers(server, "1")
        assert alive(pids) == pids != []
        done = models(server, "unload", "m")
        assert done.returncode == 0, done.stderr
        assert alive(pids) == []
        assert once(server)[0] in (400, 404, 503)
        repository.put("m", 2, b"no model")
        for _ in range(2):
            done = models(server, "load", "m")
            assert done.returncode == 1
            assert "error: failed to load 'm': version 2: " in done.stderr
        # The newest that can be served does.
        assert once(server)[1]["model_version"] == "1"


def test_labels_weights_promotion_and_rollback(repository: Repository) -> None:
    repository.add("m", 2)
    repository.config("m", "version_policy { latest { num_versions: 2 } }")
    with serving(repository) as server:
        assert once(server)[1]["model_version"] == "2"
        assert models(server, "label", "m", "canary", "2").returncode == 0
        assert once(server, version="canary")[1]["model_version"] == "2"
        assert models(server, "promote", "m", "1").returncode == 0
        assert once(server)[1]["model_version"] == "1"
        assert models(server, "weights", "m", "1=50", "canary=50").returncode == 0
        with load(server) as callers:
            until(lambda: {*callers.versions} == {"1", "2"})
        assert callers.failures == []
        assert models(server, "promote", "m", "canary").returncode == 0
        assert models(server, "label", "m", "canary", "--remove").returncode == 0
        assert models(server, "rollback", "m").returncode == 0
        assert once(server)[1]["model_version"] == "1"
        until(lambda: states(server) == {"1": "READY", "2": "UNAVAILABLE"})
        wrong = models(server, "promote", "m", "9")
        assert (wrong.returncode, wrong.stderr) == (1, "error: m has no version '9'\n")


def test_sigterm_in_the_middle_of_a_load_ends_the_service(repository: Repository) -> None:
    with serving(repository) as server:
        repository.add("m", 2)
        until(lambda: states(server).get("2", "UNAVAILABLE") != "UNAVAILABLE")
        assert server.stop(signal.SIGTERM) == 0
        assert server.leftovers() == []
        assert "Traceback" not in server.log()


def test_the_repository_is_for_operators(repository: Repository) -> None:
    port = free_port()
    with serving(
        repository, mode="explicit", environment={"PENSTOCK_ADMIN_PORT": str(port)}
    ) as server:
        with httpx.Client() as http:
            path = "/v2/repository/models/m/load"
            redirected = http.post(server.http_url + path)
            assert redirected.status_code == 307
            assert redirected.headers["location"] == f"http://127.0.0.1:{port}{path}"
            away = {"x-forwarded-for": "10.1.2.3"}
            admin = f"http://127.0.0.1:{port}"
            assert http.post(admin + path, headers=away).status_code == 403
        assert states(server, port=port) == {"1": "UNAVAILABLE"}
        done = models(server, "load", "m")  # which finds the port
        assert done.returncode == 0, done.stderr
        assert once(server)[0] == 200


def test_callers_need_the_scope_of_operators(repository: Repository, tmp_path: Path) -> None:
    keys = {"ann": ("admin",), "bob": ()}
    secrets = {name: new_key() for name in keys}
    file = tmp_path / "keys.txt"
    file.write_text("".join(f"{line_of(x, secrets[x], keys[x])}\n" for x in keys))
    server_keys = {
        "model_repository": str(repository.folder),
        "model_control_mode": "explicit",
        "model_cache": str(tmp_path / "cache"),
        "security": {"keys": str(file)},
    }
    config = tmp_path / "serve.yml"
    config.write_text(json.dumps({"server": server_keys}))
    with running(config, command=(*SERVE[:-1], "--config")) as server:
        for name, status in (("ann", 200), ("bob", 403), (None, 401)):
            headers = {} if name is None else {"authorization": f"Bearer {secrets[name]}"}
            url = f"{server.http_url}/v2/repository/models/m/load"
            assert httpx.post(url, headers=headers, timeout=60).status_code == status
