"""The pictures of the OCR example, drawn once: the reference's results are cached by path."""

from pathlib import Path

import pytest

from tests.examples.ocr_judge import example


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pictures")
    example().pictures.draw_pictures(directory)
    return directory
