"""Folders that an HTTP server shows as pages with links, as those of nginx, Apache and Python.

fsspec reads the links of a page. Only links to what is directly in the page's folder are followed:
those to parents, other sites and other orders of the same page are not.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, Protocol
from urllib.parse import unquote

from penstock.repository.manifest import MOST_FILES, why_unsafe

_MOST_DEPTH: Final = 32


class Web(Protocol):
    """What is used of fsspec's file system for HTTP."""

    def ls(self, path: str, *, detail: bool) -> list[str]:
        """The links of a page."""

    def info(self, path: str) -> dict[str, Any]:
        """What a server says of a file."""

    def get_file(self, rpath: str, lpath: str, *, callback: Any) -> None:
        """Transfer a file."""


class WebFileSystem:
    """The folders of one HTTP server; see the module.

    Paths are URLs with names as they are; what is asked of the server has the links' own spelling.
    """

    def __init__(self, web: Web) -> None:
        self._web = web
        self._links: dict[str, str] = {}

    def invalidate_cache(self) -> None:
        """Nothing is cached."""

    def find(self, path: str, *, detail: bool) -> dict[str, dict[str, Any]]:
        """List all files below a folder.

        Raises:
            OSError: the pages are too many, or too deep.
        """
        found: dict[str, dict[str, Any]] = {}
        self._visit(self._links.get(path, path), path, found, 0)
        return found

    def info(self, path: str) -> dict[str, Any]:
        """What the server says of a file; a folder is what has a page with links.

        Raises:
            FileNotFoundError: there is neither.
        """
        link = self._links.get(path, path)
        with suppress(FileNotFoundError):
            self._web.ls(link.rstrip("/") + "/", detail=False)
            return {"name": path, "type": "directory"}
        known = self._info(link)
        if known is None:
            raise FileNotFoundError(link)
        return {**known, "name": path, "type": "file"}

    def get_file(self, rpath: str, lpath: str, *, callback: Any) -> None:
        self._web.get_file(self._links.get(rpath, rpath), lpath, callback=callback)

    def _visit(self, url: str, path: str, found: dict[str, dict[str, Any]], depth: int) -> None:
        if depth > _MOST_DEPTH or len(found) > MOST_FILES:
            raise OSError("it has too many folders or files")
        page = url.rstrip("/") + "/"
        for link in sorted(set(self._web.ls(page, detail=False))):
            name = _name(page, link)
            if name is None:
                continue
            below = f"{path}/{name}"
            if link.endswith("/"):
                self._links[below] = link.rstrip("/")
                self._visit(link, below, found, depth + 1)
            else:
                self._links[below] = link
                known = self._info(link) if why_unsafe(name) is None else {}
                if known is not None:
                    found[below] = {**known, "name": below, "type": "file"}

    def _info(self, link: str) -> dict[str, Any] | None:
        """What the server says of a file; None if a link leads to nothing."""
        try:
            return self._web.info(link)
        except FileNotFoundError as error:  # whatever went wrong
            if getattr(error.__cause__, "status", None) in (404, 410):
                return None
            raise


def _name(page: str, link: str) -> str | None:
    """The name of what a link leads to; None if it is not directly in the page's folder."""
    if not link.startswith(page) or any(each in link for each in "?#"):
        return None
    rest = link[len(page) :].removesuffix("/")
    if not rest or "/" in rest or unquote(rest) in (".", ".."):
        return None
    return unquote(rest)
