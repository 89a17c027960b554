"""Serves single files, such as a demo page: read once, at the start."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.api.compression import send_packed
from penstock.api.descriptions import errors
from penstock.api.errors import failed, refusal
from penstock.api.http import Http, HttpCall
from penstock.api.operation import Answer
from penstock.errors import StartupError
from penstock.protocols.heads import Headers


@dataclass(frozen=True, slots=True)
class Page:
    """A file and its path in URLs."""

    path: str
    file: Path


class PageApplication:
    """Answers GET with files.

    Raises:
        StartupError: a file cannot be read.
    """

    def __init__(self, pages: list[Page]) -> None:
        self._pages: list[tuple[Page, Headers, bytes]] = []
        for page in pages:
            kind = mimetypes.guess_type(page.file)[0] or "application/octet-stream"
            if kind.startswith("text/"):
                kind += "; charset=utf-8"
            try:
                body = page.file.read_bytes()
            except OSError as error:
                raise StartupError(f"the page {page.path} cannot be read: {error}") from error
            self._pages.append((page, ((b"content-type", kind.encode()),), body))

    def routes(self) -> Iterator[Http]:
        """What to serve."""
        for page, headers, body in self._pages:
            kind = headers[0][1].decode()
            good = Answer(text="The file.", contents={kind: {"type": "string"}})
            yield Http(
                "GET",
                page.path,
                partial(_answer, headers, body),
                failed=failed,
                refusal=refusal,
                summary=f"The file {page.file.name}.",
                group="Pages",
                answers={**errors(415), 200: good},
            )


def _answer(headers: Headers, body: bytes, call: HttpCall, _: bytes) -> None:
    send_packed(call, 200, headers, body)
