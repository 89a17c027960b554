"""A page of another origin in a real Chromium calls a service, and reads its answers and errors."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.peers.browser import Page, browsing
from tests.service.scripts import PENSTOCK
from tests.services.process import running

APP = """
from penstock import App
app = App("texts")

@app.route("/length")
def length(text: str) -> int:
    return len(text)
"""


class Blank(BaseHTTPRequestHandler):
    """Serves an empty page of another origin."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def website() -> Iterator[str]:
    """The origin of another website."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Blank) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def fetched(page: Page, url: str, **options: Any) -> dict[str, Any]:
    """What a page gets from ``fetch``."""
    page.evaluate(
        f"""delete window.found;
        fetch({json.dumps(url)}, {json.dumps(options)}).then(
            async answer => window.found = {{status: answer.status, text: await answer.text(),
                retry: answer.headers.get("retry-after")}},
            error => window.found = {{error: String(error)}}); 1"""
    )
    found: dict[str, Any] = json.loads(page.until("window.found && JSON.stringify(window.found)"))
    return found


def posted(text: Any) -> dict[str, Any]:
    """Options of a request that needs a preflight."""
    headers = {"content-type": "application/json", "authorization": "Bearer secret"}
    return {"method": "POST", "headers": headers, "body": json.dumps({"text": text})}


def test_an_allowed_page_calls_reads_and_reads_errors(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP)
    with website() as origin, website() as evil:
        allowed = {"PENSTOCK_SET": f"cors.origins={origin}"}
        with (
            running(app, environment=allowed, command=PENSTOCK) as server,
            browsing(tmp_path) as page,
        ):
            page.open(origin)
            page.until("document.title === 'elsewhere'")
            url = f"{server.http_url}/length"
            assert fetched(page, url, **posted("abc"))["text"] == "3"
            assert fetched(page, url, **posted(1))["status"] == 422
            assert fetched(page, f"{server.http_url}/none", **posted("abc"))["status"] == 404
            assert fetched(page, f"{server.http_url}/readyz")["text"] == "ok\n"
            assert "error" in fetched(page, url, method="PUT", body="{}")
            assert "error" in fetched(page, f"{server.http_url}/ui/state")
            page.open(evil)
            page.until(f"location.origin === {json.dumps(evil)} && document.title === 'elsewhere'")
            assert "error" in fetched(page, url, **posted("abc"))
            assert "error" in fetched(page, f"{server.http_url}/readyz")
