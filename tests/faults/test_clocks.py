"""Steps of the wall clock cannot matter, because nothing asks it."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "penstock"
WALL_CLOCKS = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "strftime", "clock_gettime"},
    "datetime": {"now", "utcnow", "today", "fromtimestamp"},
    "date": {"today", "fromtimestamp"},
}


def wall_clocks(source: str) -> list[str]:
    """Every use of a wall clock, as ``line: name``."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if node.attr in WALL_CLOCKS.get(name, ()):
                found.append(f"{node.lineno}: {name}.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            names = {alias.name for alias in node.names} & WALL_CLOCKS["time"]
            found += [f"{node.lineno}: {name}" for name in sorted(names)]
    return found


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_only_monotonic_clocks_are_read(path: Path) -> None:
    assert wall_clocks(path.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "time.time()",
        "from time import time",
        "from time import monotonic, time_ns as now",
        "datetime.datetime.now()",
        "datetime.now(tz)",
        "clock = time.time",
    ],
)
def test_the_search_finds_a_wall_clock(line: str) -> None:
    assert wall_clocks(f"import time, datetime\n{line}\n")


def test_the_search_lets_monotonic_clocks_pass() -> None:
    assert wall_clocks("import time\nfrom time import monotonic\ntime.perf_counter()") == []
