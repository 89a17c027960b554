"""Reads the project's documents: their code blocks, sections, tables and links.

A block that is a file of an example names it after the language (```` ```python service.py ````).
A ``console`` block has commands after ``$`` and their output.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUNNABLE = (
    ROOT / "README.md",
    ROOT / "docs/http.md",
    ROOT / "docs/seats.md",
    ROOT / "docs/streams.md",
    ROOT / "docs/openai.md",
    ROOT / "docs/guide.md",
    ROOT / "docs/model-server.md",
    ROOT / "docs/bench.md",
    ROOT / "docs/planning.md",
    ROOT / "docs/recipes.md",
    ROOT / "docs/clients.md",
    *sorted((ROOT / "docs/from").glob("*.md")),
)
"""The documents whose examples are run."""

_FENCE = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block. ``name`` is its file's, empty if it is not a file."""

    document: Path
    line: int
    section: str
    language: str
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One line after ``$`` and its output."""

    line: str
    output: str


def blocks_of(document: Path) -> list[Block]:
    """Every fenced block, in order."""
    text = document.read_text()
    found = []
    for match in _FENCE.finditer(text):
        language, _, name = match["info"].strip().partition(" ")
        found.append(
            Block(
                document=document,
                line=text.count("\n", 0, match.start()) + 1,
                section=_section_at(text, match.start()),
                language=language,
                name=name,
                text=match["text"],
            )
        )
    return found


def commands_of(block: Block) -> Iterator[Command]:
    """The commands of a ``console`` block."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, _, output = part.partition("\n")
        yield Command(line=line, output=output)


def headings_of(text: str) -> list[str]:
    """The headings of a document, outside of its blocks."""
    return [match[2] for match in _HEADING.finditer(_FENCE.sub("", text))]


def anchor_of(heading: str) -> str:
    """The anchor of a heading, with which a link to it ends."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.strip().replace(" ", "-")


def links_of(text: str) -> list[str]:
    """The targets of a document's links, outside of its blocks."""
    return _LINK.findall(_FENCE.sub("", text))


def section(text: str, heading: str) -> str:
    """The text below a heading, up to the next one of its level or above."""
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert found is not None, f"no section {heading!r}"
    level = len(found[1])
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{level}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def rows_of(text: str) -> list[list[str]]:
    """The cells of every table row in a text, without headers and rulers."""
    rows = []
    lines = text.splitlines()
    for above, line in zip(["", *lines], lines, strict=False):
        if not line.startswith("|") or set(line) <= set("|-: "):
            continue
        if not above.startswith("|"):
            continue  # a table's head
        rows.append([cell.strip() for cell in line.strip("|").split(" |")])
    return rows


def tracked_files() -> list[Path]:
    """Every file in the repository, and every new one that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = listed.stdout.decode().split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def _section_at(text: str, position: int) -> str:
    title = ""
    for match in re.finditer(r"^## (.+)$", text, re.MULTILINE):
        if match.start() > position:
            break
        title = match[1]
    return title
