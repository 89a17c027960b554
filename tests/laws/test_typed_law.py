"""A batch never changes an answer of a typed function, by JSON and msgpack, in every executor and
in external workers.
"""

from __future__ import annotations

import base64
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import msgpack
import numpy as np
import pytest
from pydantic import BaseModel

from tests.laws import typed_app
from tests.laws.test_law import SEEDS
from tests.service.scripts import PENSTOCK
from tests.services.process import ROOT, ServiceProcess, running

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

EACH: Final = 30
"""Requests for each function and door."""

Value = Any
Draw = Callable[[np.random.Generator], dict[str, Value]]


def _texts(rng: np.random.Generator) -> list[str]:
    return [*map(str, rng.choice(["", "a", "é", "b c", "\U0001f600", '"'], rng.integers(0, 4)))]


def _rows(rng: np.random.Generator) -> Any:
    values = np.array([0.5, -1, 3.25, np.nan, np.inf, -np.inf, 1e-40, 0.1], np.float32)
    return rng.choice(values, (rng.integers(1, 5), 2))


def _number(rng: np.random.Generator) -> float:
    return float(rng.choice([0.1, -0.0, 1e308, np.nan, np.inf, -np.inf, 5e-324]))


def _integer(rng: np.random.Generator) -> int:
    return int(rng.choice(np.array([0, -1, 2**53 + 1, 2**63 - 1, -(2**63)])))


def _scaled(rng: np.random.Generator) -> dict[str, Value]:
    factor = {"by": float(rng.integers(1, 9))} if rng.integers(2) else {}
    return {"x": _rows(rng), **factor}


def _item(rng: np.random.Generator) -> dict[str, Value]:
    note = {"note": "é"} if rng.integers(2) else {}
    return {"name": "né", "howMany": int(rng.integers(9)), "raw": rng.bytes(3), **note}


FUNCTIONS: Final[dict[str, Draw]] = {
    "scaled": _scaled,
    "grown": lambda rng: {"x": _rows(rng)},
    "counted": lambda rng: {"texts": _texts(rng)},
    "added": lambda rng: {"left": _integer(rng), "right": int(rng.integers(9)), "unit": "km"},
    "same": lambda rng: {"number": _number(rng), "whole": _integer(rng)},
    "inverse": lambda rng: {"number": [0, 1, 2, 3, "none"][rng.integers(5)]},
    "described": _item,
    "joined": lambda rng: {"words": _texts(rng)},
}


TARGETS: Final = {"joined": "Joined"}
"""Of routes whose target has another name."""

STATUSES: Final = {0: 500, "none": 422}
"""Of the errors of ``inverse``, by its argument."""


class Door(NamedTuple):
    """An encoding of bodies."""

    media: str
    encode: Callable[[Value], bytes]
    decode: Callable[[bytes], Value]
    of_bytes: Callable[[bytes], Value]
    of_number: Callable[[float], Value]


def _in_json(number: float) -> Value:
    if math.isfinite(number):
        return number
    return None if math.isnan(number) else f"{'-' * (number < 0)}Infinity"


DOORS: Final = {
    "json": Door(
        "application/json",
        lambda value: json.dumps(value).encode(),
        json.loads,
        lambda raw: base64.b64encode(raw).decode(),
        _in_json,
    ),
    "msgpack": Door(
        "application/msgpack",
        msgpack.packb,
        msgpack.unpackb,
        lambda raw: raw,
        lambda number: number,
    ),
}


def plain(value: Value, door: Door) -> Value:
    """A value as this encoding sends it."""
    if isinstance(value, BaseModel):
        return plain(value.model_dump(by_alias=True), door)
    if isinstance(value, dict):
        return {name: plain(each, door) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), door)
    if isinstance(value, list | tuple):
        return [plain(each, door) for each in value]
    if isinstance(value, bytes):
        return door.of_bytes(value)
    return door.of_number(value) if isinstance(value, float) else value


def sent(feed: dict[str, Value], door: Door) -> dict[str, Value]:
    """A request's body. Arrays are as in answers; a number by itself is a bare word in JSON, where
    null stands for a missing value.
    """
    return {
        name: value if isinstance(value, float) else plain(value, door)
        for name, value in feed.items()
    }


def alone(name: str, feed: dict[str, Value]) -> Value:
    """The answer to one request: that of the function for a list of one; or the status of an error,
    an int.
    """
    if name == "joined":
        steps = typed_app.Joined()
        return steps.postprocess(steps.inference([steps.preprocess(feed["words"])])[0])
    if name == "described":
        return typed_app.described([typed_app.Item(**feed)])[0]
    lists = {key: [each.copy() if key == "x" else each] for key, each in feed.items()}
    if name == "inverse" and feed["number"] in STATUSES:
        return STATUSES[feed["number"]]
    return getattr(typed_app, name)(**lists)[0]


EXECUTORS: Final[dict[str, dict[str, Any]]] = {
    "thread": {"executor": "thread", "workers": 1},
    "process": {"executor": "process", "workers": 1},
    "external-json": {"executor": "external", "socket_format": "json"},
    "external-msgpack": {"executor": "external", "socket_format": "msgpack"},
}
MODES: Final[dict[str, dict[str, Any]]] = {
    "no-batches": {"batch": 1},
    "batches": {"batch": 8, "wait": 20},
}
SAMPLE: Final = (("thread", "batches"), ("process", "batches"))
"""What the gate runs."""


class Running(NamedTuple):
    """A running service, its doors, and whether it has batches."""

    server: ServiceProcess
    doors: dict[str, Door]
    batches: bool


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(each, id="-".join(each), marks=() if each in SAMPLE else pytest.mark.law)
        for each in product(EXECUTORS, MODES)
    ],
)
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    executor, mode = request.param
    options = {**EXECUTORS[executor], **MODES[mode]}
    media = options.get("socket_format")
    doors = DOORS if media is None else {media: DOORS[media]}
    with ExitStack() as stack:
        if media is not None:
            options["sockets"] = str(tmp_path_factory.mktemp("sockets"))
            for name in (*FUNCTIONS, "short"):
                stack.enter_context(external_worker(name, options))
        environment = {"LAW": json.dumps(options)}
        script = Path(typed_app.__file__)
        server = stack.enter_context(
            running(script, command=PENSTOCK, environment=environment, timeout=200)
        )
        yield Running(server, doors, options["batch"] > 1)


@contextmanager
def external_worker(name: str, options: dict[str, Any]) -> Iterator[None]:
    """An external worker of one function."""
    target, socket = f"{typed_app.__name__}:{TARGETS.get(name, name)}", f"{name}.sock"
    command = [sys.executable, "-m", "penstock", "worker", target, "--batched", "--socket", socket]
    if options["socket_format"] == "msgpack":
        command.append("--msgpack")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=options["sockets"], env=environment)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_is_answered_as_when_it_is_alone(service: Running, seed: int) -> None:
    rng = np.random.default_rng(seed)
    requests = [
        (name, door, draw(rng))
        for name, draw in FUNCTIONS.items()
        for _ in range(EACH)
        for door in service.doors.values()
    ]
    with httpx.Client(base_url=service.server.http_url, trust_env=False, timeout=30) as http:

        def wrong(request: tuple[str, Door, dict[str, Value]]) -> str | None:
            name, door, feed = request
            reply = post(http, name, door, sent(feed, door))
            where = f"/{name} by {door.media}: {feed}: {reply.status_code} {reply.content[:200]!r}"
            expected = alone(name, feed)
            if isinstance(expected, int) and name == "inverse":
                return None if reply.status_code == expected else where
            if reply.status_code != 200:
                return where
            # As texts, in which NaN is equal to NaN and 1 is not 1.0.
            found, right = door.decode(reply.content), plain(expected, door)
            return None if repr(found) == repr(right) else f"{where} instead of {right}"

        with ThreadPoolExecutor(16) as pool:
            found = [*filter(None, pool.map(wrong, requests))]
    assert not found, "\n".join([f"seed {seed}, {len(found)} of {len(requests)}:", *found[:40]])


def post(http: httpx.Client, name: str, door: Door, body: Value) -> httpx.Response:
    headers = {"content-type": door.media, "accept": door.media}
    return http.post(f"/{name}", content=door.encode(body), headers=headers)


def test_functions_ran_in_batches(service: Running) -> None:
    status = httpx.get(f"{service.server.http_url}/status", trust_env=False).json()
    for graph in status["graphs"]:
        (op,) = graph["ops"]
        if service.batches and op["samples"]:
            assert op["batches"] < op["samples"], graph["name"]
        else:
            assert op["batches"] >= op["samples"], graph["name"]


def test_a_wrong_number_of_results_is_an_error_of_each_request(service: Running) -> None:
    with (
        httpx.Client(base_url=service.server.http_url, trust_env=False, timeout=30) as http,
        ThreadPoolExecutor(8) as pool,
    ):
        for door in service.doors.values():
            bodies = [{"number": number} for number in range(16)]
            replies = [*pool.map(partial(post, http, "short", door), bodies)]
            assert {reply.status_code for reply in replies} == {500}
