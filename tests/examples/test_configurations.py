"""The configurations that the examples ship."""

from pathlib import Path

import pytest

from penstock.config.load import load

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIGURATIONS = sorted(EXAMPLES.glob("*/config.yml"))


@pytest.mark.parametrize("file", CONFIGURATIONS, ids=lambda file: file.parent.name)
def test_no_examples_configuration_causes_a_warning(file: Path) -> None:
    assert load(yml_file=file, environ={}).warnings == []


def test_the_examples_configurations_are_found() -> None:
    assert len(CONFIGURATIONS) >= 3
