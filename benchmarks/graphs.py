"""Graphs of models: the clients' requests, the right answers, and the bare models.

    ensemble   two classifiers of about a millisecond a picture, and the mean of both
    texts      a detector on 66 kB of picture, then a recogniser on its 3 to 9 crops
    ragged     1 to 128 tokens through one model
    resnet50   the layers of ResNet-50 on pictures of 600 kB, in batches of 8

The floor is a loop that calls ONNX Runtime on one thread with full batches of 32 prepared inputs:
the crops of 32 pictures in one call, the tokens of 32 texts padded to the longest of them; or with
batches of one.

    python -m benchmarks.graphs --graph texts --models FOLDER --core 0 --seconds 2
"""

from __future__ import annotations

import io
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from benchmarks.load import Report, options_of, report_of
from benchmarks.models import (
    CLASSIFIED_SHAPE,
    IMAGE_SHAPE,
    MOST_CROPS,
    PICTURE_SHAPE,
    VOCABULARY,
    model_folder,
)
from penstock.protocols.pb import Request, Response, Tensor

KINDS = 64
"""Different requests to a graph; twice as many as are in flight."""
FEWEST_CROPS, CROP = 3, 16
MOST_TOKENS = 128
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
FP32, INT64, BYTES = 1, 0, 13  # Tensor.elem_type

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """One graph.

    Attributes:
        models: their names, in the order of the service's ops.
        inputs: the different inputs that clients send.
        name: the tensor's.
        batch: how many requests run together.
    """

    models: tuple[str, ...]
    inputs: Callable[[], list[Array]]
    name: str
    batch: int = 32


@cache
def small_pictures() -> list[Array]:
    """The inputs of the ensemble."""
    found = np.random.default_rng(41).standard_normal((KINDS, 1, *CLASSIFIED_SHAPE))
    return list(found.astype(np.float32))


@cache
def pictures() -> list[Array]:
    """The inputs of the detector, whose weights are random: the first pixel determines the number
    of texts that it detects.
    """
    random = np.random.default_rng(42)
    found = random.random((KINDS, 1, *PICTURE_SHAPE), dtype=np.float32)
    found[:, 0, 0, 0, 0] = random.integers(FEWEST_CROPS, MOST_CROPS + 1, KINDS)
    return list(found)


@cache
def token_lists() -> list[Array]:
    """The inputs of the reader."""
    random = np.random.default_rng(43)
    lengths = random.integers(1, MOST_TOKENS + 1, KINDS)
    return [random.integers(1, VOCABULARY, length) for length in lengths]


@cache
def images() -> list[Array]:
    """The inputs of ResNet-50."""
    found = np.random.default_rng(44).standard_normal((8, 1, *IMAGE_SHAPE))
    return list(found.astype(np.float32))


GRAPHS = {
    "ensemble": Graph(models=("classifier-a", "classifier-b"), inputs=small_pictures, name="x"),
    "texts": Graph(models=("detector", "recogniser"), inputs=pictures, name="picture"),
    "ragged": Graph(models=("reader",), inputs=token_lists, name="tokens"),
    "resnet50": Graph(models=("resnet50",), inputs=images, name="x", batch=8),
}


def crops_of(picture: Array, places: Array) -> Array:
    """The detected crops: ``picture`` [1, 128, 128] and nine places to [k, 1, 16, 16]."""
    count = int(picture[0, 0, 0])
    corners = (places[:count] * (picture.shape[1] - CROP)).astype(np.intp)
    crops = [picture[:, y : y + CROP, x : x + CROP] for y, x in corners.tolist()]
    return np.stack(crops)


def text_of(letters: Array) -> str:
    """The recogniser's scores [k, 36] as text."""
    return "".join([LETTERS[best] for best in letters.argmax(1).tolist()])


def padded(lists: list[Array]) -> Array:
    """Token lists in one array, the shorter ones padded with zeros."""
    joined = np.zeros((len(lists), max(map(len, lists))), np.int64)
    for row, tokens in zip(joined, lists, strict=True):
        row[: len(tokens)] = tokens
    return joined


def typed(name: str, value: Array) -> Tensor:
    """A tensor in its typed field."""
    if value.dtype == np.float32:
        return Tensor(name=name, elem_type=FP32, shape=value.shape, float_data=value.ravel())
    return Tensor(name=name, elem_type=INT64, shape=value.shape, int64_data=value.ravel())


def as_npy(name: str, value: Array) -> Tensor:
    """A tensor in the bytes of a ``.npy`` file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, value, allow_pickle=False)
    return Tensor(name=name, elem_type=BYTES, byte_data=file.getvalue())


def requests(graph: str) -> list[bytes]:
    """The clients' messages, each with another input, every other array as ``.npy``."""
    found = GRAPHS[graph]
    forms = itertools.cycle((typed, as_npy))
    tensors = [form(found.name, each) for each, form in zip(found.inputs(), forms, strict=False)]
    made = [Request(name="bench", method="prediction", tensors=[tensor]) for tensor in tensors]
    return [message.SerializeToString() for message in made]


class Bare:
    """The bare models of a graph, on one thread."""

    def __init__(self, graph: str, models: Path) -> None:
        self._graph = graph
        names = GRAPHS[graph].models
        self._sessions = [open_session(model_folder(name, models)) for name in names]

    def answers(self) -> list[Any]:
        """The right answer to each request: an array, or a text."""
        found = GRAPHS[self._graph].inputs()
        if self._graph == "ensemble":
            joined = np.concatenate(found)
            return list((self._run(0, joined) + self._run(1, joined)) / 2)
        if self._graph == "texts":
            places = self._run(0, np.concatenate(found))
            crops = [crops_of(each[0], at) for each, at in zip(found, places, strict=True)]
            return [text_of(self._run(1, each)) for each in crops]
        return list(self._run(0, self._joined(found)))

    def batches(self, size: int) -> list[Callable[[], None]]:
        """One function for every batch of ``size`` requests, which runs all models on it."""
        found = GRAPHS[self._graph].inputs()
        return [self._batch(found[at : at + size]) for at in range(0, len(found), size)]

    def _batch(self, found: list[Array]) -> Callable[[], None]:
        first = self._joined(found)
        inputs = [first] * len(self._sessions)
        if self._graph == "texts":
            places = self._run(0, first)
            crops = [crops_of(each[0], at) for each, at in zip(found, places, strict=True)]
            inputs[1] = np.concatenate(crops)

        def run() -> None:
            for number, x in enumerate(inputs):
                self._run(number, x)

        return run

    def _joined(self, found: list[Array]) -> Array:
        return padded(found) if self._graph == "ragged" else np.concatenate(found)

    def _run(self, number: int, x: Array) -> Array:
        session = self._sessions[number]
        outputs: list[Array] = session.run(None, {session.get_inputs()[0].name: x})
        return outputs[0]


def is_right(answer: bytes, expected: Any) -> bool:
    """Whether a reply's message contains the bare models' answer."""
    found = Response.FromString(answer)
    if found.err_no != 0:
        return False
    if isinstance(expected, str):
        return list(found.value) == [expected] or [
            "".join(tensor.str_data) for tensor in found.tensors
        ] == [expected]
    if len(found.tensors) != 1:
        return False
    values = np.array(found.tensors[0].float_data, np.float32)
    return values.size == expected.size and np.allclose(values, expected, rtol=1e-3, atol=1e-5)


def open_session(folder: Path) -> onnxruntime.InferenceSession:
    """The model on one thread, as Penstock opens it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(
        str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )


def run_loop(
    graph: str, models: Path, *, seconds: float, warmup_seconds: float, size: int
) -> Report:
    """Run batches of ``size`` in turn; counts rows, whose latency is that of their batch."""
    batches = Bare(graph, models).batches(size)
    latencies: list[int] = []
    warm = time.perf_counter() + warmup_seconds
    for run in itertools.cycle(batches):
        run()
        if time.perf_counter() > warm:
            break
    cpu, began = time.process_time(), time.perf_counter_ns()
    before, end = began, began + int(seconds * 1e9)
    while before < end:
        for run in batches:  # all of them, as their sizes differ
            run()
            now = time.perf_counter_ns()
            latencies += [now - before] * size
            before = now
    return report_of(
        latencies,
        seconds=(before - began) / 1e9,
        server_cpu_s=time.process_time() - cpu,
    )


def main() -> int:
    """Print the report as one line of JSON."""
    options = options_of(
        "benchmarks.graphs",
        ("--graph", {"choices": tuple(GRAPHS), "required": True}),
        ("--models", {"type": Path, "required": True}),
        ("--one-by-one", {"action": "store_true", "help": "batches of one"}),
    )
    return run_loop(
        options.graph,
        options.models,
        seconds=options.seconds,
        warmup_seconds=options.warmup,
        size=1 if options.one_by_one else GRAPHS[options.graph].batch,
    ).print()


if __name__ == "__main__":
    sys.exit(main())
