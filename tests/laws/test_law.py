"""A batch never changes an answer.

Every model and graph of the zoo is served by one service for each executor and mode. Hundreds of
concurrent requests of mixed sizes go through every door, and each must be answered as ONNX Runtime
answers it alone, or fail as it does alone. A second kind of service has models with mini-batches.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import httpx
import numpy as np
import pytest

from tests.laws import rows_app
from tests.laws.bare import Arrays, Bare, Fails, difference, each_row, graph
from tests.laws.doors import DOORS, Door, Refused
from tests.laws.zoo import CASES, EACH_ROW, GRAPHS, REQUEST
from tests.service.scripts import PENSTOCK
from tests.services.process import ServiceProcess, running

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

SERVE: Final = (sys.executable, "-m", "penstock", "serve", "--config")
SEEDS: Final = (1, 2, 3)

EXECUTORS: Final[dict[str, dict[str, Any]]] = {
    "inline": {"executor": "inline"},
    "thread": {"executor": "thread", "concurrency": 2},
    "process": {"executor": "process", "concurrency": 1},
}
_BATCHES: Final = {"batch_size": 8, "auto_batching_timeout": 20}
MODES: Final[dict[str, dict[str, Any]]] = {
    "no-batches": {},
    "batches": _BATCHES,
    "batch-rows": {**_BATCHES, "batch_rows": True},
    "padding": {**_BATCHES, "pad": {"enabled": True}},
    "padded-rows": {**_BATCHES, "batch_rows": True, "pad": {"enabled": True}},
}
SAMPLE: Final = (("models", "thread", "padded-rows"), ("models", "process", "batches"))
"""What the gate runs; with processes, a part of the models."""

Running: TypeAlias = AbstractContextManager[ServiceProcess]
Entries: TypeAlias = dict[str, dict[str, Any]]
"""Of each model, its path and the keys of its op."""


class Served(NamedTuple):
    """A way to serve models.

    Attributes:
        names: the models and graphs.
        doors: by which they can be reached.
        modes: that they have.
        alone: changes the answer of a request alone.
        start: starts the service, with this folder, what each model of each graph reads, and the
            entries of all models.
    """

    names: tuple[str, ...]
    doors: tuple[str, ...]
    modes: tuple[str, ...]
    alone: Callable[[Bare], Bare]
    start: Callable[[Path, dict[str, dict[str, str]], Entries], Running]


def serve(folder: Path, graphs: dict[str, dict[str, str]], entries: Entries) -> Running:
    """A model server."""
    file = folder / "serve.yml"
    file.write_text(json.dumps({"models": entries, "workflows": graphs}))  # JSON is valid YAML
    return running(file, command=SERVE, timeout=200)


def mini_batches(folder: Path, graphs: dict[str, dict[str, str]], entries: Entries) -> Running:
    """An app whose ops split each request into feeds of one row."""
    environment = {"LAW": json.dumps(entries)}
    return running(Path(rows_app.__file__), command=PENSTOCK, environment=environment)


SERVED: Final = {
    "models": Served(
        names=(*CASES, *GRAPHS),
        doors=(*DOORS,),
        modes=(*MODES,),
        alone=lambda model: model,
        start=serve,
    ),
    "mini-batches": Served(
        names=EACH_ROW,
        doors=("plain-json", "plain-msgpack"),
        modes=("no-batches", "batches"),
        alone=each_row,
        start=mini_batches,
    ),
}


class Request(NamedTuple):
    model: Bare
    door: Door
    feed: Arrays
    expected: Arrays | Fails


class Law(NamedTuple):
    """A running service and its clients.

    Attributes:
        found: by seed, what was answered otherwise than alone.
    """

    server: ServiceProcess
    models: dict[str, Bare]
    doors: dict[str, Door]
    batches: bool
    is_sample: bool
    found: dict[int, list[str]]

    def wrong(self, seed: int) -> list[str]:
        """Answers to the requests of a seed, which are sent once, that are not as alone."""
        if seed not in self.found:
            requests = self.requests(seed)
            with ThreadPoolExecutor(24) as pool:
                wrong = [*filter(None, pool.map(_wrong, requests))]
            summary = f"seed {seed}, {len(wrong)} of {len(requests)}:"
            self.found[seed] = [summary, *wrong[:40]] if wrong else []
        return self.found[seed]

    def requests(self, seed: int) -> list[Request]:
        """For each model some requests through each door, which meet at the model."""
        rng = np.random.default_rng(seed)
        found = []
        for model in self.models.values():
            for door in self.doors.values():
                for _ in range(1 if self.is_sample else 3):
                    feed = door.sendable(model.case.draw(rng))
                    if door.carries(model, feed) is None:
                        found.append(Request(model, door, feed, alone(model, feed)))
        return found


def alone(model: Bare, feed: Arrays) -> Arrays | Fails:
    try:
        return model.run(feed)
    except Fails as error:
        return error


def sample_of(names: tuple[str, ...]) -> list[str]:
    """Some models for worker processes, each of which takes a second to start."""
    return [*np.random.default_rng(SEEDS[0]).choice(names, 10, replace=False)]


def services() -> Iterator[Any]:
    """The sample, and all executors and modes."""
    for each in SAMPLE:
        yield pytest.param((*each, True), id=f"sample-{'-'.join(each)}")
    for how, served in SERVED.items():
        for executor in EXECUTORS:
            for mode in served.modes:
                name = f"{how}-{executor}-{mode}"
                yield pytest.param((how, executor, mode, False), id=name, marks=pytest.mark.law)


@contextmanager
def open_law(
    how: str, executor: dict[str, Any], mode: str, folder: Path, *, few: bool, sample: bool
) -> Iterator[Law]:
    """Serve models.

    Args:
        how: a name of SERVED.
        executor: the keys of each op.
        mode: a name of MODES.
        few: whether only a part of the models is served.
        sample: whether each is called less often.
    """
    served = SERVED[how]
    names = sample_of(served.names) if few else served.names
    graphs = {name: GRAPHS.get(name, {name: REQUEST}) for name in names}
    parts = {each: Bare.open(each, folder) for each in dict.fromkeys(chain(*graphs.values()))}
    models = {name: graph(name, parts) if name in GRAPHS else parts[name] for name in names}
    keys = {**executor, **MODES[mode]}
    entries = {
        name: {"path": str(each.file), **keys, **each.case.options} for name, each in parts.items()
    }
    with served.start(folder, graphs, entries) as server:
        doors = {name: DOORS[name](server) for name in served.doors}
        alike = {name: served.alone(each) for name, each in models.items()}
        yield Law(server, alike, doors, mode != "no-batches", sample, {})
        for each in doors.values():
            each.close()


@pytest.fixture(scope="module", params=services())
def law(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Law]:
    how, executor, mode, is_sample = request.param
    few = is_sample and executor == "process"
    folder = tmp_path_factory.mktemp("law")
    keys = EXECUTORS[executor]
    with open_law(how, keys, mode, folder, few=few, sample=is_sample) as opened:
        yield opened


@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_is_answered_as_when_it_is_alone(law: Law, seed: int) -> None:
    wrong = law.wrong(seed)
    assert not wrong, "\n".join(wrong)


def _wrong(request: Request) -> str | None:
    model, door, feed, expected = request
    where = f"{model.name} by {type(door).__name__}, {_shown(feed)}: "
    try:
        answer = door.call(model, feed)
    except Refused as error:
        return None if isinstance(expected, Fails) else f"{where}{error}"
    if isinstance(expected, Fails):
        return f"{where}answered, though alone it fails: {expected}"
    found = difference(model, door.sendable(expected), answer)
    return None if found is None else f"{where}{found}"


def _shown(feed: Arrays) -> str:
    return ", ".join(f"{name} {each.dtype}{[*each.shape]}" for name, each in feed.items())


def test_models_with_rows_ran_in_batches_and_the_others_did_not(law: Law) -> None:
    """Without this the law would hold of a service that never joins requests."""
    for seed in SEEDS:
        law.wrong(seed)
    status = httpx.get(f"{law.server.http_url}/status", trust_env=False).json()
    joined = together = 0
    ops = [op for each in status["graphs"] for op in each["ops"]]
    for op in ops:
        case = CASES.get(op["name"].rpartition("/")[2])
        if case is None:
            continue  # it joins the answers of several models
        by = case.by if law.batches else None
        assert op["batching"]["by"] == by, op["name"]
        if by is None:
            assert op["batches"] >= op["samples"], op["name"]
        else:
            together += op["batches"] < op["samples"]
            joined += op["samples"] - op["batches"]
    if law.batches:
        assert joined > 0.25 * len(law.models) * len(law.doors)
        assert together > 0.4 * len(law.models)
