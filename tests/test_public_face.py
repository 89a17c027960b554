"""``import penstock``: its public names, its light imports, and no side effects."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.documents import ROOT, tracked_files

HEAVY = {
    "asyncio",
    "google.protobuf",
    "grpc",
    "numpy",
    "onnxruntime",
    "orjson",
    "pydantic",
    "ruamel.yaml",
    "typer",
    "uvicorn",
    "uvloop",
}
REQUIRED = {
    # Names that users of the original import.
    "ChannelData",
    "ChannelDataEcode",
    "ChannelDataErrcode",
    "CustomException",
    "CustomExceptionCode",
    "LocalServiceHandler",
    "Op",
    "PipelineClient",
    "PipelineServer",
    "ProductErrCode",
    "RequestOp",
    "ResponseOp",
    "WebService",
    # Ours.
    "AsyncPipelineClient",
    "Model",
    "Service",
    "op",
}


def report_of(code: str, cwd: Path | None = None) -> Any:
    """The value that this code gives to ``report`` in a new interpreter."""
    code = f"import json, sys\ndef report(value): print(json.dumps(value))\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=40,
        check=True,
        cwd=cwd,
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def loaded_by(statement: str) -> set[str]:
    return set(report_of(f"{statement}\nreport([m for m in {HEAVY!r} if m in sys.modules])"))


@pytest.mark.parametrize("name", sorted(REQUIRED | set(penstock.__all__)))
def test_every_public_name_can_be_imported_and_is_in_dir_and_all(name: str) -> None:
    assert name in penstock.__all__
    assert name in dir(penstock)
    assert getattr(penstock, name) is getattr(penstock, name)


def imported_in(text: str) -> set[str]:
    """Names after ``from penstock import``, in code of any kind of file."""
    found = re.findall(r"^\s*from penstock import (\([^)]*\)|[^\n(]+)$", text, re.MULTILINE)
    return {name.split(" as ")[0] for names in found for name in re.findall(r"\w[\w ]*", names)}


def test_every_name_imported_by_a_document_or_example_is_public() -> None:
    files = [path for path in tracked_files() if path.suffix in (".md", ".py")]
    imported = {
        path: imported_in(path.read_text())
        for path in files
        if path.suffix == ".md" or path.is_relative_to(ROOT / "examples")
    }
    assert {"Op", "Service", "PipelineClient"} <= set().union(*imported.values())
    assert {path: names - set(penstock.__all__) for path, names in imported.items()} == {
        path: set() for path in imported
    }


def test_the_originals_names_of_the_error_codes_are_the_same_enum() -> None:
    assert penstock.ChannelDataErrcode is penstock.CustomExceptionCode
    assert penstock.ChannelDataEcode is penstock.CustomExceptionCode
    assert penstock.ChannelDataErrcode.OK.value == 0


def test_an_unknown_name_raises_attribute_error_and_import_error() -> None:
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'Opp'"):
        _ = penstock.Opp  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'Opp'"):
        exec("from penstock import Opp")


def test_type_checkers_resolve_the_same_names_to_the_same_objects() -> None:
    tree = ast.parse(Path(penstock.__file__).read_text())
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    )
    found_names = {
        alias.asname or alias.name: getattr(import_module(node.module or ""), alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert found_names == {name: getattr(penstock, name) for name in penstock.__all__}


def test_the_version_is_the_installed_one() -> None:
    assert penstock.__version__ == version("penstock-serving")


def test_importing_penstock_imports_no_heavy_package() -> None:
    assert loaded_by("import penstock") == set()


@pytest.mark.parametrize("name", ["Op", "RequestOp", "WebService", "PipelineServer", "Service"])
def test_importing_ops_and_services_imports_no_server(name: str) -> None:
    assert loaded_by(f"from penstock import {name}") <= {"numpy", "google.protobuf", "orjson"}


def test_importing_a_client_imports_no_server() -> None:
    loaded = loaded_by("from penstock import PipelineClient")
    assert not loaded & {"uvicorn", "uvloop", "pydantic", "ruamel.yaml", "typer", "onnxruntime"}


def test_importing_the_command_line_imports_no_server_and_no_models() -> None:
    code = "import penstock.cli"
    assert loaded_by(code) <= {"typer", "asyncio"}


def test_importing_every_name_has_no_side_effects(tmp_path: Path) -> None:
    first, second = report_of(
        "import logging, threading, signal, numpy, os, warnings\n"
        "def state(): return [threading.active_count(), len(logging.getLogger().handlers),\n"
        "    logging.getLogger().level, len(logging.getLogger('penstock').handlers),\n"
        "    str(signal.getsignal(signal.SIGTERM)), str(numpy.get_printoptions()),\n"
        "    str(numpy.geterr()), len(os.listdir('/proc/self/task')), sorted(os.environ)]\n"
        "first = state()\n"
        "from penstock import *\n"
        "report([first, state()])",
        cwd=tmp_path,
    )
    assert second == first
    assert list(tmp_path.iterdir()) == []
