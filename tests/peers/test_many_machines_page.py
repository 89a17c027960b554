"""The examples of docs/many-machines.md with an external store, run from the page's text."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from tests.documents import ROOT, blocks_of, commands_of, section
from tests.kit.redis_server import redis_server
from tests.service.scripts import PENSTOCK
from tests.services.process import running

PAGE = ROOT / "docs/many-machines.md"
FILES = {block.name: block for block in blocks_of(PAGE) if block.name}


def test_a_service_calls_another_and_values_stay_in_the_store(tmp_path: Path) -> None:
    (shown,) = [each for each in blocks_of(PAGE) if "penstock run reader.py" in each.text]
    secret, called, caller, *calls = commands_of(shown)
    with redis_server(tmp_path) as store:
        for name in ("models.py", "reader.py", "store.yml"):
            text = FILES[name].text.replace("redis://127.0.0.1:6379", store.url)
            (tmp_path / name).write_text(text)
        environment = {"SHARED_SECRET": secret.line.partition("=")[2]}
        options: dict[str, Any] = {"command": PENSTOCK, "environment": environment}
        script, *given = called.line.removesuffix(" &").split()[2:]
        with running(tmp_path / script, *given, cwd=tmp_path, **options) as models:
            script, *given = caller.line.removesuffix(" &").split()[2:]
            file = tmp_path / script
            file.write_text(file.read_text().replace(":8080", f":{models.http_port}"))
            given = given[: given.index("--http-port")]
            with running(file, *given, cwd=tmp_path, **options) as reader:
                for call in calls:
                    line = call.line.replace("127.0.0.1:8082", f"127.0.0.1:{reader.http_port}")
                    assert output_of(line) == call.output


def output_of(line: str) -> str:
    done = subprocess.run(
        ["bash", "-c", line], env=os.environ, capture_output=True, text=True, timeout=60, check=True
    )
    return f"{done.stdout.strip()}\n"


def test_the_graph_with_ops_elsewhere_runs() -> None:
    assert "lines.yml" in section(PAGE.read_text(), "Large values between ops")
    names: dict[str, Any] = {}
    exec(compile(FILES["lines.py"].text, "lines.py", "exec"), names)
    assert names["recognise"](names["detect"]({"n": 2048})) == {"total": 2097152.0}
