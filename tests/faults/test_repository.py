"""What can be wrong with a version, or happen while it is loaded: what serves goes on."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from time import sleep

import pytest

from tests.kit.onnx_models import save, scale
from tests.services.process import ServiceProcess
from tests.services.repository import (
    Repository,
    alive,
    engine_pids,
    index,
    load,
    models,
    once,
    serving,
    states,
    titles,
    until,
    workers,
)

pytestmark = pytest.mark.faults

ENDLESS = """(float[n, 3] x) => (float[n, 3] y, float[n, 3] twice)
<int64 most = {9223372036854775807}, bool yes = {1}>
{
    y = Loop(most, yes, x)
        <body = step (int64 i, bool go, float[n, 3] before) => (bool on, float[n, 3] after)
        { on = Identity(go)  after = Identity(before) }>
    twice = Add(y, y)
}
"""
HUGE = """(float[n, 3] x) => (float[n, 3] y, float[n, 3] twice)
<int64[2] shape = {1099511627776, 3}>
{
    all = ConstantOfShape(shape)
    none = ReduceSum<keepdims = 1>(all)
    y = Add(x, none)
    twice = Add(y, y)
}
"""
OTHER = "(float[n, 3] z) => (float[n, 3] y, float[n, 3] twice) { y = Add(z, z) twice = Add(y, y) }"
WARM_UP = """
model_warmup {
  name: "first" batch_size: 1
  inputs { key: "x" value { data_type: TYPE_FP32 dims: 3 zero_data: true } }
}
max_batch_size: 8
"""


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "models")
    made.add("m", 1)
    made.config("m", WARM_UP)
    return made


THREE = {"PENSTOCK_BUILD_DAG_EACH_WORKER": "true", "PENSTOCK_WORKER_NUM": "3"}
BOTH = pytest.mark.parametrize(
    "server",
    [
        pytest.param({}, id="one engine", marks=pytest.mark.long),
        pytest.param(THREE, id="three engines"),
    ],
    indirect=True,
)


@pytest.fixture(
    params=[
        pytest.param({}, id="one engine"),
        pytest.param(THREE, id="three engines", marks=pytest.mark.long),
    ]
)
def server(request: pytest.FixtureRequest, repository: Repository) -> Iterator[ServiceProcess]:
    environment = {"PENSTOCK_START_TIMEOUT": "10", **request.param}
    with serving(repository, environment=environment) as found:
        yield found
        assert "Traceback" not in found.log()


def made_of(repository: Repository, version: int, text: str) -> None:
    """Add a version with a model of this text."""
    made = repository.folder.parent / f"made-{version}"
    made.mkdir()
    save(made / "model.onnx", text)
    repository.move(made, "m", version)


def truncated(repository: Repository, version: int) -> None:
    whole = scale(repository.folder.parent / "whole.onnx", version).read_bytes()
    repository.put("m", version, whole[: len(whole) // 2])


def without_a_model(repository: Repository, version: int) -> None:
    (repository.folder / "m" / str(version)).mkdir()
    (repository.folder / "m" / str(version) / "readme.txt").write_text("no model")


def a_link_out(repository: Repository, version: int) -> None:
    secret = repository.folder.parent / "secret.onnx"
    scale(secret, version)
    (repository.folder / "m" / str(version)).mkdir()
    (repository.folder / "m" / str(version) / "model.onnx").symlink_to(secret)


def with_a_wrong_digest(repository: Repository, version: int) -> None:
    made = repository.folder.parent / f"made-{version}"
    made.mkdir()
    file = scale(made / "model.onnx", version)
    listed = {"path": "model.onnx", "size": file.stat().st_size, "sha256": "0" * 64}
    manifest = {"format": 1, "model": "m", "version": str(version), "files": [listed]}
    (made / "penstock-manifest.json").write_text(json.dumps(manifest))
    repository.move(made, "m", version)


BROKEN: dict[str, Callable[[Repository, int], None]] = {
    "truncated": truncated,
    "no model": without_a_model,
    "another signature": lambda repository, version: made_of(repository, version, OTHER),
    "hangs at warm-up": lambda repository, version: made_of(repository, version, ENDLESS),
    "does not fit in memory": lambda repository, version: made_of(repository, version, HUGE),
    "a link out": a_link_out,
    "a wrong digest": with_a_wrong_digest,
}


@pytest.mark.parametrize(
    "kind",
    [
        # ``test_swaps`` has these, too.
        pytest.param(each, marks=pytest.mark.long)
        if each in ("truncated", "another signature")
        else each
        for each in BROKEN
    ],
)
def test_a_broken_version_leaves_what_serves(
    repository: Repository, server: ServiceProcess, kind: str
) -> None:
    before = workers(server, "1")
    with load(server) as callers:
        callers.wait("1")
        BROKEN[kind](repository, 2)
        row = until(lambda: index(server).get("2"))
        until(lambda: refused(server))
        row = index(server).get("2") or index(server)["1"]
        assert row["reason"]
        assert {*callers.versions} == {"1"}
        shutil.rmtree(repository.folder / "m" / "2")
        repository.add("m", 3)
        callers.wait("3")
    assert callers.failures == []
    until(lambda: not alive(before))
    assert server.log().count("version 2 cannot be served") <= 1


def refused(server: ServiceProcess) -> bool:
    """Whether version 2 was refused."""
    row = index(server).get("2")
    return row is not None and row["state"] == "UNAVAILABLE" and row["reason"] != "not loaded"


def test_a_slow_copy_is_not_served_before_it_is_whole(
    repository: Repository, server: ServiceProcess
) -> None:
    content = scale(repository.folder.parent / "whole.onnx", 2).read_bytes()
    place = repository.folder / "m" / "2"
    with load(server) as callers:
        callers.wait("1")
        place.mkdir()
        with (place / "model.onnx").open("wb", buffering=0) as file:
            for start in range(0, len(content), 20):
                file.write(content[start : start + 20])
                sleep(0.5)  # a copy that takes a while, as over a network
        callers.wait("2")
    assert callers.failures == []
    assert "cannot be served: it is no" not in server.log()


def test_a_version_that_is_deleted_while_it_is_loaded(
    repository: Repository, server: ServiceProcess
) -> None:
    with load(server) as callers:
        callers.wait("1")
        for version in range(2, 5):
            repository.add("m", version)
            until(lambda listed=str(version): listed in index(server))
            shutil.rmtree(repository.folder / "m" / str(version))
        repository.add("m", 9)
        callers.wait("9")
    assert callers.failures == []


def test_a_repository_that_goes_away_and_comes_back(
    repository: Repository, server: ServiceProcess
) -> None:
    away = repository.folder.with_name("away")
    with load(server) as callers:
        callers.wait("1")
        repository.folder.rename(away)
        until(lambda: "what serves goes on" in server.log())
        assert states(server)["1"] == "READY"
        assert models(server, "load", "m").returncode in (0, 1)
        away.rename(repository.folder)
        repository.add("m", 2)
        callers.wait("2")
    assert callers.failures == []
    assert server.log().count("what serves goes on") == 1
    assert server.log().count("answers again") == 1


@BOTH
def test_two_operators_at_once_lose_no_change(
    repository: Repository, server: ServiceProcess
) -> None:
    labels = [f"label-{number}" for number in range(8)]
    done: list[int] = []

    def label(name: str) -> None:
        done.append(models(server, "label", "m", name, "1").returncode)

    repository.config("m", f"{WARM_UP} version_policy {{ all {{}} }}")
    repository.add("m", 2)
    threads = [threading.Thread(target=label, args=(each,)) for each in labels]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert done == [0] * 8
    assert sorted(index(server)["1"]["labels"]) == labels
    until(lambda: states(server).get("2") == "READY")


@BOTH
@pytest.mark.parametrize("when", ["at rest", "while a version is loaded"])
def test_the_engine_that_loads_models_is_killed(
    repository: Repository, server: ServiceProcess, when: str
) -> None:
    first = int(next(iter(engine_pids(server))))
    with load(server) as callers:
        callers.wait("1")
        if when != "at rest":
            repository.add("m", 2)
            until(lambda: states(server).get("2") == "LOADING")
        os.kill(first, signal.SIGKILL)
        until(lambda: first not in [int(x) for x in engine_pids(server)])
        until(lambda: _is_whole(server))
        repository.add("m", 3)
        callers.wait("3")
    broken = [each for each in callers.failures if not isinstance(each, str)]
    assert broken == []  # only connections to the engine that was killed are lost
    assert once(server)[1]["model_version"] == "3"


@pytest.mark.parametrize("engines", [1, 3])
def test_without_room_for_two_the_old_version_ends_first_and_no_request_fails(
    repository: Repository, engines: int
) -> None:
    environment = {"PENSTOCK_START_TIMEOUT": "10"}
    if engines > 1:
        environment |= {"PENSTOCK_BUILD_DAG_EACH_WORKER": "true", "PENSTOCK_WORKER_NUM": "3"}
    seen: set[tuple[str, ...]] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            seen.add(tuple(sorted(_versions_of_workers(server))))

    with serving(repository, "--swap", "resource", environment=environment) as server:
        watcher = threading.Thread(target=watch)
        watcher.start()
        with load(server) as callers:
            callers.wait("1")
            repository.add("m", 2)
            callers.wait("2")
            made_of(repository, 3, HUGE)
            until(lambda: states(server).get("3") == "UNAVAILABLE")
            until(lambda: "the version before serves again" in index(server)["3"]["reason"])
            callers.wait("2")
            repository.add("m", 4)
            callers.wait("4")
        over.set()
        watcher.join()
        assert callers.failures == []
        assert {"1", "2", "4"} <= {*chain.from_iterable(seen)}
        assert max(map(len, seen)) == engines  # each had room for one
        if engines == 1:
            assert all(len({*each}) <= 1 for each in seen)
        assert "Traceback" not in server.log()


def _versions_of_workers(server: ServiceProcess) -> Iterator[str]:
    """The versions of which worker processes live."""
    for each in server.descendants():
        try:
            title = Path(f"/proc/{each.pid}/comm").read_text()
        except OSError:
            continue
        if (found := re.match(r"m@(\d+)/", title)) is not None:
            yield found[1]


def test_an_engine_that_starts_again_serves_the_rest_if_a_version_has_lost_its_files(
    repository: Repository,
) -> None:
    repository.add("n", 1)
    cached = repository.folder.parent / "cache/penstock/models/versions/m"
    with serving(repository) as server:
        until(lambda: "1" in states(server) and "1" in states(server, "n"))
        shutil.rmtree(cached)
        (engine,) = [each for each in server.descendants() if each.name() == "engine"]
        engine.kill()
        until(lambda: "model m: version 1 cannot be opened again" in server.log())
        assert until(lambda: _status(server, "n")) == 200
        until(lambda: _status(server, "m") == 200)  # it was fetched again
        assert server.is_ready()


def _status(server: ServiceProcess, name: str) -> int | None:
    try:
        return once(server, name)[0]
    except (OSError, http.client.HTTPException):
        return None


def _is_whole(server: ServiceProcess) -> bool:
    try:
        return server.is_ready() and bool(index(server))
    except (OSError, http.client.HTTPException, ValueError):
        return False


@pytest.mark.parametrize("server", [THREE], indirect=True, ids=["three engines"])
def test_an_engine_is_killed_between_the_decision_and_its_part_in_it(
    repository: Repository, server: ServiceProcess
) -> None:
    """Of several engines: one is stopped, so that the others have made a version ready and wait for
    it; then one of these is killed.
    """
    engines = [*map(int, engine_pids(server))]
    before = workers(server, "1")
    with load(server, callers=6) as callers:
        callers.wait("1")
        os.kill(engines[1], signal.SIGSTOP)
        repository.add("m", 2)
        until(lambda: len(_workers_of(server, "2")) >= 2)
        os.kill(engines[2], signal.SIGKILL)
        os.kill(engines[1], signal.SIGCONT)
        callers.wait("2")
        until(lambda: _is_whole(server) and engines[2] not in map(int, engine_pids(server)))
        until(lambda: len(_workers_of(server, "2")) == len(engines))
        until(lambda: not alive(before))
    assert [each for each in callers.failures if not isinstance(each, str)] == []
    # Each engine serves the new version, the successor of the one that was killed as well.
    assert {once(server)[1]["model_version"] for _ in range(20)} == {"2"}


def _workers_of(server: ServiceProcess, version: str) -> list[str]:
    """The worker processes of a version, of every engine."""
    return [pid for pid, title in titles(server).items() if title.startswith(f"m@{version}")]
