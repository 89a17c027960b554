"""Our own pages for people: one text each, which loads nothing and runs only its own scripts.

A page may be written as several files: the scripts and styles that it refers to become parts of its
text. Scripts of one page share their names.

Source: Content Security Policy 3.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from typing import Final

from penstock.protocols.heads import Headers

_REFERENCE: Final = re.compile(
    r'<script src="(?P<script>.+?)"></script>|<link rel="stylesheet" href="(?P<style>.+?)">'
)


def page(file: str) -> tuple[bytes, Headers]:
    """A page and its header fields.

    Args:
        file: a path below this room; its references are to files in the same folder.
    """
    room = files("penstock.api")
    folder = file.rpartition("/")[0]

    def part(reference: re.Match[str]) -> str:
        tag = reference.lastgroup
        assert tag is not None
        content = room.joinpath(folder, reference[tag]).read_text("utf-8")
        return f"<{tag}>\n{content}</{tag}>"

    text = _REFERENCE.sub(part, room.joinpath(file).read_text("utf-8"))
    policy = (
        f"default-src 'none'; script-src {_hashes('script', text)};"
        f" style-src {_hashes('style', text)};"
        " connect-src 'self'; img-src 'self' blob: data:; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    )
    headers = (
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-cache"),
    )
    return text.encode(), headers


def _hashes(tag: str, text: str) -> str:
    """The hashes of the contents of these elements."""
    contents = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    digests = [hashlib.sha256(each.encode()).digest() for each in contents]
    return " ".join(f"'sha256-{base64.b64encode(each).decode()}'" for each in digests)
