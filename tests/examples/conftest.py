"""The pictures of the OCR example, drawn once: what its judge finds is remembered by their path."""

from pathlib import Path

import pytest

from tests.examples.ocr_judge import example


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    drawn = tmp_path_factory.mktemp("pictures")
    example().pictures.draw_pictures(drawn)
    return drawn
