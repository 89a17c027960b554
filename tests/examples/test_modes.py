"""Every example in threads, in processes and mixed gives bitwise equal replies."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import PipelineClient
from tests.services.process import ROOT, ServiceProcess, running

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

SCRIPTS = {
    "simple_web_service": ("web_service.py", ("uci",)),
    "imdb_model_ensemble": ("pipeline_server.py", ("bow", "cnn", "combine")),
    "ocr": ("ocr_service.py", ("det", "cls", "rec")),
}
PICTURES = ("small.png", "columns.png", "downwards.png")


def modes(ops: tuple[str, ...]) -> dict[str, list[str]]:
    """The flags of each mode."""
    first = dict(zip(ops, ("process", "thread") * 2, strict=False))
    second = dict(zip(ops, ("thread", "process") * 2, strict=False))
    flags = {"processes": ["-o", "dag.is_thread_op=false"]}
    if len(ops) > 1:
        for name, places in (("processes first", first), ("threads first", second)):
            pairs = [("-o", f"op.{op}.executor={place}") for op, place in places.items()]
            flags[name] = [each for pair in pairs for each in pair]
    return flags


def feeds(name: str, folder: Path) -> list[tuple[dict[str, Any], bool]]:
    """The requests' feeds, and whether they are sent as tensors."""
    if name == "ocr":
        images = [base64.b64encode((folder / each).read_bytes()).decode() for each in PICTURES]
        return [({"image": image}, False) for image in (*images, "no picture")]
    if name == "simple_web_service":
        rows = np.random.default_rng(3).normal(size=(40, 13)).astype(np.float32)
        text = ";".join(", ".join(map(str, row)) for row in rows[:5])
        return [({"x": rows}, True), ({"x": rows[:1]}, True), ({"x": text}, False), ({}, False)]
    reviews = ("i am very sad | 0", "a great and moving film | 1", "so-so", "")
    return [({"words": review}, False) for review in reviews]


@contextmanager
def serving(name: str, *flags: str) -> Iterator[ServiceProcess]:
    script = ROOT / "examples" / name / SCRIPTS[name][0]
    with running(script, *flags, command=(sys.executable, "-m", "penstock", "run")) as server:
        yield server
        assert server.stop() == 0
        assert server.leftovers() == []


def replies(server: ServiceProcess, requests: list[tuple[dict[str, Any], bool]]) -> list[Any]:
    found = []
    with PipelineClient() as client:
        client.connect([server.rpc_endpoint])
        for feed, typed in requests:
            reply = client.predict(feed, pack_tensor_format=typed, timeout=60)
            values = dict(zip(reply.key, reply.value, strict=True))
            values.pop("times", None)  # differs from request to request
            tensors = [tensor.SerializeToString(deterministic=True) for tensor in reply.tensors]
            found.append((reply.err_no, reply.err_msg, values, tensors))
    return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_gives_the_same_replies_with_every_executor(name: str, folder: Path) -> None:
    requests = feeds(name, folder)
    with serving(name) as server:
        expected = replies(server, requests)
    assert [number for number, *_ in expected].count(0) >= 2
    for mode, flags in modes(SCRIPTS[name][1]).items():
        with serving(name, *flags) as server:
            kinds = json.dumps([line for line in server.log().splitlines() if "  op " in line])
            assert "1 process" in kinds or "2 processes" in kinds, mode
            assert ("thread" in kinds) == (mode != "processes"), mode
            assert replies(server, requests) == expected, mode
