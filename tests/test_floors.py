"""The floors of the package (docs/structure.md): the allowed imports, and the pure rooms.

A module imports from lower floors and from its own room, nothing else; rooms on one floor do not
import each other. Floor 0 is ordered: each file may import those before it. No modules import each
other in a circle, not even for their types.
"""

import ast
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "penstock"

# Longest prefix wins.
FLOORS = {
    "penstock.errors": 0,
    "penstock.tensor": 0,
    "penstock.caller": 0,
    "penstock.request": 0,
    "penstock.instrument": 0,
    "penstock.version": 0,
    "penstock.protocols": 1,
    "penstock.graph": 1,
    "penstock.batching": 1,
    "penstock.security": 1,
    "penstock.ops": 2,
    "penstock.repository": 2,
    "penstock.runtimes": 2,
    "penstock.client": 3,
    "penstock.store": 3,
    "penstock.typed": 3,
    "penstock.executors": 4,
    "penstock.door": 5,
    "penstock.engine": 6,
    "penstock.api": 7,
    "penstock.observe": 7,
    "penstock.config": 7,
    "penstock.supervisor": 8,
    "penstock.bench": 8,
    "penstock.admin": 9,
    "penstock.service": 10,
    "penstock.plan": 11,
    "penstock.cli": 12,
    "penstock.start": 13,
    "penstock.__main__": 14,
}
GROUND = [
    "penstock.errors",
    "penstock.tensor",
    "penstock.caller",
    "penstock.request",
    "penstock.instrument",
    "penstock.version",
]
ROOF = {
    "penstock",
    "penstock.openai",
    "penstock.testing",
}  # the public names and the public fakes import from every room
PURE = (
    "penstock.protocols",
    "penstock.graph",
    "penstock.batching",
    "penstock.security",
    "penstock.repository",
    "penstock.client.health",
    "penstock.client.http_answer",
    "penstock.client.keepalive",
    "penstock.client.model_stream",
    "penstock.client.piece_reader",
    "penstock.client.predictors",
    "penstock.client.routing",
    "penstock.door.polling",
    "penstock.executors.external_store.rules",
    "penstock.executors.workers.restarts",
    "penstock.executors.transport",
    "penstock.bench.pieces",
    "penstock.bench.report",
    "penstock.bench.responses",
    "penstock.bench.results",
    "penstock.bench.schedule",
    "penstock.plan.advice",
    "penstock.plan.calibration",
    "penstock.plan.costs",
    "penstock.plan.prediction",
    "penstock.plan.recording",
    "penstock.plan.report",
    "penstock.plan.settings",
    "penstock.plan.simulation",
    *GROUND,
)
IMPURE_MODULES = {
    "asyncio",
    "concurrent",
    "logging",
    "mmap",
    "multiprocessing",
    "os",
    "pickle",
    "select",
    "selectors",
    "signal",
    "socket",
    "subprocess",
    "threading",
    "time",
}
FOREIGN_SERVERS = {"uvicorn", "grpc"}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> list[Path]:
    return [p for p in sorted(PACKAGE.rglob("*.py")) if not p.name.endswith("_pb2.py")]


def room_of(module: str) -> str | None:
    if module in ROOF or module.startswith("penstock.testing"):
        return None
    for prefix in sorted(FLOORS, key=len, reverse=True):
        if module == prefix or module.startswith(prefix + "."):
            return prefix
    return None


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """The syntax tree of a module, in the order of ``ast.walk``; the first is the module."""
    return [*ast.walk(ast.parse(path.read_text()))]


def imports_of(path: Path) -> set[str]:
    """Every module imported anywhere in the file; ``from a import b`` also counts as ``a.b``."""
    found: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            inner = {f"penstock.{alias.name}" for alias in node.names}
            if node.module == "penstock" and all(room_of(name) for name in inner):
                found |= inner  # `from penstock import errors` imports a room, not a public name
            else:
                found.add(node.module or "")
    return found


def faults_of(module: str, imported: set[str]) -> list[str]:
    """The rules that this module breaks with these imports (separate, to be tested itself)."""
    room = room_of(module)
    if room is None:
        return []
    faults = []
    for name in sorted(imported):
        if name == "penstock":
            faults.append(f"{module} imports the public face {name}")
            continue
        if name.startswith("penstock.testing"):
            faults.append(f"{module} imports test tools {name}")
            continue
        if not name.startswith("penstock."):
            continue
        target = room_of(name)
        if target is None or target == room:
            continue
        if FLOORS[target] > FLOORS[room]:
            faults.append(f"{module} (floor {FLOORS[room]}) imports {name} above it")
        elif FLOORS[target] == FLOORS[room]:
            if FLOORS[room] == 0 and GROUND.index(target) < GROUND.index(room):
                continue
            faults.append(f"{module} imports {name}, a room on its own floor")
    if module.startswith(PURE):
        impure = {name.split(".")[0] for name in imported} & IMPURE_MODULES
        faults += [f"{module} is pure and imports {name}" for name in sorted(impure)]
    if room not in ("penstock.door", "penstock.client"):
        servers = {name.split(".")[0] for name in imported} & FOREIGN_SERVERS
        faults += [f"{module} knows a server: {name}" for name in sorted(servers)]
    return faults


@pytest.mark.parametrize("path", modules(), ids=module_name)
def test_a_module_imports_only_from_lower_floors(path: Path) -> None:
    assert faults_of(module_name(path), imports_of(path)) == []


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("penstock.graph.dag", "penstock.engine.engine"),
        ("penstock.graph.dag", "penstock.batching.batcher"),
        ("penstock.graph.dag", "time"),
        ("penstock.executors.transport.values", "pickle"),
        ("penstock.errors", "penstock.request"),
        ("penstock.engine.engine", "uvicorn"),
        ("penstock.ops.op", "penstock.testing.clock"),
        ("penstock.ops.op", "penstock"),
    ],
)
def test_a_forbidden_import_is_found(module: str, imported: str) -> None:
    assert faults_of(module, {imported})


def test_every_module_has_a_floor() -> None:
    without_floor = [
        name
        for name in map(module_name, modules())
        if room_of(name) is None and name not in ROOF and not name.startswith("penstock.testing")
    ]
    assert without_floor == []


def modules_in(path: Path, known: set[str]) -> set[str]:
    """The package's modules that this file imports."""
    found: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(each if each in known else node.module for each in inner)
    return found & known


def circle_in(imported: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, the first of them also at the end."""
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = {module_name(path): path for path in modules()}
    inside = known.keys() - ROOF
    assert circle_in({name: modules_in(path, inside) for name, path in known.items()}) == []


def test_a_circle_is_found() -> None:
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "c", "b", "a"]
