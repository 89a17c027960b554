"""The built distributions, alone with what they require, do what the README says first.

`make dist` builds them into `dist/` and then runs these tests, which install from the package
index; without it they are skipped.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.documents import ROOT, blocks_of
from tests.services.process import free_port
from tests.test_docs_real import Reader
from tests.test_package import output_of

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(300)]

ORIGINAL = "import paddle_serving_app, paddle_serving_client, paddle_serving_server as s; print(s)"


@pytest.mark.parametrize("ending", [".whl", ".tar.gz"])
def test_the_readmes_first_example_runs_in_a_bare_environment(ending: str, tmp_path: Path) -> None:
    built = {path.name.partition("-")[0]: path for path in (ROOT / "dist").glob(f"*{ending}")}
    if not built:
        pytest.skip("`make dist` has not built the distributions")
    assert sorted(built) == ["penstock_paddle", "penstock_serving"]
    output_of(sys.executable, "-m", "venv", tmp_path / "bare", cwd=tmp_path)
    programs = tmp_path / "bare/bin"
    install = (programs / "python", "-m", "pip", "install", "--quiet")
    output_of(*install, built["penstock_serving"], cwd=tmp_path)

    example, session, *_ = blocks_of(ROOT / "README.md")
    reader = Reader(tmp_path, free_port(), free_port(), programs=programs)
    reader.save(example)
    with ExitStack() as stack:
        reader.follow(session, stack)

    output_of(*install, built["penstock_paddle"], cwd=tmp_path)
    assert str(programs.parent) in output_of(programs / "python", "-c", ORIGINAL, cwd=tmp_path)
