"""Our own pages: one text, and a policy that allows its own scripts and styles only."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from penstock.api.html import page


@pytest.mark.parametrize("file", ["docs/page.html", "ui/page.html"])
def test_a_page_is_one_text_and_its_policy_names_each_script_and_style(file: str) -> None:
    text, fields = page(file)
    html = text.decode()
    assert not re.search(r"<(script|img|iframe) [^>]*src=|<link [^>]*stylesheet", html)
    policy = dict(fields)[b"content-security-policy"].decode()
    for tag in ("script", "style"):
        contents = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()) for each in contents]
        sources = " ".join(f"'sha256-{each.decode()}'" for each in hashes)
        assert hashes
        assert f"; {tag}-src {sources};" in policy
    assert policy.startswith("default-src 'none';")


def test_scripts_and_styles_stand_where_they_are_referred_to() -> None:
    html = page("ui/page.html")[0].decode()
    order = [html.index(each) for each in ("--back:", "<body>", "function digits", "function tick")]
    assert order == sorted(order)
