"""Our own pages for people: one file each, which loads nothing and runs only its own script.

Source: Content Security Policy 3.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

from penstock.protocols.heads import Headers


def page(file: str) -> tuple[bytes, Headers]:
    """A page and its header fields.

    Args:
        file: of this room; it has one script and one style.
    """
    text = files("penstock.api").joinpath(file).read_text("utf-8")
    (script,) = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    (style,) = re.findall("<style>(.*?)</style>", text, re.DOTALL)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)};"
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


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
