"""The OCR example with its recogniser on two nodes of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.loopback import run_inside


@pytest.mark.real
@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_recogniser_runs_on_two_nodes() -> None:
    run_inside(Path(__file__).with_name("inside_ocr_on_ray.py"), timeout=400.0)
