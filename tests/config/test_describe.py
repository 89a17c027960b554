import json
from pathlib import Path

import pytest

from penstock.config.describe import json_schema, main, markdown
from penstock.config.op import LocalServiceConfig, OpConfig
from penstock.config.schema import DagConfig, ServiceConfig, TracerConfig

PAGE = Path(__file__).parent.parent.parent / "docs" / "configuration.md"


def test_the_committed_page_equals_the_schema_s_description() -> None:
    assert PAGE.read_text() == markdown(), (
        "python -m penstock.config.describe > docs/configuration.md"
    )


@pytest.mark.parametrize(
    "section", [ServiceConfig, DagConfig, TracerConfig, OpConfig, LocalServiceConfig]
)
def test_every_key_has_a_description(section: type[ServiceConfig]) -> None:
    for name, field in section.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name


def test_the_json_schema_has_the_keys_as_written_in_yaml() -> None:
    schema = json.loads(json_schema())
    assert schema["properties"]["http_port"]
    assert schema["$defs"]["OpConfig"]["properties"]["timeout"]["anyOf"][0]["type"] == "integer"
    assert "model_config" in schema["$defs"]["LocalServiceConfig"]["properties"]
    assert schema["additionalProperties"] is False


def test_the_command_writes_markdown_or_json_schema_and_refuses_other_arguments(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out == markdown()
    assert main(["--json-schema"]) == 0
    assert capsys.readouterr().out == json_schema()
    assert main(["--html"]) == 2
    assert "usage" in capsys.readouterr().err
