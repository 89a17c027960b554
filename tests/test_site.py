"""The built site of the documents loads nothing from elsewhere, and its links hold.

`make docs` builds it with links checked, and then runs these tests; without it they are skipped.
"""

from __future__ import annotations

import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.documents import ROOT, tracked_files

PROJECT = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
BUILT = ROOT / PROJECT["site_dir"]
PAGES = {path.relative_to(ROOT).as_posix() for path in tracked_files() if path.suffix == ".md"}


class Read(HTMLParser):
    """What a page loads, and where its links go."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "a" or found.get("rel") in ("canonical", "next", "prev"):
            self.linked.append(found.get("href") or "")
        else:
            self.loaded += [found[name] or "" for name in ("src", "href") if name in found]


def built() -> list[Path]:
    found = sorted(BUILT.rglob("*.html"))
    if not found:
        pytest.skip("`make docs` has not built the site")
    return found


def test_a_built_page_loads_nothing_from_elsewhere() -> None:
    loaded = [(page, each) for page in built() for each in Read(page.read_text()).loaded]
    assert loaded
    assert [each for each in loaded if "://" in each[1] or each[1].startswith("//")] == []
    for sheet in BUILT.rglob("*.css"):
        assert re.findall(r"url\(.?https?:[^)]*\)|@import[^;]*", sheet.read_text()) == []


def test_links_of_a_built_page_are_to_built_files() -> None:
    missing = []
    for page in built():
        if page.name == "404.html":
            continue  # its links are for a site at the root of a host
        read = Read(page.read_text())
        for link in (*read.linked, *read.loaded):
            file = unquote(re.split("[?#]", link)[0])
            if file and ":" not in file and not (page.parent / file).is_file():
                missing.append((page.relative_to(BUILT).as_posix(), link))
    assert missing == []


def test_files_of_examples_are_shown_with_their_names() -> None:
    built()
    page = (BUILT / "docs/guide.html").read_text()
    assert '<span class="filename">shout.py</span>' in page
    assert "```" not in page


def test_the_search_knows_every_page() -> None:
    built()
    index = (BUILT / "search.json").read_text()
    names = {page.replace("README.md", "index.md")[: -len(".md")] for page in PAGES}
    assert [name for name in sorted(names) if f"{name}.html" not in index] == []
