"""The configurations that the examples ship."""

from pathlib import Path

import pytest

from penstock.config.load import load

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIGURATIONS = sorted(EXAMPLES.glob("*/config.yml"))


@pytest.mark.parametrize("file", CONFIGURATIONS, ids=lambda file: file.parent.name)
def test_no_example_starts_with_a_warning_about_its_own_configuration(file: Path) -> None:
    assert load(yml_file=file, environ={}).warnings == []


def test_the_examples_are_where_this_looks_for_them() -> None:
    assert len(CONFIGURATIONS) >= 3
