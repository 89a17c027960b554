"""The OCR example without a server: its modules, its ops chained by hand, and its judge."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
from shapely.geometry import Polygon

EXAMPLE = Path(__file__).parents[2] / "examples" / "ocr"
MODULES = (
    "detection",
    "geometry",
    "models",
    "ocr_service",
    "orientation",
    "picture",
    "pictures",
    "recognition",
    "strips",
)

Line = dict[str, Any]


@cache
def example() -> Any:
    """The example's modules as attributes.

    They are taken out of ``sys.modules`` again: other examples have modules of the same names.
    """
    before = dict(sys.modules)
    here = {path.stem for path in EXAMPLE.glob("*.py")}
    for name in here:
        sys.modules.pop(name, None)
    sys.path.insert(0, str(EXAMPLE))
    try:
        return SimpleNamespace(**{name: import_module(name) for name in MODULES})
    finally:
        sys.path.remove(str(EXAMPLE))
        for name in here:
            sys.modules.pop(name, None)
            if name in before:
                sys.modules[name] = before[name]


def as_text(encoded: bytes) -> str:
    """Bytes as a request's value carries them."""
    return base64.b64encode(encoded).decode()


class Refused(Exception):
    """An op answered with a business error."""

    def __init__(self, code: Any, text: str) -> None:
        super().__init__(text)
        self.code = code


class Chain:
    """The three ops, and for ``process`` the bare ONNX Runtime.

    Attributes:
        runs: how often each op's model ran.
    """

    def __init__(self) -> None:
        service = example().ocr_service
        example().models.install_models()
        self.ops = [service.DetOp(name="det"), service.ClsOp(name="cls"), service.RecOp(name="rec")]
        self.sessions: dict[str, Any] = {}
        self.runs: dict[str, int] = {}
        for op in self.ops:
            op.init_op()
            model = example().models.MODELS / op.name / "model.onnx"
            self.sessions[op.name] = onnxruntime.InferenceSession(
                str(model), providers=["CPUExecutionProvider"]
            )
            self.runs[op.name] = 0

    def read(self, value: Any) -> list[Line]:
        """The lines in one request's value."""
        lines: list[Line] = json.loads(self.reply({"image": value})["result"])
        return lines

    def reply(self, request: dict[str, Any]) -> dict[str, str]:
        """What the last op answers to a request."""
        name, output = "@DAGExecutor", request
        for op in self.ops:
            output = self.step(op, {name: dict(output)})
            name = op.name
        return output

    def step(self, op: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        """One op for one request."""
        return self.finish(op, inputs, self.start(op, inputs))

    def start(self, op: Any, inputs: dict[str, Any]) -> Any:
        """``preprocess`` and ``process``: what ``postprocess`` is to get."""
        feeds, skip, code, text = op.preprocess(inputs, 0, 0)
        if code is not None:
            raise Refused(code, text)
        if skip:
            return feeds
        if isinstance(feeds, dict):
            return self._run(op.name, feeds)
        return [self._run(op.name, feed) for feed in feeds]

    def finish(self, op: Any, inputs: dict[str, Any], fetched: Any) -> dict[str, Any]:
        """``postprocess``."""
        result, code, _ = op.postprocess(inputs, fetched, 0, 0)
        assert code is None
        assert isinstance(result, dict)
        return result

    def _run(self, name: str, feed: dict[str, Any]) -> dict[str, Any]:
        self.runs[name] += 1
        session = self.sessions[name]
        outputs = [node.name for node in session.get_outputs()]
        return dict(zip(outputs, session.run(outputs, feed), strict=True))


@cache
def chain() -> Chain:
    """One chain for all tests: opening the models takes a while."""
    return Chain()


@cache
def judge() -> Any:
    """The independent judge with its defaults."""
    from rapidocr_onnxruntime import RapidOCR

    return RapidOCR()


@cache
def judged(picture: Path) -> list[Line]:
    """What the judge finds in a picture file."""
    found, _ = judge()(picture)
    return [
        {"text": text, "confidence": confidence, "box": box}
        for box, text, confidence in found or []
    ]


def overlap(box: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    """Intersection over union of two boxes."""
    one, two = Polygon(box), Polygon(other)
    return float(one.intersection(two).area / one.union(two).area)


def check_same_lines(found: list[Line], expected: list[Line]) -> None:
    """Equal texts in equal order, the same places, close confidences."""
    assert [line["text"] for line in found] == [line["text"] for line in expected]
    overlaps = [overlap(a["box"], b["box"]) for a, b in zip(found, expected, strict=True)]
    assert all(value >= 0.9 for value in overlaps), overlaps
    apart = [a["confidence"] - b["confidence"] for a, b in zip(found, expected, strict=True)]
    assert np.abs(apart).max(initial=0) <= 0.01, apart
