"""A real Chromium over TLS: it negotiates HTTP/2, reads a route, and posts a form to one."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from tests.peers.programs import run
from tests.peers.site import Site

FORM = """<!doctype html><meta charset="utf-8">
<form method="post" enctype="text/plain" action="{url}">
<input name='{{"key": ["x", "rest"], "value": ["{text}", "' value='"]}}'></form>
<script>document.forms[0].submit()</script>
"""
"""A browser sends this form as ``name=value``, which is valid JSON."""


class Visit(NamedTuple):
    """A page as text, and the browser's own log of its network."""

    text: str
    log: dict[str, Any]

    def http2_sessions(self, port: int) -> int:
        """The number of HTTP/2 connections that the page opened to the port."""
        names = {number: name for name, number in self.log["constants"]["logEventTypes"].items()}
        hosts = [
            event["params"]["host"]
            for event in self.log["events"]
            if names[event["type"]] == "HTTP2_SESSION" and "host" in event.get("params", {})
        ]
        return sum(host.endswith(f":{port}") for host in hosts)


def visit(folder: Path, url: str) -> Visit:
    log = folder / "net.json"
    ran = run(
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-proxy-server",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--ignore-certificate-errors",
        "--allow-file-access-from-files",
        f"--user-data-dir={folder / 'profile'}",
        f"--log-net-log={log}",
        "--virtual-time-budget=5000",
        "--dump-dom",
        url,
        timeout=50,
    )
    page = ran.good().decode()
    return Visit(html.unescape(re.sub("<[^>]*>", "", page)), json.loads(log.read_text()))


def test_chromium_reads_a_route_over_one_http2_connection(site: Site, tmp_path: Path) -> None:
    seen = visit(tmp_path, f"https://localhost:{site.tls}/readyz")
    assert seen.text.strip() in ("ok", "ready")
    assert seen.http2_sessions(site.tls) == 1


def test_a_form_of_another_page_is_refused(site: Site, tmp_path: Path) -> None:
    page = tmp_path / "form.html"
    url = f"https://localhost:{site.tls}/echo/prediction"
    page.write_text(FORM.format(url=url, text="hello"))
    seen = visit(tmp_path, page.as_uri())
    assert "requests of the website 'null' are refused" in seen.text
