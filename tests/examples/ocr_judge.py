"""The OCR example's modules, and the package that ships its models as the reference."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
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

    They are removed from ``sys.modules`` again: other examples have modules of the same names.
    """
    before = dict(sys.modules)
    example_modules = {path.stem for path in EXAMPLE.glob("*.py")}
    for name in example_modules:
        sys.modules.pop(name, None)
    sys.path.insert(0, str(EXAMPLE))
    try:
        return SimpleNamespace(**{name: import_module(name) for name in MODULES})
    finally:
        sys.path.remove(str(EXAMPLE))
        for name in example_modules:
            sys.modules.pop(name, None)
            if name in before:
                sys.modules[name] = before[name]


@cache
def reference() -> Any:
    """The reference implementation with its defaults."""
    from rapidocr_onnxruntime import RapidOCR

    return RapidOCR()


@cache
def reference_lines(picture: Path) -> list[Line]:
    """The lines that the reference finds in a picture file."""
    found, _ = reference()(picture)
    return [
        {"text": text, "confidence": confidence, "box": box}
        for box, text, confidence in found or []
    ]


def overlap(box: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    """Intersection over union of two boxes."""
    one, two = Polygon(box), Polygon(other)
    return float(one.intersection(two).area / one.union(two).area)


def check_same_lines(found: list[Line], expected: list[Line]) -> None:
    """Check for equal texts in equal order, overlapping boxes and close confidences."""
    assert [line["text"] for line in found] == [line["text"] for line in expected]
    overlaps = [overlap(a["box"], b["box"]) for a, b in zip(found, expected, strict=True)]
    assert all(value >= 0.9 for value in overlaps), overlaps
    differences = [a["confidence"] - b["confidence"] for a, b in zip(found, expected, strict=True)]
    assert np.abs(differences).max(initial=0) <= 0.01, differences
