"""The documents are correct: examples run, lists are complete, links resolve."""

import ast
import re
import runpy
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import penstock
import penstock.client
import penstock.openai
import penstock.testing
from penstock.config.describe import json_schema
from penstock.config.load import parse_override
from penstock.config.schema import ServiceConfig
from penstock.config.section import keys_of
from penstock.protocols import pb
from penstock.protocols.status import CustomExceptionCode
from penstock.service import flags
from penstock.service.script import run_file
from tests.documents import (
    ROOT,
    RUNNABLE,
    Block,
    anchor_of,
    blocks_of,
    commands_of,
    headings_of,
    links_of,
    rows_of,
    section,
    tracked_files,
)
from tests.test_floors import FLOORS, nodes_of

README = ROOT / "README.md"
DOCS = ROOT / "docs"
PACKAGE = ROOT / "penstock"
MARKDOWN = [path for path in tracked_files() if path.suffix == ".md"]
NAVIGATION = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if not path.name.endswith("_pb2.py")]


def from_root(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# Examples


def python_blocks() -> list[Block]:
    return [
        block for doc in RUNNABLE for block in blocks_of(doc) if block.language.startswith("py")
    ]


def commands(document: Path) -> list[str]:
    return [
        command.line
        for block in blocks_of(document)
        if block.language == "console"
        for command in commands_of(block)
    ]


@pytest.mark.parametrize("document", RUNNABLE, ids=from_root)
def test_every_block_has_a_language_that_is_tested(document: Path):
    kinds = {"python", "yaml", "console", "sh", "text"}
    assert {block.language for block in blocks_of(document)} <= kinds
    unnamed = [
        str(block)
        for block in blocks_of(document)
        if block.language in ("python", "yaml") and not block.name
    ]
    assert unnamed == []


@pytest.mark.parametrize("block", python_blocks(), ids=str)
def test_every_python_example_compiles_and_is_run_by_a_command(block: Block):
    compile(block.text, block.name, "exec")
    used = any(block.name in line for line in commands(block.document))
    imported = any(
        f"from {Path(block.name).stem} import" in other.text for other in blocks_of(block.document)
    )
    assert used or imported, f"no command shows {block.name}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A reader's working directory; the modules imported from it are removed afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        path = getattr(sys.modules[name], "__file__", None)
        if path is not None and Path(path).is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.mark.parametrize("document", RUNNABLE, ids=from_root)
def test_every_service_of_a_document_passes_check(document: Path, folder: Path):
    run_offline(document, folder)  # this creates the services' models
    served = [line.split()[2:] for line in commands(document) if line.startswith("penstock run ")]
    assert served
    for script, *options in served:
        overrides = dict(map(parse_override, options[1::2]))  # each follows its own -o
        with flags.using(flags.Flags(check_only=True, overrides=overrides)) as now:
            run_file(Path(script))
        assert now.reports
        for report in now.reports:
            assert "are good" in report
            assert "warning" not in report


def offline(document: Path) -> list[str]:
    """The scripts of a document that use no service."""
    return [
        block.name
        for block in blocks_of(document)
        if block.language == "python"
        and f"python {block.name}" in commands(document)
        and not any(each in block.text for each in (".connect(", "127.0.0.1:", "Service.read("))
    ]


@pytest.mark.parametrize("document", [doc for doc in RUNNABLE if offline(doc)], ids=from_root)
def test_every_script_that_needs_no_service_runs(document: Path, folder: Path):
    run_offline(document, folder)


def run_offline(document: Path, folder: Path) -> None:
    """Write every file of a document and run the scripts that use no service."""
    for block in blocks_of(document):
        if block.name:
            (folder / block.name).write_text(block.text)
    for name in offline(document):
        runpy.run_path(name, run_name="__main__")


@pytest.mark.parametrize("document", [README, *sorted(DOCS.rglob("*.md"))], ids=from_root)
def test_every_target_extra_and_module_in_a_shell_block_exists(document: Path):
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = [
        line
        for block in blocks_of(document)
        if block.language == "sh"
        for line in block.text.splitlines()
    ]
    for line in lines:
        if line.startswith("make "):
            targets = line.split()[1:]
            subprocess.run(["make", "-n", *targets], cwd=ROOT, check=True, capture_output=True)
        elif match := re.fullmatch(r"pip install '\.\[(\w+)\]'", line):
            assert match[1] in pyproject["project"]["optional-dependencies"]
        elif match := re.fullmatch(r"python -m ([\w.]+)(?: .*)?", line):
            assert (ROOT / match[1].replace(".", "/")).with_suffix(".py").is_file()
        elif line.startswith(".venv/bin/python -c "):
            compile(line.partition('"')[2].rpartition('"')[0], line, "exec")
        else:
            assert line == ". .venv/bin/activate"


# Lists that must be complete


def test_structure_lists_exactly_the_modules_of_the_package():
    listed = re.findall(r"^- `([\w/]+\.py)`: \S", (DOCS / "structure.md").read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    tree = [path.relative_to(PACKAGE).as_posix() for path in MODULES]
    assert sorted(listed) == sorted(tree)


def test_the_floors_in_structure_are_those_that_are_checked():
    rows = rows_of(section((DOCS / "structure.md").read_text(), "Floors"))
    documented = {
        name: int(floor) for floor, rooms in rows if floor != "any" for name in inline_code(rooms)
    }
    assert documented == {room.removeprefix("penstock."): floor for room, floor in FLOORS.items()}


def test_the_files_for_additions_exist():
    rows = rows_of(section((DOCS / "structure.md").read_text(), "Where things go"))
    named = [word for row in rows for word in inline_code(" ".join(row)) if word.endswith(".py")]
    assert len(named) > 15
    at = [(ROOT if path.startswith("tests/") else PACKAGE) / path for path in named]
    assert [path for path in at if not path.exists()] == []


def test_a_requests_life_names_existing_files():
    life = section((DOCS / "structure.md").read_text(), "A request's life")
    paths = [word for word in inline_code(life) if "/" in word or word.endswith(".py")]
    assert paths
    assert [path for path in paths if not (PACKAGE / path).exists()] == []


@pytest.mark.parametrize("path", MODULES, ids=from_root)
def test_every_module_has_a_docstring(path: Path):
    module = nodes_of(path)[0]
    assert isinstance(module, ast.Module)
    assert ast.get_docstring(module)


def test_every_public_method_is_described_in_its_class_or_in_an_interface():
    methods = [
        (f"{owner.name}.{each.name}", each.name, ast.get_docstring(each))
        for path in MODULES
        for owner in nodes_of(path)
        if isinstance(owner, ast.ClassDef) and not owner.name.startswith("_")
        for each in owner.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name[0] != "_"
    ]
    described = {name for _, name, text in methods if text}
    assert [method for method, name, text in methods if not text and name not in described] == []


def test_the_readme_lists_every_make_target():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z-]+):.*?## ", makefile, re.MULTILINE)
    documented = [row[0] for row in rows_of(section(README.read_text(), "Make targets"))]
    assert sorted(documented) == sorted(f"`make {target}`" for target in targets)


def test_every_make_target_in_a_document_exists():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*?## ", makefile, re.MULTILINE))
    for path in MARKDOWN:
        named = re.findall(r"`make ([a-z-]+)", path.read_text())
        assert set(named) <= targets, from_root(path)


def schema_keys() -> Iterator[str]:
    import json

    document = json.loads(json_schema())
    for part in (document, *document.get("$defs", {}).values()):
        yield from part.get("properties", {})


def test_every_key_is_in_the_configuration_page():
    page = (DOCS / "configuration.md").read_text()
    # Sections have headings of their own in place of a row.
    missing = [key for key in schema_keys() if f"`{key}`" not in page and f"{key}`" not in page]
    assert [key for key in missing if key != "op"] == []


def test_every_configurable_limit_is_in_the_limits_page():
    page = (DOCS / "limits.md").read_text()
    words = re.compile(r"max_|_timeout$|_delay$|deadline|keep_alive|worker_num")
    limits = [key for key in keys_of(ServiceConfig) if words.search(key)]
    assert len(limits) > 8
    assert [key for key in limits if f"`{key}`" not in page] == []


def test_the_keys_in_the_limits_page_exist():
    known = set(schema_keys())
    named = set()
    for heading in ("Requests", "Messages", "Connections", "Ops"):
        for row in rows_of(section((DOCS / "limits.md").read_text(), heading)):
            named |= {word.rpartition(".")[2] for word in inline_code(row[2])}
    headers = {"Penstock-Timeout", "Grpc-Timeout"}
    assert named - known == headers


def test_the_changelog_has_the_current_version():
    assert penstock.__version__ in (ROOT / "CHANGELOG.md").read_text()


# Statements of compatibility.md


def compatibility() -> str:
    return (DOCS / "compatibility.md").read_text()


def citations() -> list[tuple[str, str]]:
    """The files that cite the page, each with the topic that it cites."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = re.sub(r"\s+", " ", path.read_text())
        for match in re.finditer(
            r"docs/compatibility\.md``(?: \(([^)]+)\)|, the ([^.]+)\.)?", text
        ):
            topics = match[1] or match[2] or ""
            found += [(from_root(path), topic) for topic in topics.split(", ") if topic]
    return found


def test_every_compatibility_topic_cited_in_the_code_has_a_section():
    headings = " | ".join(headings_of(compatibility())).replace("`", "").lower()
    cited = citations()
    assert len(cited) > 20
    missing = [
        (path, topic)
        for path, topic in cited
        if topic.replace("`", "").removesuffix(" of services started from YAML").lower()
        not in headings
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("heading", "messages"),
    [("gRPC", [pb.Request, pb.Response]), ("Tensors", [pb.Tensor])],
    ids=["request and response", "tensor"],
)
def test_field_numbers_are_those_of_the_messages(heading: str, messages: list[type]):
    documented = [
        (int(row[0]), row[1].strip("`")) for row in rows_of(section(compatibility(), heading))
    ]
    fields = [
        (field.number, field.name) for message in messages for field in message.DESCRIPTOR.fields
    ]
    assert documented == fields


def test_error_codes_are_those_of_the_enum():
    rows = rows_of(section(compatibility(), "Error codes"))
    documented = {int(row[0]): row[1].strip("`") for row in rows if row[0].isdigit()}
    assert documented == {code.value: code.name for code in CustomExceptionCode}


# Links and words


def inline_code(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


@pytest.mark.parametrize("path", MARKDOWN, ids=from_root)
def test_every_link_has_an_existing_file_and_heading(path: Path):
    for link in links_of(path.read_text()):
        if link.startswith(("https://", "http://")):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if anchor:
            anchors = [anchor_of(heading) for heading in headings_of(target.read_text())]
            assert anchor in anchors, link


# The site, which `make docs` builds


def pages_of(entry: Any) -> Iterator[str]:
    """The pages of an entry of the navigation, in order."""
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from pages_of(each)


def test_every_document_has_one_place_in_the_navigation() -> None:
    assert Counter(pages_of(NAVIGATION)) == Counter(map(from_root, MARKDOWN))


def test_what_newcomers_learn_comes_before_references() -> None:
    parts = [name for entry in NAVIGATION for name in entry]
    assert parts == ["Start", "Learn", "Operate", "Reference", "Migrate", "Develop"]


@pytest.mark.parametrize("page", MARKDOWN, ids=from_root)
def test_links_are_to_files(page: Path) -> None:
    paths = [link.partition("#")[0] for link in links_of(page.read_text())]
    assert [path for path in paths if path and (page.parent / path).is_dir()] == []


@pytest.mark.parametrize("module", [penstock, penstock.client, penstock.openai, penstock.testing])
def test_every_public_name_has_one_entry_in_the_reference(module: ModuleType) -> None:
    entries = re.findall(
        r"^::: (\S+)$",
        "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md")),
        re.MULTILINE,
    )
    assert all(entry.startswith("penstock.") for entry in entries)
    found = Counter(
        name
        for where, _, name in (each.rpartition(".") for each in entries)
        if getattr(import_module(where), name) is getattr(module, name, None)
    )
    assert {name: found[name] for name in module.__all__} == dict.fromkeys(module.__all__, 1)


def test_every_test_file_in_the_tests_page_exists() -> None:
    named = re.findall(r"`(tests/[^`]+)`", (DOCS / "tests.md").read_text())
    assert len(named) > 30
    assert [name for name in named if not list(ROOT.glob(name))] == []


DISTRIBUTIONS = {"PIL": "pillow", "cv2": "opencv-python-headless"}


@pytest.mark.parametrize(
    "readme", sorted((ROOT / "examples").glob("*/README.md")), ids=lambda path: path.parent.name
)
def test_an_examples_readme_names_the_environment_it_needs(readme: Path) -> None:
    locked = "".join((ROOT / f"requirements/{each}.txt").read_text() for each in ("demo", "data"))
    demo = {line.partition("==")[0] for line in locked.splitlines() if "==" in line}
    scripts = [*readme.parent.glob("*.py")]
    known = {"penstock", *sys.stdlib_module_names, *(path.stem for path in scripts)}
    imported = {name for path in scripts for name in imported_by(path)} - known
    extra = {name for name in imported if DISTRIBUTIONS.get(name, name) not in demo}
    text = readme.read_text()
    assert ("make setup-dev" in text) is bool(extra), extra
    assert "make setup" in text


def imported_by(path: Path) -> Iterator[str]:
    """The top-level names of all modules that a script imports or reads resources of."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "files":
            yield ast.literal_eval(node.args[0])
