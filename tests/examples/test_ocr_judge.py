"""The OCR ops against the package that ships the models, on every picture, without a server."""

from pathlib import Path

import pytest

from tests.examples.ocr_chain import as_text, chain, check_same_lines, example, judged

pytestmark = pytest.mark.real

PICTURES = example().pictures
NAMES = [*PICTURES.GOOD, PICTURES.SCAN]


@pytest.mark.parametrize("name", NAMES)
def test_the_ops_find_the_same_lines_as_the_judge(folder: Path, name: str) -> None:
    expected = judged(folder / name)
    assert expected, "the judge must find something, or the comparison proves nothing"
    found = chain().read(as_text((folder / name).read_bytes()))
    check_same_lines(found, expected)


def test_where_the_judge_finds_nothing_the_ops_find_nothing(folder: Path) -> None:
    assert judged(folder / PICTURES.BLANK) == []
    assert chain().read(as_text((folder / PICTURES.BLANK).read_bytes())) == []
