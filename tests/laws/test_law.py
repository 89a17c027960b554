"""A batch never changes an answer.

Every model of the zoo is served by one service for each executor and mode. Hundreds of concurrent
requests of mixed sizes go through every door, and each must be answered as ONNX Runtime answers it
alone, or fail as it does alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import httpx
import numpy as np
import pytest

from tests.laws.bare import Arrays, Bare, Fails, difference
from tests.laws.doors import DOORS, Door, Refused
from tests.laws.zoo import CASES
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
SAMPLE: Final = (("thread", "padded-rows"), ("process", "batches"))
"""What the gate runs; with processes, a part of the models."""


class Request(NamedTuple):
    model: Bare
    door: Door
    feed: Arrays
    expected: Arrays | Fails


class Law(NamedTuple):
    """A running service and its clients."""

    server: ServiceProcess
    models: dict[str, Bare]
    doors: dict[str, Door]
    batches: bool
    is_sample: bool

    def requests(self, seed: int) -> list[Request]:
        """For each model some requests through each door, which meet at the model."""
        rng = np.random.default_rng(seed)
        found = []
        for model in self.models.values():
            for door in self.doors.values():
                for _ in range(1 if self.is_sample else 3):
                    feed = model.case.draw(rng)
                    if door.carries(model, feed) is None:
                        found.append(Request(model, door, feed, alone(model, feed)))
        return found


def alone(model: Bare, feed: Arrays) -> Arrays | Fails:
    try:
        return model.run(feed)
    except Fails as error:
        return error


def sample_of_models() -> list[str]:
    """Some models for worker processes, each of which takes a second to start."""
    return [*np.random.default_rng(SEEDS[0]).choice([*CASES], 10, replace=False)]


def services() -> Iterator[Any]:
    """The sample, and all executors and modes."""
    for executor, mode in SAMPLE:
        yield pytest.param((executor, mode, True), id=f"sample-{executor}-{mode}")
    for executor in EXECUTORS:
        for mode in MODES:
            name = f"{executor}-{mode}"
            yield pytest.param((executor, mode, False), id=name, marks=pytest.mark.law)


@pytest.fixture(scope="module", params=services())
def law(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Law]:
    executor, mode, is_sample = request.param
    folder = tmp_path_factory.mktemp("law")
    names = sample_of_models() if is_sample and executor == "process" else [*CASES]
    models = {name: Bare.open(name, folder) for name in names}
    keys = {**EXECUTORS[executor], **MODES[mode]}
    entries = {
        name: {"path": str(model.file), **keys, **model.case.options}
        for name, model in models.items()
    }
    file = folder / "serve.yml"
    file.write_text(json.dumps({"models": entries}))  # JSON is valid YAML
    with running(file, command=SERVE, timeout=200) as server:
        doors = {name: make(server) for name, make in DOORS.items()}
        yield Law(server, models, doors, mode != "no-batches", is_sample)
        for each in doors.values():
            each.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_is_answered_as_when_it_is_alone(law: Law, seed: int) -> None:
    requests = law.requests(seed)
    with ThreadPoolExecutor(24) as pool:
        wrong = [*filter(None, pool.map(_wrong, requests))]
    assert not wrong, "\n".join([f"seed {seed}, {len(wrong)} of {len(requests)}:", *wrong[:40]])


def _wrong(request: Request) -> str | None:
    model, door, feed, expected = request
    where = f"{model.name} by {type(door).__name__}, {_shown(feed)}: "
    try:
        answer = door.call(model, feed)
    except Refused as error:
        return None if isinstance(expected, Fails) else f"{where}{error}"
    if isinstance(expected, Fails):
        return f"{where}answered, though alone it fails: {expected}"
    found = difference(model, expected, answer)
    return None if found is None else f"{where}{found}"


def _shown(feed: Arrays) -> str:
    return ", ".join(f"{name} {each.dtype}{[*each.shape]}" for name, each in feed.items())


def test_models_with_rows_ran_in_batches_and_the_others_did_not(law: Law) -> None:
    """Without this the law would hold of a service that never joins requests."""
    status = httpx.get(f"{law.server.http_url}/status", trust_env=False).json()
    joined = together = 0
    for graph in status["graphs"]:
        (op,) = graph["ops"]
        by = law.models[graph["name"]].case.by if law.batches else None
        assert op["batching"]["by"] == by, graph["name"]
        if by is None:
            assert op["batches"] >= op["samples"], graph["name"]
        else:
            together += op["batches"] < op["samples"]
            joined += op["samples"] - op["batches"]
    if law.batches:
        assert joined > 0.25 * len(law.models) * len(law.doors)
        assert together > 0.4 * len(law.models)
